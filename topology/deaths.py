"""x-death -> the history of a message: where it died, why, how often, in which order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from topology.content.text import make_encodable
from topology.message import Headers

REASONS = {
    "rejected": "a consumer rejected the message",
    "expired": "the message TTL ended",
    "maxlen": "the queue was full",
    "delivery_limit": "the message exceeded the delivery limit",
}
# Years outside of which no time zone and no database is sure to hold a time.
FIRST_YEAR, END_YEAR = 1970, 2200


@dataclass(frozen=True)
class Death:
    """One entry of x-death: all deaths in one queue for one reason.

    `first_at` is the time of the FIRST of these deaths in whole seconds (UTC); x-death has no time
    for later ones (mc_amqpl.erl 4.3.5, rabbit_dead_letter.erl 3.10.8). `order_is_inferred` is set
    when a neighbour has the same second, so that the order is known only from RabbitMQ's list.
    """

    queue: str
    reason: str
    count: int
    first_at: datetime | None
    exchange: str
    routing_keys: tuple[str, ...]
    original_expiration: str | None = None
    order_is_inferred: bool = False

    @property
    def routing_key(self) -> str:
        """The key with which it was published to the queue; "" when x-death has none."""
        return self.routing_keys[0] if self.routing_keys else ""

    @property
    def why(self) -> str:
        return REASONS.get(self.reason, f"for the reason “{self.reason}”")


@dataclass(frozen=True)
class History:
    """The deaths of a message, oldest first, and what of x-death could not be read."""

    deaths: tuple[Death, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        return sum([death.count for death in self.deaths])

    def count(self, queue: str, reason: str) -> int:
        """How often the message died in this queue for this reason."""
        return sum(d.count for d in self.deaths if d.queue == queue and d.reason == reason)

    @property
    def first_failure(self) -> Death | None:
        """The earliest death that is no mere end of a delay; None when all are `expired`."""
        return next((death for death in self.deaths if death.reason != "expired"), None)


def read_history(headers: Headers) -> History:
    """Read x-death, never failing: malformed entries are omitted and listed in `problems`."""
    raw = headers.get("x-death")
    if raw is None:
        return History()
    # The type is checked for a list first: the check for any sequence is slow.
    if type(raw) is not list and (not isinstance(raw, Sequence) or isinstance(raw, (str, bytes))):
        return History(problems=("x-death is not a list",))
    deaths: list[Death] = []
    problems: list[str] = []
    for number, entry in enumerate(raw, start=1):
        if type(entry) is dict or isinstance(entry, Mapping):
            death, wrong = _read_entry(entry)
            deaths.append(death)
            if wrong:
                problems.extend(f"entry {number}: {problem}" for problem in wrong)
        else:
            problems.append(f"entry {number} is not a table")
    return History(_oldest_first(deaths, headers), tuple(problems))


def newest_death(headers: Headers) -> tuple[str, str] | None:
    """Queue and reason of the latest death: x-last-death-* (4.0 on), else the newest entry.

    On 3.10.8 the latest death is the first entry of the list, and x-last-death-* do not exist.
    """
    queue, reason = headers.get("x-last-death-queue"), headers.get("x-last-death-reason")
    if isinstance(queue, str) and isinstance(reason, str):
        return queue, reason
    raw = headers.get("x-death")
    if isinstance(raw, Sequence) and not isinstance(raw, (str, bytes)) and raw:
        entry = raw[0]
        if isinstance(entry, Mapping):
            return _text(entry.get("queue")), _text(entry.get("reason"))
    return None


def _read_entry(entry: Mapping[str, Any]) -> tuple[Death, list[str]]:
    problems = []
    count = entry.get("count", 1)
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        problems.append("the count is not a positive number")
        count = 1
    keys = entry.get("routing-keys", ())
    if type(keys) is not list and (
        isinstance(keys, (str, bytes)) or not isinstance(keys, Sequence)
    ):
        problems.append("the routing keys are not a list")
        keys = ()
    for name in ("queue", "reason"):
        if not isinstance(entry.get(name), str):
            problems.append(f"the field {name} is missing or not text")
    at = _moment(entry.get("time"))
    if at is None and entry.get("time") is not None:
        problems.append("the time is not valid")
    expiration = entry.get("original-expiration")
    return (
        Death(
            queue=_text(entry.get("queue")),
            reason=_text(entry.get("reason")),
            count=count,
            first_at=at,
            exchange=_text(entry.get("exchange")),
            routing_keys=tuple(_text(key) for key in keys),
            original_expiration=None if expiration is None else _text(expiration),
        ),
        problems,
    )


def _oldest_first(deaths: list[Death], headers: Headers) -> tuple[Death, ...]:
    """Sort deaths by first time; within one second x-first-death-* goes first, then the list from
    its end.

    The list is ordered by recency of the LAST death, so within a second its reverse is
    only a guess, and marked as one.
    """
    if len(deaths) < 2:
        return tuple(deaths)
    first = (headers.get("x-first-death-queue"), headers.get("x-first-death-reason"))
    numbered = list(enumerate(deaths))
    far_future = datetime.max.replace(tzinfo=UTC)
    numbered.sort(
        key=lambda pair: (
            pair[1].first_at or far_future,
            (pair[1].queue, pair[1].reason) != first,
            -pair[0],
        )
    )
    ordered = [death for _, death in numbered]
    result = []
    for place, death in enumerate(ordered):
        neighbours = ordered[max(0, place - 1) : place] + ordered[place + 1 : place + 2]
        tied = any(other.first_at == death.first_at for other in neighbours)
        surely_first = place == 0 and (death.queue, death.reason) == first
        if (tied and not surely_first) or (death.first_at is None and len(ordered) > 1):
            death = replace(death, order_is_inferred=True)
        result.append(death)
    return tuple(result)


def _moment(value: Any) -> datetime | None:
    """A plausible time of a broker's clock, not only a valid one."""
    at = _written(value)
    return at if at and FIRST_YEAR <= at.year < END_YEAR else None


def _written(value: Any) -> datetime | None:
    if isinstance(value, datetime):
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            return datetime.fromtimestamp(value, UTC)
        except (ValueError, OverflowError, OSError):
            return None
    return None


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else make_encodable(value)
