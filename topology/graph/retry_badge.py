"""What a quorum queue does with a failed delivery, in the words of a diagram (RabbitMQ 4.3 on)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from topology.definitions import Queue
from topology.delays import format_delay

# rabbitmq.com/docs/quorum-queues, "Delayed Retry"; anything else, and none, is no delay.
KINDS = ("all", "failed", "returned")


@dataclass(frozen=True)
class Retry:
    """The shortest and longest time until a retry; `limit` is None when no limit is stated."""

    shortest: timedelta
    longest: timedelta
    limit: int | None

    @property
    def badge(self) -> str:
        return "–".join(self._ends) + ("" if self.limit is None else f", limit {self.limit}")

    @property
    def sentence(self) -> str:
        times = {None: "", 1: ", once at most"}
        most = times.get(self.limit, f", at most {self.limit} times")
        return f"returned messages are redelivered after {' to '.join(self._ends)}{most}"

    @property
    def _ends(self) -> dict[str, None]:
        return dict.fromkeys(format_delay(end) for end in (self.shortest, self.longest))


def retry_of(queue: Queue) -> Retry | None:
    """None for a queue that delivers again at once. The longest wait is the shortest by default."""
    arguments = queue.arguments
    shortest = arguments.number("x-delayed-retry-min")
    if (
        queue.type != "quorum"
        or arguments.text("x-delayed-retry-type") not in KINDS
        or shortest is None
        or shortest <= 0
    ):
        return None
    longest = arguments.number("x-delayed-retry-max")
    limit = arguments.number("x-delivery-limit")
    return Retry(
        timedelta(milliseconds=shortest),
        timedelta(milliseconds=max(shortest, longest or 0)),
        limit if limit is not None and limit >= 0 else None,
    )
