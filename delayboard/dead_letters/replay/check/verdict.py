"""Where a dead letter would go back to and what would become of it there: pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from topology.broker.properties.raw import is_left_out
from topology.deaths import Death, History
from topology.definitions import Definitions
from topology.delays import format_delay, milliseconds
from topology.message import Headers
from topology.routing.matching.index import Index
from topology.routing.walk import RouteOutcome, Walk, walk

GIVEN_BACK = (
    "An exchange of this type gives back what it keeps, so that nothing confirms it: the message "
    "stays in this queue too, and a copy of it may be on its way."
)
# The worst first; a walk calls “dropped” what a replay calls lost.
_WORST = {"dropped": "lost", "stuck": "stuck", "uncertain": "uncertain", "delivered": "delivered"}


@dataclass(frozen=True)
class Target:
    """Where to publish a replay; `why` says how it was found."""

    exchange: str
    routing_key: str
    why: str


@dataclass(frozen=True)
class Verdict:
    """What the walk says of a replay; not good when it is lost or loops back.

    `ending` and `after_ms` are those of a ReplayRoute. `enters` are the queues that it gets into,
    each with whether it is published there and does not come from another queue.
    """

    is_good: bool
    sentence: str
    ending: str = "delivered"
    after_ms: int = 0
    enters: tuple[tuple[str, bool], ...] = field(default=(), compare=False)


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


def find_default_target(
    history: History, found: Definitions | Index, delay_queues: Collection[str]
) -> Target | None:
    """The exchange and key of the earliest death that was no expiry; None without one.

    If all are `expired`, the earliest in a queue that is no known delay. When the walk from
    there reaches any other queue than the one it died in, that queue itself, through the
    default exchange, so that a fanout does not hand copies to those that had theirs.
    """
    death = find_first_death(history, delay_queues)
    return None if death is None else find_target(death, Index.of(found))


def find_first_death(history: History, delay_queues: Collection[str]) -> Death | None:
    """The death that tells where a message came from."""
    return history.first_failure or next(
        (death for death in history.deaths if death.queue not in delay_queues), None
    )


def find_target(death: Death, index: Index) -> Target | None:
    """The default target of a message that died so; None where there is no such queue any more."""
    if reaches_only(index, death):
        key = death.routing_keys[0] if death.routing_keys else ""
        return Target(
            death.exchange, key, f"where it was published before it first died in {death.queue}"
        )
    if death.queue not in index.queues:
        return None
    return Target("", death.queue, f"straight to {death.queue}, where it first died")


def reaches_only(index: Index, death: Death) -> bool:
    key = death.routing_keys[0] if death.routing_keys else ""
    walked = walk(index, death.exchange, key)
    first = {outcome.hops[0].queue for outcome in walked.outcomes if outcome.hops}
    return first == {death.queue}


def keep_replayed_headers(headers: Headers) -> Headers:
    """Those of a message that a replay sends again."""
    return {name: value for name, value in headers.items() if not is_left_out(name)}


def make_verdict(walked: Walk, source: str) -> Verdict:
    """What a walk means for a message that lay in the queue `source`."""
    return replace(_make_verdict(walked, source), enters=_find_entered(walked))


def _find_entered(walked: Walk) -> tuple[tuple[str, bool], ...]:
    found: dict[str, bool] = {}
    for outcome in walked.outcomes:
        for place, hop in enumerate(outcome.hops):
            found[hop.queue] = found.get(hop.queue, True) and place == 0 and not outcome.kept
    return tuple(found.items())


def _make_verdict(walked: Walk, source: str) -> Verdict:
    endings = {outcome.ending for outcome in walked.outcomes}
    if not walked.is_routed:
        first = walked.outcomes[0]
        kept = f"{first.kept}, then " if first.kept else ""
        ending = "uncertain" if "uncertain" in endings else "unroutable"
        return Verdict(False, f"No route: {kept}{first.why}.", ending)
    worst = next(name for ending, name in _WORST.items() if ending in endings)
    after_ms = max(milliseconds(outcome.after) for outcome in walked.outcomes)
    sentence = " ".join(_describe_outcomes(walked))
    if walked.is_only_kept:
        return Verdict(False, f"{sentence} {GIVEN_BACK}", "unroutable")
    if any(hop.queue == source for hop in walked.hops):
        return Verdict(
            False, f"The message would return to {source}. {sentence}", "loops", after_ms
        )
    return Verdict(worst == "delivered", sentence, worst, after_ms)


def _describe_outcomes(walked: Walk) -> list[str]:
    return [_describe_outcome(outcome) for outcome in walked.outcomes]


def _describe_outcome(outcome: RouteOutcome) -> str:
    sentence = _describe_ending(outcome)
    return (
        f"{outcome.kept[0].upper()}{outcome.kept[1:]}, then {sentence[0].lower()}{sentence[1:]}"
        if outcome.kept
        else sentence
    )


def _describe_ending(outcome: RouteOutcome) -> str:
    after = format_delay(outcome.after)
    if outcome.ending == "delivered":
        on = f": {outcome.goes_on}" if outcome.goes_on else ""
        return f"Arrives in {outcome.queue} {f'after {after}' if outcome.after else 'at once'}{on}."
    if outcome.ending == "stuck":
        return f"Stuck after {after}: {outcome.why}."
    if outcome.ending == "uncertain":
        return f"Not known after {after}: {outcome.why}."
    return f"Lost after {after}: {outcome.why}."
