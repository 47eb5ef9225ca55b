"""What a walk found: waits in queues with their times, and the end of every copy."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

from topology.delays import format_delay
from topology.routing import sentences
from topology.routing.matching.match import Unknown

Ending = Literal["delivered", "stuck", "dropped", "uncertain"]
# Cause of an end, for code that decides by it; "" for causes that no code needs.
Cause = Literal["", "cycle", "no_dead_letter_exchange", "no_route", "old_stream"]
NOW = timedelta(0)


@dataclass(frozen=True)
class Hop:
    """A wait in a queue: reached through an exchange with a key, at least `after` the start.

    `wait` is the shortest wait, None when the route ends there; `why` is the reason for the hop.
    `spread` is how much later than `after` the message may arrive, None without a bound.
    """

    exchange: str
    routing_key: str
    queue: str
    after: timedelta
    wait: timedelta | None
    why: str
    spread: timedelta | None = NOW


@dataclass(frozen=True)
class RouteOutcome:
    """How one copy ends: in `queue`, at least `after` the start, with a sentence that says why.

    delivered: in the queue, for a consumer. stuck: it never leaves the broker. dropped: it is lost.
    uncertain: the outcome cannot be predicted. `spread` is how much later it may be, None without a
    bound; `kept` names the exchange that delayed it before its first queue, and how long, "" for
    none; `doubts` are sentences on what may change the outcome. Where not all of the message is
    known, `others` is what could add copies that go elsewhere, `unless` what could avert this end.
    """

    ending: Ending
    queue: str
    after: timedelta
    why: str
    hops: tuple[Hop, ...] = ()
    spread: timedelta | None = NOW
    kept: str = ""
    doubts: tuple[str, ...] = ()
    cause: Cause = field(default="", compare=False)
    others: frozenset[Unknown] = frozenset()
    unless: frozenset[Unknown] = frozenset()

    @property
    def goes_on(self) -> str:
        """Where it was delivered: who takes it on from there; "" when its way ends."""
        ends = self.ending != "delivered" or self.why in (sentences.WAITS, sentences.TAKEN)
        return "" if ends else self.why

    def describe(self, when: str) -> str:
        """The outcome in a sentence, with the time in words such as " at once"; "" for no time."""
        if self.ending == "uncertain":
            return f"The prediction ends{when}: {self.why}."
        kept = f"is {self.kept}, then " if self.kept else ""
        if self.ending == "delivered":
            on = f": {self.goes_on}" if self.goes_on else ""
            return f"The message {kept}arrives in {self.queue}{when}{on}."
        word = "stuck" if self.ending == "stuck" else "lost"
        return f"The message {kept}is {word}{when}: {self.why}."

    @property
    def sentence(self) -> str:
        """With the shortest time."""
        return self.describe(f" after {format_delay(self.after)}" if self.after else " at once")

    @property
    def latest(self) -> timedelta | None:
        """None when nothing bounds it."""
        return None if self.spread is None else self.after + self.spread


@dataclass(frozen=True)
class Walk:
    """Every copy's outcome; never empty: a publish that no queue takes is one `dropped`."""

    outcomes: tuple[RouteOutcome, ...]

    @property
    def delivered(self) -> tuple[RouteOutcome, ...]:
        return tuple(outcome for outcome in self.outcomes if outcome.ending == "delivered")

    @property
    def is_routed(self) -> bool:
        """Whether any queue takes it, at once or after an exchange kept it."""
        return any(outcome.hops for outcome in self.outcomes)

    @property
    def is_only_kept(self) -> bool:
        """Whether an x-delayed-message exchange delays it, and no queue gets it at once.

        Then a mandatory publish is returned although the plugin keeps the message, and nothing
        shows whether it does: the plugin routes it nowhere at first (route/2 in
        rabbit_exchange_type_delayed_message.erl of 3.8 to 4.2, read and not tried).
        """
        kept = [outcome for outcome in self.outcomes if outcome.kept]
        return bool(kept) and not any(o.hops for o in self.outcomes if not o.kept)

    @property
    def hops(self) -> tuple[Hop, ...]:
        seen = {hop: None for outcome in self.outcomes for hop in outcome.hops}
        return tuple(seen)

    @property
    def doubts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(doubt for o in self.outcomes for doubt in o.doubts))
