"""Whether a replayed message would be delivered, by its predicted route: pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from delayboard.dead_letters.replay.check.full_queues import LimitedQueue
from topology.broker.properties.raw import is_excluded
from topology.delays import milliseconds
from topology.message import Headers
from topology.routing.walk import Walk

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
