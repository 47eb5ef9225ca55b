"""Whether a replayed message would be delivered, by its predicted route: pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from topology.broker.properties.raw import is_excluded
from topology.content.text import count_of
from topology.definitions import is_tap
from topology.delays import milliseconds
from topology.message import Headers
from topology.routing.walk import Walk
from topology.snapshot import QueueNumbers, Snapshot

_NONE = QueueNumbers()
RETURNED = (
    "RabbitMQ returns what an exchange of this type delays, so the publish is not confirmed. The "
    "message remains in this queue, and a copy may arrive."
)
# The worst first; a walk calls “dropped” what a replay calls lost.
_WORST = {"dropped": "lost", "stuck": "stuck", "uncertain": "uncertain", "delivered": "delivered"}


@dataclass(frozen=True)
class Verdict:
    """The predicted outcome of a replay; not good when the message is lost or loops back.

    `ending` and `after_ms` are those of a ReplayRoute.
    """

    is_good: bool
    sentence: str
    ending: str = "delivered"
    after_ms: int = 0


def make_refused(why: str) -> Verdict:
    """It cannot be published at all."""
    return Verdict(False, why, "refused")


def make_guarded(verdict: Verdict, replays: int) -> Verdict:
    """The same of a message that was replayed too often already."""
    if verdict.ending == "refused":
        return verdict
    times, each = ("once", "") if replays == 1 else (f"{replays} times", " each time")
    sentence = f"It was replayed {times} already and dead-lettered again{each}. {verdict.sentence}"
    return replace(verdict, is_good=False, sentence=sentence, ending="guarded")


def keep_replayed_headers(headers: Headers) -> Headers:
    """Those of a message that a replay sends again."""
    return {name: value for name, value in headers.items() if not is_excluded(name)}


def add_limits(verdict: Verdict, limited: Collection[LimitedQueue]) -> Verdict:
    """The same with these queues that the message enters; not good when one of them is full."""
    sentence = " ".join([verdict.sentence, *(one.sentence for one in limited)])
    if verdict.is_good and any(one.is_full for one in limited):
        return replace(verdict, is_good=False, sentence=sentence, ending="full")
    return replace(verdict, sentence=sentence)


def make_verdict(walked: Walk, source: str) -> Verdict:
    """The verdict on a walk for a message from the queue `source`."""
    endings = {outcome.ending for outcome in walked.outcomes}
    if not walked.is_routed:
        first = walked.outcomes[0]
        kept = f"{first.kept}, then " if first.kept else ""
        ending = "uncertain" if "uncertain" in endings else "unroutable"
        return Verdict(False, f"No route: {kept}{first.why}.", ending)
    worst = next(name for ending, name in _WORST.items() if ending in endings)
    after_ms = max(milliseconds(outcome.after) for outcome in walked.outcomes)
    sentence = " ".join(outcome.sentence for outcome in walked.outcomes)
    if walked.is_only_kept:
        return Verdict(False, f"{sentence} {RETURNED}", "unroutable")
    if any(hop.queue == source for hop in walked.hops):
        return Verdict(
            False, f"The message would return to {source}. {sentence}", "loops", after_ms
        )
    return Verdict(worst == "delivered", sentence, worst, after_ms)


@dataclass(frozen=True)
class LimitedQueue:
    """`most` and `most_bytes` are None without such a limit; `has` (ready) is None when unknown."""

    name: str
    most: int | None
    most_bytes: int | None
    has: int | None
    is_consumed: bool

    @property
    def is_full(self) -> bool:
        """Whether it has its maximum of messages and no consumer; bytes are not known."""
        if self.is_consumed or self.most is None or self.has is None:
            return False
        return self.has >= self.most

    @property
    def sentence(self) -> str:
        stated = ((self.most, "message"), (self.most_bytes, "byte"))
        limits = [count_of(number, unit) for number, unit in stated if number is not None]
        most = f"“{self.name}” has a maximum length of {' or '.join(limits)}"
        if self.has is None:
            return f"{most}. Its number of messages is unknown."
        return f"{most}, and {count_of(self.has, 'message')} now."


def find_limited_queues(snapshot: Snapshot) -> Mapping[str, LimitedQueue]:
    """The queues with a maximum length by name; a stream's is how long it keeps what was read."""
    found = {}
    for queue in snapshot.definitions.queues:
        most = queue.arguments.number("x-max-length")
        most_bytes = queue.arguments.number("x-max-length-bytes")
        if queue.type == "stream" or is_tap(queue.name) or (most is None and most_bytes is None):
            continue
        numbers = snapshot.numbers.get(queue.name, _NONE)
        # Those that a consumer holds do not count.
        has = numbers.messages if numbers.ready is None else numbers.ready
        found[queue.name] = LimitedQueue(queue.name, most, most_bytes, has, bool(numbers.consumers))
    return found
