"""All letters that a query means, as one set: for what is done with all of them.

It reads as much as it must and may take seconds; a page asks `find` instead. Letters that are not
indexed yet are left out where the query asks about what only the index knows: `unsearched` are
those.
"""

from __future__ import annotations

from django.db import connection
from django.db.models import BooleanField, Exists, F, Func, OuterRef, Q, QuerySet, Value
from django.db.models.functions import StrIndex

from delayboard.dead_letters.search.asked import Asked
from delayboard.dead_letters.search.holding import read_to
from delayboard.dead_letters.search.query import Compared, Condition, Pattern, Span
from delayboard.models import DeadLetter, LetterField

_LOOKUPS = {None: "", "<": "__lt", "<=": "__lte", ">": "__gt", ">=": "__gte"}


def whole(asked: Asked) -> QuerySet[DeadLetter]:
    """The newest first."""
    rows = _near(asked)
    if _needs_index(asked):
        rows = rows.filter(searched__isnull=False)
    for condition in asked.conditions:
        holds = _holds(condition)
        rows = rows.exclude(holds) if condition.is_negated else rows.filter(holds)
    for place, word in enumerate(asked.query.words):
        name = f"place_{place}"
        rows = rows.alias(**{name: StrIndex(F("searched__text"), Value(word.text))})
        rows = rows.filter(**{name: 0} if word.is_negated else {f"{name}__gt": 0})
    return rows.order_by("-pk")


def unsearched(asked: Asked) -> QuerySet[DeadLetter]:
    """Those that may be meant, and are left out because they are not indexed yet."""
    if not _needs_index(asked):
        return DeadLetter.objects.none()
    return _near(asked).filter(pk__gt=read_to(), searched__isnull=True).order_by()


def _near(asked: Asked) -> QuerySet[DeadLetter]:
    """What there is without looking at any letter."""
    rows = DeadLetter.objects.filter(broker=asked.broker, state__in=asked.states)
    if asked.groups is not None:
        rows = rows.filter(group__in=asked.groups)
    if asked.queues is not None:
        rows = rows.filter(queue__in=asked.queues)
    if asked.query.repeats is not None:
        rows = rows.filter(repeat_of__isnull=not asked.query.repeats)
    return rows


def _needs_index(asked: Asked) -> bool:
    return asked.query.reads_content or any(one.field == "id" for one in asked.conditions)


def _holds(condition: Condition) -> Q:
    value = condition.value
    if condition.is_content:
        fields = LetterField.objects.filter(letter=OuterRef("pk"), name=condition.field)
        return Q(Exists(fields.filter(_field_fits(value))))
    match value:
        case Span():
            column = "parked_at" if condition.field == "parked" else "died_at"
            return _within(column, value)
        case Compared():
            return Q(**{condition.field + _LOOKUPS[value.how]: value.bound})
        case Pattern():
            return _like("queue" if condition.field == "queue" else "searched__message_id", value)
    raise TypeError(value)


def _field_fits(value: object) -> Q:
    if isinstance(value, Compared):
        return Q(**{"number" + _LOOKUPS[value.how]: value.bound})
    assert isinstance(value, Pattern)
    number = value.number
    return _like("text", value) | (Q() if number is None else Q(number=number))


def _within(column: str, span: Span) -> Q:
    """Nothing without a time is within."""
    found = Q(**{f"{column}__isnull": False})
    if span.from_at is not None:
        found &= Q(**{f"{column}__gte": span.from_at})
    return found if span.until_at is None else found & Q(**{f"{column}__lt": span.until_at})


def _like(column: str, pattern: Pattern) -> Q:
    """Names of queues are compared with their cases folded as the database does it."""
    if pattern.is_exact:
        return Q(**{column + ("__iexact" if column == "queue" else ""): pattern.pieces[0][:255]})
    told = "%".join(_quoted(piece) for piece in pattern.pieces)
    # PostgreSQL alone tells cases apart; what is folded has none.
    is_told_apart = column == "queue" and connection.vendor == "postgresql"
    return Q(_Like(F(column), Value(told), arg_joiner=" ILIKE " if is_told_apart else " LIKE "))


class _Like(Func):
    """Whether a text is as a pattern says: neither database goes back more than one “%”, so that
    it takes no longer than the texts are long times the pattern.
    """

    function = ""
    template = "(%(expressions)s ESCAPE '!')"
    output_field = BooleanField()


def _quoted(text: str) -> str:
    return "".join(f"!{sign}" if sign in "!%_" else sign for sign in text)
