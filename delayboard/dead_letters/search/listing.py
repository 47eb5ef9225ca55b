"""A page of parked messages, with as much of each as the person may see."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Sum
from django.db.models.functions import Substr

from delayboard.dead_letters.parked.redact_cause import hidden_columns, seen_parked_message
from delayboard.dead_letters.parked.select_keys import match_keys
from delayboard.dead_letters.search import index
from delayboard.dead_letters.search.match import COLUMNS, Search, read_newest, value_filter
from delayboard.dead_letters.search.query import Condition, Pattern, Query
from delayboard.models import Body, MessageGroup, ParkedField, ParkedMessage, ParkedText
from topology import access, redaction
from topology.access import User
from topology.database import text_index
from topology.database.text_index import Ids
from topology.models import Role
from topology.redaction import Redaction

HEAD = 300
# A longer list is cut, or not used where its index is in another order.
MOST = 5000
# Messages read at first, enough to fill a page with common matches, and at most at a time.
CHUNK, LARGEST_CHUNK = 250, 2000
# No shorter list is worth asking another index.
FEW = 200
# Above every text that begins alike; UTF-8 orders as code points do.
LAST = "\U0010ffff"
PAGE = 50
COUNTED = 10_000
LINE = 160
# Size up to which bodies are shown where rules hide parts of them.
MASKED_BYTES = 16_384


@dataclass(frozen=True)
class Line:
    """`beginning` is the first of its body in one line, None where nothing of it may be shown."""

    row: ParkedMessage
    beginning: str | None


@dataclass(frozen=True)
class Listed:
    """`number` is None when nobody counted; `is_exact` is false when there are more.

    `next_edge` leads to the messages after these, with `was_cut` also when the search reached its
    limit before a match. `can_sort`: an index has the messages in both orders. `hidden` are the
    columns that rules redact for this user.
    """

    lines: tuple[Line, ...]
    number: int | None
    is_exact: bool
    next_edge: int | None
    was_cut: bool
    not_searchable: int
    newest: int
    has_content: bool
    hidden: frozenset[str]
    can_sort: bool


def list_page(
    user: User, search: Search, edge: int | None, *, is_oldest_first: bool = False
) -> Listed:
    """What fits and comes after the message `edge`; `user` is who will see it.

    The newest come first; the oldest only of a search of series.
    """
    found = (find_oldest if is_oldest_first else find)(search, edge, PAGE)
    number, is_exact = _count_matches(search, found, edge)
    last = found.ids[-1] if found.ids else None
    rules = redaction.rules_for(user, search.broker)
    rows = [seen_parked_message(row, rules) for row in read_messages(found.ids)]
    reads = access.may(user, search.broker, Role.OPERATOR)
    lines = tuple(_make_lines(rows, rules if reads else None))
    waiting = index.not_searchable(search.broker) if search.query.reads_content else 0
    # So that what comes later is not among “all that match”.
    of_states = Search(search.broker, Query(state=search.query.state))
    return Listed(
        lines,
        number,
        is_exact,
        None if found.is_all else found.searched_to or last,
        found.searched_to is not None,
        waiting,
        newest=max(of_states.newest(None, 1), default=0),
        has_content=reads,
        hidden=hidden_columns(rules),
        can_sort=search.is_of_series,
    )


def read_messages(ids: tuple[int, ...]) -> list[ParkedMessage]:
    """The rows in this order, without their properties, which may be large."""
    rows = ParkedMessage.objects.defer("properties").select_related("group").in_bulk(ids)
    return [rows[pk] for pk in ids if pk in rows]


def _count_matches(search: Search, found: Found, edge: int | None) -> tuple[int | None, bool]:
    """How many fit, and whether that is all; without reading more than COUNTED."""
    if search.is_empty:
        return 0, True
    if not search.is_of_series:
        return (found.number, True) if edge is None else (None, True)
    if search.queues is None:
        groups = MessageGroup.objects.filter(broker=search.broker)
        if search.groups is not None:
            groups = groups.filter(pk__in=search.groups)
        sums = groups.aggregate(**{state: Sum(state, default=0) for state in search.states})
        return sum(sums.values()), True
    number = len(search.newest(None, COUNTED + 1))
    return min(number, COUNTED), number <= COUNTED


def _make_lines(rows: list[ParkedMessage], hidden: Redaction | None) -> list[Line]:
    if hidden is None:
        return [Line(row, None) for row in rows]
    wanted = MASKED_BYTES + 1 if hidden.body_paths else 4 * LINE
    keys = {row.body_id for row in rows}
    bodies = Body.objects.filter(pk__in=keys).values_list("pk", Substr("data", 1, wanted))
    begun: Mapping[str, bytes] = {key: bytes(data or b"") for key, data in bodies}
    return [Line(row, _show_beginning(begun.get(row.body_id, b""), hidden)) for row in rows]


def _show_beginning(body: bytes, hidden: Redaction) -> str:
    """One line of what is text; a body of which a part is missing is hidden whole by any rule."""
    text = hidden.body(body, MASKED_BYTES)[: 4 * LINE].decode("utf-8", "replace")
    if "\ufffd" in text[: LINE // 2] or "\x00" in text:
        return "(binary body)"
    line = " ".join(text.split())
    return line if len(line) <= LINE else f"{line[:LINE]}…"


@dataclass(frozen=True)
class Found:
    """Ids, the newest first. `is_all`: nothing older matches. `number` is how many match in all,
    where that is known. Where less was found than was wanted and there may be more, they are older
    than `searched_to`.
    """

    ids: tuple[int, ...]
    is_all: bool
    searched_to: int | None = None
    number: int | None = None


def find(search: Search, below: int | None, wanted: int) -> Found:
    """The newest `wanted` messages that match and have an id below `below`, or fewer."""
    if search.is_empty:
        return Found((), True, number=0)
    if search.is_of_series:
        ids = tuple(search.newest(below, wanted))
        return Found(ids, len(ids) < wanted)
    if search.needs_index:
        index.add_newest(below)
    head = _cut(search.newest(below, HEAD + 1), HEAD)
    found = _select_matching(search, head.ids)
    floor = head.floor
    if floor is not None and len(found) < wanted:
        best = _choose_shortest(search, head.ids, below)
        for chunk in _split_chunks([pk for pk in best.ids if pk < head.ids[-1]]):
            found += _select_matching(search, chunk)
            floor = chunk[-1]
            if len(found) >= wanted:
                break
        else:
            floor = None if best.floor is None else min(best.floor, floor)
    ids = tuple(found[:wanted])
    if floor is None:
        return Found(ids, len(found) <= wanted, number=len(found))
    return Found(ids, False, floor if len(found) < wanted else None)


def find_oldest(search: Search, above: int | None, wanted: int) -> Found:
    """The oldest `wanted` messages of a search of series with an id above `above`, or fewer."""
    if search.is_empty:
        return Found((), True, number=0)
    ids = tuple(search.oldest(above, wanted))
    return Found(ids, len(ids) < wanted)


def _select_matching(search: Search, ids: Sequence[int]) -> list[int]:
    if not ids:
        return []
    return list(search.messages().filter(match_keys(ids)).values_list("pk", flat=True))


def _split_chunks(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    place, size = 0, CHUNK
    while chunk := ids[place : place + size]:
        yield chunk
        place, size = place + size, min(2 * size, LARGEST_CHUNK)


def _choose_shortest(search: Search, head: Sequence[int], below: int | None) -> Ids:
    """Of the lists that contain all that match, the shortest; or else the one that reaches down
    furthest. Without what another list excludes.
    """
    lists: list[Ids] = []
    for one in _list_ids(search, head, below):
        lists.append(one)
        if one.floor is None and len(one.ids) <= FEW:
            break
    lists.sort(key=lambda one: (one.floor is not None, one.floor or len(one.ids)))
    ids, floor = lists[0]
    for other in lists[1:]:
        known = set(other.ids)
        ids = tuple(pk for pk in ids if pk in known or (other.floor and pk < other.floor))
    return Ids(ids, floor)


def _list_ids(search: Search, head: Sequence[int], below: int | None) -> Iterator[Ids]:
    for condition in search.conditions:
        if not condition.is_negated and condition.field != "queue":
            yield from _list_ids_of(condition, below)
    for word in sorted(search.query.words, key=lambda word: -len(word.text)):
        if not word.is_negated:
            ids = text_index.find(ParkedText, "delayboard_parkedindex", word.text, head, below)
            if ids is not None:
                yield ids
    yield _cut(search.newest(below, MOST + 1), MOST)


def _list_ids_of(condition: Condition, below: int | None) -> Iterator[Ids]:
    """One list, or none where there are too many that the index does not have by id."""
    wanted = condition.value
    rows: Any
    if condition.is_content:
        rows = ParkedField.objects.filter(name=condition.field)
        column = "text" if isinstance(wanted, Pattern) else "number"
    else:
        rows = ParkedText.objects.all()
        column = COLUMNS.get(condition.field, condition.field).removeprefix("searched__")
    if isinstance(wanted, Pattern) and wanted.is_exact:
        older = rows if below is None else rows.filter(parked_message__lt=below)
        series = [older.filter(**{column: wanted.pieces[0][:255]})]
        if condition.is_content and wanted.number is not None:
            series.append(older.filter(number=wanted.number))
        # Most messages are in both.
        most = len(series) * MOST
        yield _cut(read_newest(series, "parked_message", most + 1), most)
        return
    if isinstance(wanted, Pattern):
        first = wanted.pieces[0]
        within = {f"{column}__gte": first, f"{column}__lt": first + LAST}
        rows = rows.filter(**within) if first else rows
    else:
        rows = rows.filter(value_filter(wanted, column, column))
    ids = list(rows.order_by(column).values_list("parked_message", flat=True)[: MOST + 1])
    if len(ids) <= MOST:
        older_ids = {pk for pk in ids if below is None or pk < below}
        yield Ids(tuple(sorted(older_ids, reverse=True)))


def _cut(ids: Sequence[int], most: int) -> Ids:
    return Ids(tuple(dict.fromkeys(ids)), ids[-1] if len(ids) > most else None)
