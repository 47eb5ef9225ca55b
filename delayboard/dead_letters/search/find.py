"""Finding letters with a bound on what one answer reads.

The newest few hundred are looked at as they are, which finds what is common at once. What is
rarer an index knows, all of it or the newest of it; where none does, some thousands more are
looked at, and the answer says how far down it went, so that the next one can go on from there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from delayboard.dead_letters.search import sources
from delayboard.dead_letters.search.asked import Asked
from delayboard.dead_letters.search.holding import MOST_READ, Looker
from delayboard.dead_letters.search.sources import Source
from delayboard.dead_letters.search.texts import unindexed

# So many of the newest are looked at as they are.
HEAD = 300
# So many, where no index helps.
DEEP, DEEP_IN_TEXTS = 5000, 2000
# At first what fills a page with what is common, then more at a time.
CHUNK, LARGEST_CHUNK = 250, 2000
# An index that leaves no more than this is not worth asking another.
FEW = 200


@dataclass(frozen=True)
class Found:
    """Ids, the newest first. `is_all`: nothing older fits. `number` is how many fit in all, where
    that came out. Where less was found than was wanted and there may be more, they are older than
    `searched_to`.
    """

    ids: tuple[int, ...]
    is_all: bool
    searched_to: int | None = None
    number: int | None = None


def find(asked: Asked, before: int | None, wanted: int) -> Found:
    """The newest `wanted` letters that fit and have an id below `before`, or fewer."""
    if asked.is_read_whole or asked.is_impossible:
        near = asked.near(before, HEAD)
        ids = near if len(near) >= wanted else list(islice(asked.newest(before, wanted), wanted))
        return Found(tuple(ids[:wanted]), len(ids) < wanted)
    looker = Looker(asked)
    head = list(islice(asked.newest(before), HEAD))
    found = looker.fitting(head)
    if len(head) < HEAD or len(found) >= wanted:
        return _cut(found, wanted, is_all=len(head) < HEAD)
    known = _known(asked, head, before)
    if not known:
        depth = DEEP_IN_TEXTS if asked.query.words else DEEP
        rest = list(islice(asked.newest(head[-1], depth), depth))
        end = rest[-1] if len(rest) == depth else None
    else:
        best, *others = known
        # The head was looked at already.
        rest = [pk for pk in best.ids if pk < head[-1] and _may_hold(others, pk)]
        end = None if best.known_to is None else min(best.known_to, head[-1])
        found = sorted({*found, *looker.fitting(unindexed(before, MOST_READ))}, reverse=True)
    return _look(looker, rest, end, wanted, found)


def _look(looker: Looker, rest: list[int], end: int | None, wanted: int, found: list[int]) -> Found:
    """Look at the rest until enough was found; its end is `end`, None where nothing is older."""
    place, size = 0, CHUNK
    while chunk := rest[place : place + size]:
        place, size = place + size, min(2 * size, LARGEST_CHUNK)
        found = sorted({*found, *looker.fitting(chunk)}, reverse=True)
        so_far = [pk for pk in found if pk >= chunk[-1]]
        if len(so_far) >= wanted:
            is_last = end is None and place >= len(rest) and len(found) == wanted
            return Found(tuple(so_far[:wanted]), is_last)
    if end is None:
        return _cut(found, wanted, is_all=True)
    ids = tuple(pk for pk in found if pk >= end)[:wanted]
    return Found(ids, False, end if len(ids) < wanted else None)


def _cut(found: list[int], wanted: int, *, is_all: bool) -> Found:
    number = len(found) if is_all else None
    return Found(tuple(found[:wanted]), is_all and len(found) <= wanted, None, number)


def _known(asked: Asked, sample: list[int], before: int | None) -> list[Source]:
    """What indexes know, that first which leaves the fewest letters to look at."""
    known: list[Source] = []
    for source in _sources(asked, sample, before):
        known.append(source)
        if source.is_all and len(source.ids) <= FEW:
            break
    # Of several that were cut, as many letters of the rarest reach further down.
    return sorted(known, key=lambda one: (not one.is_all, one.known_to or len(one.ids)))


def _sources(asked: Asked, sample: list[int], before: int | None) -> Iterator[Source]:
    found = False
    for condition in asked.conditions:
        if (source := sources.of_condition(condition, before)) is not None:
            found = True
            yield source
    for word in sorted(asked.query.words, key=lambda word: -len(word.text)):
        source = None if word.is_negated else sources.of_word(word.text, sample, before)
        if source is not None:
            found = True
            yield source
    if found and (asked.groups is not None or asked.queues is not None):
        ids = list(islice(asked.newest(before, sources.MOST), sources.MOST + 1))
        yield Source(tuple(ids), ids[-1] if len(ids) > sources.MOST else None)


def _may_hold(others: list[Source], letter: int) -> bool:
    """Whether each of these has the letter, as far down as it is known."""
    return all(
        letter in other.members or (other.known_to is not None and letter < other.known_to)
        for other in others
    )
