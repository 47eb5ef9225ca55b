"""A page of what a search matches, with a bound on what one request reads.

The next messages in the order of the list are read first, which finds what is common at once. Of
what is rarer an index has a short list, or else a part of the messages is searched.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from topology.database.text_index import Ids

# Messages that are read first: enough to fill a page with what is common.
HEAD = 300
# Most ids in a list that an index returns; longer ones are cut.
MOST = 5000
# Ids of a list so short that another index is not worth a query.
FEW = 200


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
