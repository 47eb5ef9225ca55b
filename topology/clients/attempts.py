"""How often a message failed, as its client counts it.

A consumer that publishes a failed message again begins a new x-death from RabbitMQ 4.0 on, so that
only its own counter goes on. Tried with the libraries as packages (tests/outside).
"""

from __future__ import annotations

from collections.abc import Mapping

from topology.message import ATTEMPT_HEADER, Headers

# Header -> the library that counts failures in it: our examples, golevelup, Celery, taskiq (text).
COUNTERS = (ATTEMPT_HEADER, "x-retry-count", "retries", "_retries")


def count_failures(headers: Headers, queue: str) -> int:
    """Failures so far in this queue; 0 where the client counts none."""
    for name in COUNTERS:
        if number := _read_number(headers.get(name)):
            return number
    rascal = headers.get("rascal")
    recovery = rascal.get("recovery") if isinstance(rascal, Mapping) else None
    own = recovery.get(queue) if isinstance(recovery, Mapping) else None
    return _read_number(own.get("forwarded")) if isinstance(own, Mapping) else 0


def _read_number(value: object) -> int:
    """A whole number up to a million, also as text; 0 for anything else."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 7:
        return int(value)
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and isinstance(value, int) and 0 < value <= 1_000_000 else 0
