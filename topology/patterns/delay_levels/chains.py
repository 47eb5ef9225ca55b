"""Chains of delay levels under any names: exchanges that each look at one bit of the key."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import takewhile

from topology.definitions import Binding, Definitions, Identity, Queue, is_tap
from topology.delays import format_delay

_BIT = re.compile(r"((?:\*\.)*)([01])\.#")
# A chain is recognized by at least two levels.
FEWEST_WHOLE = 2


@dataclass(frozen=True)
class Level:
    """An exchange that routes by the bit at this place of the key.

    `waits` leads a 1 into `queue`, `passes` leads a 0 to the exchange `below`; one of the two may
    be missing.
    """

    exchange: str
    skipped: int
    below: str
    queue: Queue | None
    waits: Binding | None
    passes: Binding | None

    @property
    def is_whole(self) -> bool:
        return self.waits is not None and self.passes is not None


@dataclass(frozen=True)
class Chain:
    """Levels from the highest down; the last leads to the exchange `delivery`."""

    levels: tuple[Level, ...]

    @property
    def top(self) -> str:
        return self.levels[0].exchange

    @property
    def delivery(self) -> str:
        return self.levels[-1].below

    @property
    def stem(self) -> str:
        """What the names of its exchanges begin with, without what would go on to a number."""
        first, *_, last = sorted(level.exchange for level in self.levels)
        pairs = takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
        return "".join(character for character, _ in pairs).rstrip("-_.0123456789")

    def claims(self, found: Definitions) -> frozenset[Identity]:
        """Its levels, and what they deliver to with the bindings of its destinations."""
        claimed: set[Identity] = set()
        for level in self.levels:
            parts = (level.queue, level.waits, level.passes)
            claimed |= {("exchange", level.exchange), *(part.identity for part in parts if part)}
        if found.exchange(self.delivery) and not self.delivery.startswith("amq."):
            claimed.add(("exchange", self.delivery))
            claimed |= {
                binding.identity
                for binding in found.leaving(self.delivery)
                if not is_tap(binding.destination)
            }
        return frozenset(claimed)

    def missing(self, found: Definitions) -> tuple[str, ...]:
        return (*self._find_missing(found), *self._find_odd_waits())

    def _find_missing(self, found: Definitions) -> Iterator[str]:
        above = self.levels[0].skipped
        if above:
            number = "One level" if above == 1 else f"{above} levels"
            verb = "is" if above == 1 else "are"
            yield f"{number} above “{self.top}” {verb} missing."
        for level in self.levels:
            if level.waits is None:
                yield (
                    f"The level “{level.exchange}” has no queue, so RabbitMQ drops the messages "
                    "that should wait there."
                )
            elif level.passes is None:
                yield f"The level “{level.exchange}” has no binding for messages that skip it."
        if found.exchange(self.delivery) is None:
            yield (
                f"The exchange “{self.delivery}” is missing, so RabbitMQ drops messages "
                "after their delay."
            )

    def _find_odd_waits(self) -> Iterator[str]:
        """Waits that do not fit into the doubling that most of the others keep."""
        units = Counter(
            level.queue.message_ttl_ms / 2**number
            for number, level in enumerate(reversed(self.levels))
            if level.queue and level.queue.message_ttl_ms
        )
        unit = units.most_common(1)[0][0]
        for number, level in enumerate(reversed(self.levels)):
            if level.queue and level.queue.message_ttl_ms != unit * 2**number:
                waits = format_delay(level.queue.message_ttl or timedelta(0))
                yield (
                    f"The TTL of “{level.queue.name}” is {waits}, which breaks the doubling of the "
                    "levels."
                )


def find_chains(found: Definitions) -> list[Chain]:
    """By the name of the highest exchange."""
    levels = {
        exchange.name: level
        for exchange in sorted(found.exchanges, key=lambda exchange: exchange.name)
        if exchange.type == "topic" and (level := read_level(exchange.name, found)) is not None
    }
    above = {
        level.below: level.exchange for level in levels.values() if _find_level_below(level, levels)
    }
    heads = [name for name in levels if above.get(name) is None]
    chains = (Chain(tuple(_walk_down(levels[name], levels, above))) for name in heads)
    return [c for c in chains if sum(level.is_whole for level in c.levels) >= FEWEST_WHOLE]


def _find_level_below(level: Level, levels: Mapping[str, Level]) -> Level | None:
    """The level below, which looks one bit further."""
    below = levels.get(level.below)
    return below if below and below.skipped == level.skipped + 1 else None


def _walk_down(
    level: Level, levels: Mapping[str, Level], above: Mapping[str, str]
) -> Iterator[Level]:
    """Follow a chain down to where another begins; of two levels above one, a chain has one."""
    yield level
    below = _find_level_below(level, levels)
    while below is not None and above[below.exchange] == level.exchange:
        level = below
        yield level
        below = _find_level_below(level, levels)


def read_level(name: str, found: Definitions) -> Level | None:
    """Both its ways lead to one exchange; one alone is a level if the exchange has no other."""
    leaving = [b for b in found.leaving(name) if not is_tap(b.destination)]
    bits = [(match, b) for b in leaving if (match := _BIT.fullmatch(b.routing_key))]
    passing = {
        (match[1], binding.destination): binding
        for match, binding in bits
        if match[2] == "0" and not binding.destination_is_queue
    }
    waiting = [
        (match[1], queue, binding)
        for match, binding in bits
        if match[2] == "1" and binding.destination_is_queue
        if (queue := found.queue(binding.destination)) and queue.message_ttl_ms
    ]
    for skipped, queue, binding in waiting:
        below = queue.dead_letter_exchange or ""
        if (passes := passing.get((skipped, below))) is not None:
            return Level(name, len(skipped) // 2, below, queue, binding, passes)
    if len(leaving) != 1:
        return None
    return _read_half_level(name, waiting, passing)


def _read_half_level(
    name: str,
    waiting: Sequence[tuple[str, Queue, Binding]],
    passing: Mapping[tuple[str, str], Binding],
) -> Level | None:
    for skipped, queue, binding in waiting:
        if queue.dead_letter_exchange:
            return Level(name, len(skipped) // 2, queue.dead_letter_exchange, queue, binding, None)
    for (skipped, below), binding in passing.items():
        return Level(name, len(skipped) // 2, below, None, None, binding)
    return None
