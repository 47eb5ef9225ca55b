"""What each client program is asked, and the lines that it writes: one JSON object each.

`ready`: it has declared and consumes. `published`, `attempt`, `retrying` (failed, comes again),
`done`, `gave up`: the id is the library's own, `attempt` counts deliveries from 1 (0: published),
`due_at_ms` is when the delivery is due, or the next one, null when it is due at once; `at_ms` is
now. Both are milliseconds since 1970, by the client's clock.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass

# What is said to a message's consumer, in its body.
DELAYED, FAILING, HOPELESS = "delayed", "failing", "hopeless"


@dataclass(frozen=True)
class Order:
    """Messages to publish: one with each of the delays, others fail `rounds` times, or always.

    `library` is the one that with_public_source.py plays.
    """

    url: str
    prefix: str
    delays_ms: tuple[int, ...]
    failing: int
    hopeless: int
    rounds: int
    wait_ms: int
    is_consuming: bool
    library: str

    @property
    def at_once(self) -> list[str]:
        """What each message is, that is published without a delay."""
        return [FAILING] * self.failing + [HOPELESS] * self.hopeless

    def fails(self, kind: str, attempt: int) -> bool:
        """Tell whether the consumer fails at this attempt, counted from 1."""
        return kind == HOPELESS or (kind == FAILING and attempt <= self.rounds)


def read_order() -> Order:
    """Return the order on the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("prefix")
    parser.add_argument("--delays-ms", default="")
    parser.add_argument("--failing", type=int, default=0)
    parser.add_argument("--hopeless", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--wait-ms", type=int, default=400)
    parser.add_argument("--library", default="")
    parser.add_argument("--idle", action="store_true", help="publish only")
    asked = parser.parse_args()
    delays = tuple(int(word) for word in asked.delays_ms.split(",") if word)
    counts = (asked.failing, asked.hopeless, asked.rounds, asked.wait_ms)
    return Order(asked.url, asked.prefix, delays, *counts, not asked.idle, asked.library)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def write(event: str, name: str = "", attempt: int = 0, due_at_ms: int | None = None) -> None:
    """Write a line."""
    line = {
        "event": event,
        "id": name,
        "attempt": attempt,
        "due_at_ms": due_at_ms,
        "at_ms": now_ms(),
    }
    sys.stdout.write(f"{json.dumps(line)}\n")
    sys.stdout.flush()
