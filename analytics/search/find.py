"""A page of what a search matches, with a bound on what one request reads; and who may search.

The next messages in the order of the list are read first, which finds what is common at once. Of
what is rarer an index has a short list, or else a part of the messages is searched.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Protocol, TypeVar

from django.db import connection
from django.db.models import BooleanField, F, Func, Model, Q, QuerySet
from django.db.models import Value as Constant
from django.db.models.functions import StrIndex

from analytics.search.query import Condition, Fields, Pattern, Query, QueryError, Value, Word, parse
from topology.database.text_index import Ids
from topology.redaction import Redaction

# Messages that are read first: enough to fill a page with what is common.
HEAD = 300
# Most ids in a list that an index returns; longer ones are cut.
MOST = 5000
# Ids of a list so short that another index is not worth a query.
FEW = 200
Row = TypeVar("Row", bound=Model)
# Most parts of a name that could be the name of a header.
MOST_STEPS = 20


class Search(Protocol):
    """What a query means in one list."""

    @property
    def reads_messages(self) -> bool:
        """Whether each message must be read to decide if it matches."""

    def index_newest(self, after: int | None) -> None:
        """Index some of the messages after this one that the worker has not indexed yet."""

    def next(self, after: int | None, number: int) -> list[int]:
        """The ids of the next that may match, in the order of the list, after one of them."""

    def select(self, ids: Collection[int], most: int | None = None) -> list[int]:
        """The ids of these that match, in the order of the list, or the first `most` of them."""

    def candidates(self, head: Sequence[int], after: int | None) -> Iterator[Ids]:
        """Lists that contain all that match and come after `after`, or such up to a floor. `head`
        are the next ids.
        """


@dataclass(frozen=True)
class Found:
    """Ids in the order of the list. The next page begins after `edge`, None on the last.

    `was_cut`: the search reached its limit before it found a page. `number` is how many match in
    all after where it began, None when unknown.
    """

    ids: tuple[int, ...] = ()
    edge: int | None = None
    was_cut: bool = False
    number: int | None = None


def find(search: Search, after: int | None, wanted: int) -> Found:
    """The next `wanted` messages that match, after the one with the id `after`, or fewer."""
    search.index_newest(after)
    head = search.next(after, (HEAD if search.reads_messages else wanted) + 1)
    if not search.reads_messages:
        return replace(_make_page(head, None, wanted), number=None)
    head, floor = head[:HEAD], head[HEAD - 1] if len(head) > HEAD else None
    ids = search.select(head)
    if floor is not None and len(ids) < wanted:
        rest = _choose_shortest(search.candidates(head, after))
        floor = rest.floor
        most = None if floor is None else wanted - len(ids) + 1
        ids += search.select(set(rest.ids).difference(head), most)
    return _make_page(ids, floor, wanted)


def _make_page(ids: Sequence[int], floor: int | None, wanted: int) -> Found:
    """The page of all matches up to the floor."""
    return Found(
        tuple(ids[:wanted]),
        ids[wanted - 1] if len(ids) > wanted else floor,
        floor is not None and len(ids) < wanted,
        len(ids) if floor is None else None,
    )


def _choose_shortest(candidates: Iterator[Ids]) -> Ids:
    """The shortest list, without what another list excludes; or else the one that reaches down
    furthest.
    """
    whole: list[Ids] = []
    parts: list[Ids] = []
    for one in candidates:
        (whole if one.floor is None else parts).append(one)
        if one.floor is None and len(one.ids) <= FEW:
            break
    if not whole:
        return min(parts, key=lambda one: one.floor or 0)
    return Ids(tuple(set.intersection(*(set(one.ids) for one in whole))))


def cut(ids: Sequence[int], most: int) -> Ids:
    """The first of a list in its order, with the last of them as floor where there are more."""
    return Ids(tuple(dict.fromkeys(ids[:most])), ids[most - 1] if len(ids) > most else None)


def filter_words(rows: QuerySet[Row], words: Iterable[Word]) -> QuerySet[Row]:
    """The rows whose searched text has these words."""
    for number, word in enumerate(words):
        place = f"place_{number}"
        rows = rows.alias(**{place: StrIndex(F("searched__text"), Constant(word.text))})
        rows = rows.filter(**{place: 0} if word.is_negated else {f"{place}__gt": 0})
    return rows


def filter_value(wanted: Value, text: str, number: str, *, is_folded: bool = True) -> Q:
    """A filter on a value: on the column `text` or `number`, whichever can decide.

    What is not folded is compared with its cases folded as the database does it.
    """
    if isinstance(wanted, Pattern):
        is_equal = Q() if number == text or wanted.number is None else Q(**{number: wanted.number})
        return _is_like(text, wanted, is_folded=is_folded) | is_equal
    bounds = {"gte": wanted.low, "lt": wanted.high, "isnull": False}
    return Q(*((f"{number}__{how}", one) for how, one in bounds.items() if one is not None))


def _is_like(column: str, pattern: Pattern, *, is_folded: bool) -> Q:
    if pattern.is_exact:
        return Q(**{column + ("" if is_folded else "__iexact"): pattern.pieces[0][:255]})
    escaped = "%".join(
        "".join(f"!{sign}" if sign in "!%_" else sign for sign in piece) for piece in pattern.pieces
    )
    # PostgreSQL alone distinguishes cases; what is folded has none.
    is_plain = is_folded or connection.vendor != "postgresql"
    return Q(_Like(F(column), Constant(escaped), arg_joiner=" LIKE " if is_plain else " ILIKE "))


class _Like(Func):
    """Neither database goes back more than one “%”, so that this takes no longer than the texts
    are long times the pattern.
    """

    function = ""
    template = "(%(expressions)s ESCAPE '!')"
    output_field = BooleanField()


def find_refusal(hidden: Redaction, query: Query, hidden_fields: Collection[str] = ()) -> str:
    """Why a reader from whom the rules hide values may not use the query; "" when allowed.

    `hidden_fields` are those of the list that show what is hidden.
    """
    for one in query.conditions:
        if one.field in hidden_fields or _hides(hidden, one):
            return f"A redaction rule hides “{one.field}”, so you cannot search it."
    if query.words and not hidden.is_empty:
        return (
            "Redaction rules hide headers or body values, so you cannot search for words. "
            "Search a field, such as header.tenant:42."
        )
    return ""


def reveals(
    hidden: Redaction, text: str, fields: Fields, hidden_fields: Collection[str] = ()
) -> bool:
    """Whether a query that others wrote may itself hold something of what is hidden."""
    if hidden.is_empty:
        return False
    try:
        return bool(find_refusal(hidden, parse(text, datetime.now(UTC), fields), hidden_fields))
    except QueryError:
        return True


def _hides(hidden: Redaction, condition: Condition) -> bool:
    """Whether a rule redacts the header or value, or anything that it may mean.

    A dot in a name also counts as a separator of names: the index does not distinguish them.
    """
    if not condition.is_content:
        return False
    kind, _, path = condition.field.partition(".")
    steps = path.split(".")
    if len(steps) > MOST_STEPS:
        return True
    if kind == "body":
        return any(hidden.hides_body_path(".".join(steps[: end + 1])) for end in range(len(steps)))
    return any(
        hidden.hides_header(".".join(steps[start : end + 1]))
        for start in range(len(steps))
        for end in range(start, len(steps))
    )
