"""The deaths that a broker remembers of a message, and the rule by which it cuts a ring.

Every version drops a dead letter before a queue in which it died before with no rejection since,
unless it was just rejected. What counts as "since" is the order in which the broker keeps the
deaths, and that differs (rabbit_dead_letter.erl 3.10.8; mc.erl and rabbit_dead_letter.erl 4.0.5
and 4.3.6, read and tried).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

Reason = Literal["expired", "rejected", "maxlen", "delivery_limit"]


@dataclass(frozen=True)
class Entry:
    """One entry of x-death: how often it died in one queue for one reason."""

    queue: str
    reason: str
    count: int = 1


Entries = tuple[Entry, ...]


def is_interpreted(version: tuple[int, ...]) -> bool:
    """Whether a published x-death is believed; from 4.0 on a publish starts a new history."""
    return version < (4, 0)


def published_deaths(headers: Mapping[str, Any]) -> Entries:
    """The x-death of a header table in its own order; invalid entries are omitted."""
    raw = headers.get("x-death")
    if not isinstance(raw, Sequence) or isinstance(raw, (str, bytes)):
        return ()
    return tuple(_entry(table) for table in raw if isinstance(table, Mapping))


def _entry(table: Mapping[str, Any]) -> Entry:
    count = table.get("count")
    is_number = isinstance(count, int) and not isinstance(count, bool)
    return Entry(
        queue=str(table.get("queue", "")),
        reason=str(table.get("reason", "")),
        count=count if is_number and isinstance(count, int) else 1,
    )


def record(deaths: Entries, queue: str, reason: str, version: tuple[int, ...]) -> Entries:
    """The deaths after one more, which is the first entry.

    Before 4.0 every death reverses the rest of the list (group_by_queue_and_reason in
    rabbit_dead_letter.erl 3.10.8), so that only the first entry is in order of time.
    """
    kept = _reverse_pairs(deaths) if version < (4, 0) else deaths
    same = [entry for entry in kept if (entry.queue, entry.reason) == (queue, reason)]
    others = tuple(e for e in kept if (e.queue, e.reason) != (queue, reason))
    first = replace(same[0], count=same[0].count + 1) if same else Entry(queue, reason)
    return (first, *others)


def _reverse_pairs(deaths: Entries) -> Entries:
    """Each pair of queue and reason once, in the reverse order; a single entry stays."""
    if len(deaths) < 2:
        return deaths
    once: dict[tuple[str, str], Entry] = {}
    for entry in deaths:
        once.setdefault((entry.queue, entry.reason), entry)
    return tuple(reversed(once.values()))


def is_cycle(deaths: Entries, queue: str) -> bool:
    """Whether a dead letter with these deaths, the newest first, is dropped before `queue`."""
    if not deaths or deaths[0].reason == "rejected":
        return False
    for entry in deaths:
        if entry.reason == "rejected":
            return False
        if entry.queue == queue:
            return True
    return False


def count_of(deaths: Entries, queue: str, reason: str) -> int:
    return sum(e.count for e in deaths if (e.queue, e.reason) == (queue, reason))


def dead_letter_headers(
    headers: Mapping[str, Any], queue: str, reason: str, exchange: str, version: tuple[int, ...]
) -> Mapping[str, Any]:
    """The headers that a headers exchange matches after a death.

    x-first-death-* stays as it was; before 4.0 a published one does too, and there is no
    x-last-death-* (rabbit_dead_letter.erl 3.10.8, mc.erl record_death/4 4.0.5).
    """
    died = {"queue": queue, "reason": reason, "exchange": exchange}
    last = {f"x-last-death-{name}": value for name, value in died.items()}
    first = {f"x-first-death-{name}": value for name, value in died.items()}
    if version < (4, 0):
        return headers if "x-death" in headers else {**headers, **first, "x-death": [died]}
    is_first = not isinstance(headers.get("x-death"), OwnDeaths)
    return {**headers, **(first if is_first else {}), **last, "x-death": OwnDeaths([died])}


class OwnDeaths(list[Mapping[str, Any]]):
    """An x-death that the broker wrote, not a publisher."""
