"""A page of matches, with a limit on the rows read.

The newest few hundred messages are checked first, which finds frequent matches at once. Then the
shortest list of ids that an index has for a part of the query, else the newest thousands. The
result contains the last id that was checked, so that the next page can continue there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from delayboard.dead_letters.parked.select_keys import match_keys
from delayboard.dead_letters.search import index
from delayboard.dead_letters.search.match import COLUMNS, Search, read_newest, value_filter
from delayboard.dead_letters.search.query import Condition, Pattern
from delayboard.models import ParkedField, ParkedText
from topology.database import text_index
from topology.database.text_index import Ids

HEAD = 300
# A longer list is cut, or not used where its index is in another order.
MOST = 5000
# At first what fills a page with what is common, then more at a time.
CHUNK, LARGEST_CHUNK = 250, 2000
# No shorter list is worth asking another index.
FEW = 200
# Above every text that begins alike; UTF-8 orders as code points do.
LAST = "\U0010ffff"


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
