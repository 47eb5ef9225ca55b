"""A query for one broker, and the parked messages that match it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from django.db import connection
from django.db.models import BooleanField, Exists, F, Func, OuterRef, Q, QuerySet, Value
from django.db.models.functions import StrIndex

from delayboard.dead_letters.parked.placeholders import put_placeholders
from delayboard.dead_letters.search.index import read_to
from delayboard.dead_letters.search.query import Compared, Condition, Pattern, Query, Span
from delayboard.models import MessageGroup, ParkedField, ParkedMessage, ParkedState
from topology.content.text import fold
from topology.models import Broker

# The column of a group that a field is about.
GROUP_COLUMNS = {
    "reason": "reason",
    "died": "died_in",
    "exchange": "exchange",
    "key": "routing_key",
    "exception": "exception",
    "type": "message_type",
    "group": "pk",
}
# The column of a parked message, where its name is not the field's.
COLUMNS = {"id": "searched__message_id", "parked": "parked_at", "died-at": "died_at"}
# Groups, and queues, that are read each by its index; with more, messages are read one by one.
MOST_SERIES = 100
MOST_QUEUES = 500
_LOOKUPS = {None: "", "<": "__lt", "<=": "__lte", ">": "__gt", ">=": "__gte"}


@dataclass(frozen=True)
class Search:
    """`groups` and `queues` are those that match, None where all do."""

    broker: Broker
    query: Query
    groups: frozenset[int] | None = None
    queues: tuple[str, ...] | None = None

    @property
    def states(self) -> tuple[str, ...]:
        state = self.query.state
        return tuple(ParkedState.values) if state == "any" else (state,)

    @property
    def is_empty(self) -> bool:
        """Whether no group or no queue matches."""
        return self.groups == frozenset() or self.queues == ()

    @cached_property
    def conditions(self) -> tuple[Condition, ...]:
        """Those that groups and names of queues do not answer."""
        answered = {*GROUP_COLUMNS, *(("queue",) if self.queues is not None else ())}
        return tuple(one for one in self.query.conditions if one.field not in answered)

    @property
    def reads_messages(self) -> bool:
        """Whether each message must be read to decide if it matches."""
        return bool(self.query.words or self.conditions)

    @property
    def is_of_series(self) -> bool:
        """Whether the messages of `newest` are the answer."""
        keys = self._series_keys
        is_exact = keys is None or (len(keys) <= MOST_SERIES and None in (self.groups, self.queues))
        return is_exact and not self.reads_messages and self.query.repeats is None

    @property
    def needs_index(self) -> bool:
        """Whether a message that is not indexed yet cannot match."""
        return self.query.reads_content or any(one.field == "id" for one in self.conditions)

    def messages(self) -> QuerySet[ParkedMessage]:
        """All that match, the newest first; without those that are not indexed yet, if it reads
        what only the index has.
        """
        rows = self._filter_columns()
        if self.needs_index:
            rows = rows.filter(searched__isnull=False)
        for condition in self.conditions:
            is_met = _is_met(condition)
            rows = rows.exclude(is_met) if condition.is_negated else rows.filter(is_met)
        for number, word in enumerate(self.query.words):
            place = f"place_{number}"
            rows = rows.alias(**{place: StrIndex(F("searched__text"), Value(word.text))})
            rows = rows.filter(**{place: 0} if word.is_negated else {f"{place}__gt": 0})
        return rows.order_by("-pk")

    def not_indexed(self) -> QuerySet[ParkedMessage]:
        """Messages that may match, and are omitted because they are not indexed yet."""
        if not self.needs_index:
            return ParkedMessage.objects.none()
        return self._filter_columns().filter(pk__gt=read_to(), searched__isnull=True).order_by()

    def newest(self, below: int | None, number: int) -> list[int]:
        """The first ids of what may match, the newest first."""
        rows = ParkedMessage.objects.all()
        series = self._series(rows if below is None else rows.filter(pk__lt=below))
        return read_newest(series, "pk", number)

    def oldest(self, above: int | None, number: int) -> list[int]:
        """The first ids of what may match, the oldest first."""
        rows = ParkedMessage.objects.all()
        series = self._series(rows if above is None else rows.filter(pk__gt=above))
        return _read_ordered(series, "pk", number)

    def _series(self, rows: QuerySet[ParkedMessage]) -> list[QuerySet[ParkedMessage]]:
        """Parts of these rows, each of which an index has in order."""
        of_broker = rows.filter(broker=self.broker)
        keys = self._series_keys
        if keys is None or len(keys) > MOST_SERIES:
            of_keys = [of_broker]
        elif self.groups is None:
            of_keys = [of_broker.filter(queue=key) for key in keys]
        else:
            of_keys = [rows.filter(group=key) for key in self.groups]
        return [one.filter(state=state) for one in of_keys for state in self.states]

    @property
    def _series_keys(self) -> frozenset[int] | tuple[str, ...] | None:
        return self.queues if self.groups is None else self.groups

    def _filter_columns(self) -> QuerySet[ParkedMessage]:
        rows = ParkedMessage.objects.filter(broker=self.broker, state__in=self.states)
        if self.groups is not None:
            rows = rows.filter(group__in=self.groups)
        if self.queues is not None:
            rows = rows.filter(queue__in=self.queues)
        if self.query.repeats is not None:
            rows = rows.filter(repeat_of__isnull=not self.query.repeats)
        return rows


def read_newest(rows: Sequence[QuerySet[Any]], column: str, number: int) -> list[int]:
    """The highest ids in a column of these, each of which an index has in order."""
    return _read_ordered(rows, f"-{column}", number)


def _read_ordered(rows: Sequence[QuerySet[Any]], order: str, number: int) -> list[int]:
    column, direction = order.removeprefix("-"), "DESC" if order.startswith("-") else "ASC"
    series = [one.order_by(order).values_list(column, flat=True) for one in rows]
    read = [one.query.sql_with_params() for one in series]
    # Each is ordered, so that PostgreSQL merges them, and does not sort them all.
    union = " UNION ALL ".join(f"SELECT * FROM ({sql}) AS series" for sql, _ in read)  # noqa: S608
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT * FROM ({union}) AS merged ORDER BY 1 {direction} LIMIT {number}",  # noqa: S608
            [value for _, params in read for value in params],
        )
        return [row[0] for row in cursor.fetchall()]


def search_for(broker: Broker, query: Query) -> Search:
    """Find out which groups and queues of the broker the query means."""
    return Search(broker, query, _find_groups(broker, query), _find_queues(broker, query))


def _find_groups(broker: Broker, query: Query) -> frozenset[int] | None:
    wanted = [one for one in query.conditions if one.field in GROUP_COLUMNS]
    if not wanted:
        return None
    columns = ["pk", "merged_into", *(GROUP_COLUMNS[one.field] for one in wanted)]
    rows = MessageGroup.objects.filter(broker=broker).order_by().values_list(*columns)
    return frozenset(
        pk
        for pk, shown_in, *values in rows
        if all(
            _is_group_match(one, value, shown_in) for one, value in zip(wanted, values, strict=True)
        )
    )


def _is_group_match(condition: Condition, value: str | int, shown_in: int | None) -> bool:
    """A number of a group means those that were merged into it too."""
    values = [value] if condition.field != "group" or shown_in is None else [value, shown_in]
    return any(_is_match(condition, one) for one in values) != condition.is_negated


def _is_match(condition: Condition, value: str | int) -> bool:
    wanted = condition.value
    if isinstance(wanted, Compared):
        return wanted.matches(float(value))
    assert isinstance(wanted, Pattern)
    folded = fold(str(value))
    if wanted.matches(folded):
        return True
    # A group's key has placeholders: a whole key finds the group that it belongs to.
    is_key = condition.field == "key" and wanted.is_exact
    return is_key and fold(put_placeholders(wanted.pieces[0])) == folded


def _find_queues(broker: Broker, query: Query) -> tuple[str, ...] | None:
    """None also where there are too many: then the queue of each message is compared."""
    wanted = [one for one in query.conditions if one.field == "queue"]
    if not wanted:
        return None
    names = queue_names(broker, MOST_QUEUES + 1)
    if len(names) > MOST_QUEUES:
        return None
    return tuple(
        name for name in names if all(_is_match(one, name) != one.is_negated for one in wanted)
    )


def queue_names(broker: Broker, most: int) -> list[str]:
    """The first queues that messages of the broker were parked from; each is a step in an index."""
    with connection.cursor() as cursor:
        cursor.execute(QUEUE_NAMES, [broker.pk, broker.pk, most])
        return [row[0] for row in cursor.fetchall()]


QUEUE_NAMES = """
    WITH RECURSIVE known(name) AS (
        SELECT min(queue) FROM delayboard_parkedmessage WHERE broker_id = %s
        UNION ALL
        SELECT (
            SELECT min(queue) FROM delayboard_parkedmessage
            WHERE broker_id = %s AND queue > known.name
        ) FROM known WHERE known.name IS NOT NULL
    )
    SELECT name FROM known WHERE name IS NOT NULL LIMIT %s
"""


def _is_met(condition: Condition) -> Q:
    if condition.is_content:
        fields = ParkedField.objects.filter(parked_message=OuterRef("pk"), name=condition.field)
        # Added to nothing, so that no planner reads the index of numbers for each message.
        fields = fields.alias(value=F("number") + Value(0.0))
        return Q(Exists(fields.filter(value_filter(condition.value, "text", "value"))))
    column = COLUMNS.get(condition.field, condition.field)
    return value_filter(condition.value, column, column)


def value_filter(wanted: Pattern | Compared | Span, text: str, number: str) -> Q:
    """A filter on a value: on the column `text` or `number`, whichever can decide."""
    match wanted:
        case Compared():
            return Q(**{number + _LOOKUPS[wanted.how]: wanted.bound})
        case Pattern():
            is_equal = (
                Q() if number == text or wanted.number is None else Q(**{number: wanted.number})
            )
            return _is_like(text, wanted) | is_equal
    found = Q(**{f"{number}__isnull": False})
    if wanted.from_at is not None:
        found &= Q(**{f"{number}__gte": wanted.from_at})
    return found if wanted.until_at is None else found & Q(**{f"{number}__lt": wanted.until_at})


def _is_like(column: str, pattern: Pattern) -> Q:
    """Names of queues are compared with their cases folded as the database does it."""
    if pattern.is_exact:
        return Q(**{column + ("__iexact" if column == "queue" else ""): pattern.pieces[0][:255]})
    escaped = "%".join(
        "".join(f"!{sign}" if sign in "!%_" else sign for sign in piece) for piece in pattern.pieces
    )
    # PostgreSQL alone distinguishes cases; what is folded has none.
    is_folded = column != "queue" or connection.vendor != "postgresql"
    return Q(_Like(F(column), Value(escaped), arg_joiner=" LIKE " if is_folded else " ILIKE "))


class _Like(Func):
    """Neither database goes back more than one “%”, so that this takes no longer than the texts
    are long times the pattern.
    """

    function = ""
    template = "(%(expressions)s ESCAPE '!')"
    output_field = BooleanField()
