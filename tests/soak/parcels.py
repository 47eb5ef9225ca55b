"""PURE: the soak's own messages: what is to happen to each, and whether it did, counted exactly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Way: TypeAlias = Literal["straight", "pair", "levels"]

# By the place of a message's number in a cycle: how often its consumer rejects it, which are
# parked, and which go through delay levels. The even ones enter the retry pair's delay at once.
_CYCLE = 20
_REJECTIONS = {3: 1, 4: 1, 9: 2, 13: 3}
_PARKED = (13, 16)
_LEVELS = (5, 15)
SHOWN = 5


@dataclass(frozen=True)
class Parcel:
    """One message. It is rejected `rejections` times, each a trip through the retry pair."""

    number: int
    way: Way
    rejections: int
    is_parked: bool

    @property
    def deliveries(self) -> int:
        """How often its consumer gets it."""
        return self.rejections + 1

    @property
    def trips(self) -> int:
        """How often it goes through a delay."""
        return self.rejections + (self.way != "straight")


@dataclass(frozen=True)
class Count:
    """How often something was to happen and did; `missing` and `extra` never make up for
    each other. `examples` are the numbers of some messages that are wrong.
    """

    what: str
    expected: int
    seen: int
    missing: int
    extra: int
    examples: tuple[int, ...] = ()

    @property
    def is_exact(self) -> bool:
        return not self.missing and not self.extra


@dataclass
class Ledger:
    """What publisher and consumer saw, by number; each part is written by one thread.

    `uncertain` were sent on a connection that broke before the broker's answer.
    """

    sent: list[int] = field(default_factory=list)
    uncertain: list[int] = field(default_factory=list)
    consumed: list[int] = field(default_factory=list)
    parked: list[int] = field(default_factory=list)

    @property
    def outstanding(self) -> int:
        """How often the messages that were certainly sent are still to come, or to be parked."""
        doubtful = set(self.uncertain)
        came = [*self.consumed, *self.parked]
        parcels = [parcel(number) for number in list(self.sent)]
        due = sum(each.deliveries + each.is_parked for each in parcels)
        return due - sum(1 for number in came if number not in doubtful)


@dataclass(frozen=True)
class Recorded:
    """What Delayboard has written down of the messages at the end, by number."""

    published: Counter[int]
    scheduled: Counter[int]
    delivered: Counter[int]
    finished_rows: Counter[int]


def parcel(number: int) -> Parcel:
    """The message of this number: more than half are delayed, a quarter is rejected or parked."""
    place = number % _CYCLE
    straight: Way = "levels" if place in _LEVELS else "straight"
    way = straight if place % 2 else "pair"
    return Parcel(number, way, _REJECTIONS.get(place, 0), place in _PARKED)


def account(ledger: Ledger, recorded: Recorded) -> list[Count]:
    """Every count of the messages that were certainly sent; the uncertain ones are left out."""
    parcels = [parcel(number) for number in ledger.sent]
    past_the_delay = {p.number: int(p.way == "straight") for p in parcels}
    trips = {p.number: p.trips for p in parcels}
    parked = {p.number: int(p.is_parked) for p in parcels}
    doubtful = set(ledger.uncertain)

    def count(what: str, expected: dict[int, int], seen: Iterable[int]) -> Count:
        return counted(what, Counter(expected), Counter(n for n in seen if n not in doubtful))

    return [
        count("consumed", {p.number: p.deliveries for p in parcels}, ledger.consumed),
        count("parked", parked, ledger.parked),
        count("in the log, published", past_the_delay, recorded.published.elements()),
        count("in the log, scheduled", trips, recorded.scheduled.elements()),
        count("in the log, delivered", trips, recorded.delivered.elements()),
        count("in the index, arrived", trips, recorded.finished_rows.elements()),
    ]


def counted(what: str, expected: Counter[int], seen: Counter[int]) -> Count:
    missing, extra = expected - seen, seen - expected
    return Count(
        what,
        expected.total(),
        seen.total(),
        missing.total(),
        extra.total(),
        tuple(sorted(missing | extra)[:SHOWN]),
    )
