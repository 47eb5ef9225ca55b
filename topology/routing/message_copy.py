"""One copy of a message on its way, as a broker's process would hold it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from topology.routing import sentences
from topology.routing.cycle import Entries, published_deaths
from topology.routing.matching.match import Unknown
from topology.routing.outcome import Cause, Ending, Hop, RouteOutcome


@dataclass(frozen=True)
class Copy:
    """What is about to be routed, `after` milliseconds at the earliest.

    `spread` is how many later it may be (None: no bound). `deaths` is what the broker remembers,
    in its order; `failed` the deliveries that failed in quorum queues. `holder` is the queue that
    keeps it when it cannot be routed, "" when nobody does. `kept` is that of an RouteOutcome.
    `passed` is all states it was in. `unknown` is what it may have beside `keys` and `headers`;
    `others` and `unless` are those of a RouteOutcome.
    """

    exchange: str
    keys: tuple[str, ...]
    headers: Mapping[str, Any]
    why: str = sentences.PUBLISHED
    after: int = 0
    spread: int | None = 0
    expiration_ms: int | None = None
    deaths: Entries = ()
    failed: int = 0
    holder: str = ""
    kept: str = ""
    hops: tuple[Hop, ...] = ()
    doubts: tuple[str, ...] = ()
    passed: frozenset[Hashable] = field(default_factory=frozenset)
    unknown: frozenset[Unknown] = frozenset()
    others: frozenset[Unknown] = frozenset()
    unless: frozenset[Unknown] = frozenset()

    @property
    def visible_deaths(self) -> Entries:
        """What a consumer reads in x-death."""
        return self.deaths or published_deaths(self.headers)

    def hop(self, queue: str, wait: int | None) -> Hop:
        """A wait of so many milliseconds in this queue, None when it ends there."""
        return Hop(
            exchange=self.exchange,
            routing_key=self.keys[0],
            queue=queue,
            after=timedelta(milliseconds=self.after),
            wait=duration(wait),
            why=self.why,
            spread=duration(self.spread),
        )

    def ends(
        self,
        ending: Ending,
        why: str,
        *,
        queue: str = "",
        cause: Cause = "",
    ) -> RouteOutcome:
        """The outcome of this copy, in `queue` or where it was last."""
        return RouteOutcome(
            ending=ending,
            queue=queue or (self.hops[-1].queue if self.hops else ""),
            after=timedelta(milliseconds=self.after),
            why=why,
            hops=self.hops,
            spread=duration(self.spread),
            kept=self.kept,
            doubts=tuple(dict.fromkeys(self.doubts)),
            cause=cause,
            others=self.others,
            unless=self.unless,
        )


def duration(ms: int | None) -> timedelta | None:
    return None if ms is None else timedelta(milliseconds=ms)


def add_times(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else first + second


def smaller_of(first: int | None, second: int | None) -> int | None:
    stated = [value for value in (first, second) if value is not None]
    return min(stated) if stated else None
