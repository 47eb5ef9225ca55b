"""What a walk found: stays in queues with their times, and the end of every copy."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

from topology.routing import sentences

Ending = Literal["delivered", "stuck", "dropped", "uncertain"]
# Why it ends, for code that decides by it; "" for all that nothing asks for.
Cause = Literal["", "cycle", "no_dead_letter_exchange", "no_route", "old_stream"]
NOW = timedelta(0)


@dataclass(frozen=True)
class Hop:
    """A stay in a queue: reached through an exchange with a key, `after` the start at the earliest.

    `stays` is how long at least, None when it ends there; `why` says what put the message in.
    `spread` is how much later than `after` it may come, None without a bound.
    """

    exchange: str
    routing_key: str
    queue: str
    after: timedelta
    stays: timedelta | None
    why: str
    spread: timedelta | None = NOW


@dataclass(frozen=True)
class RouteOutcome:
    """How one copy ends: in `queue`, no earlier than `after` the start, with a sentence why.

    delivered: in the queue, for a consumer. held: it never gets out of the broker. dropped: it is
    lost. uncertain: nobody can foretell. `spread` is how much later it may be, None without a
    bound; `kept` says which exchange kept it before its first queue, and how long, "" when
    none did; `doubts` are sentences on what may still make it go otherwise.
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

    @property
    def goes_on(self) -> str:
        """Where it was delivered: who takes it on from there; "" when its way ends."""
        ends = self.ending != "delivered" or self.why in (sentences.WAITS, sentences.TAKEN)
        return "" if ends else self.why

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
        """Whether an exchange of the type x-delayed-message keeps it, and no queue gets it at once.

        Then a mandatory publish is given back although it is kept, and nothing tells whether it
        is: the plugin routes it nowhere at first (route/2 in
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
