"""Compares a topology with its definition, and predicts whether messages arrive: pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from topology.content.text import count_of
from topology.definitions import Binding, Definitions, Exchange, Queue
from topology.delays import format_delay
from topology.message import Forwarder, Route
from topology.patterns.pattern import MADE_UP, Pattern
from topology.provisioning.destinations import count_stuck, find_unroutable
from topology.provisioning.plan import Plan, make_plan
from topology.routing.walk import Walk, walk
from topology.snapshot import Snapshot

# A destination that is tried as a queue and as an exchange, for it may be either.
MADE_UP_DESTINATION = Definitions.of(
    [Queue(MADE_UP), Exchange(MADE_UP, "fanout"), Binding(MADE_UP, MADE_UP, "")]
)

# Who should consume the queue of a forwarder, and the sentence when somebody does.
OUR_FORWARDER = (
    "Delayboard's worker or “manage.py worker --only wait:SLUG”",
    "A forwarder consumes {name}.",
)
OTHERS_FORWARDER = (
    "an external consumer",
    "An external forwarder consumes {name}. Delayboard cannot check what it forwards and when.",
)


@dataclass(frozen=True)
class Check:
    """One thing that was looked at, whether it holds, and a sentence."""

    holds: bool
    sentence: str


@dataclass(frozen=True)
class Verification:
    """`untried` are the routes that were not traced, each with the reason."""

    plan: Plan
    checks: tuple[Check, ...]
    untried: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        return self.plan.is_empty and all(check.holds for check in self.checks)


def verify(
    pattern: Pattern,
    params: Any,
    wanted: Definitions,
    snapshot: Snapshot,
    *,
    is_read_by_others: bool = False,
    problems: Mapping[str, str] | None = None,
) -> Verification:
    """Compare argument by argument, then walk the pattern's probes.

    With `is_read_by_others` its forwarders are not ours: a probe is followed up to them. `problems`
    are unreachable destinations, each with a sentence; the key "" means stuck messages without a
    recorded destination.
    """
    problems = problems or {}
    probes = pattern.trials(params, snapshot.definitions)
    if any(problems):
        probes = [probe for probe in probes if probe[2] != MADE_UP]
    forwarders = pattern.forwarders(params)
    if is_read_by_others:
        checks = [
            _probe_to_others(pattern.route(params, delay, target), forwarder.queue, snapshot)
            for delay, target, _ in probes
            for forwarder in forwarders
        ]
    else:
        checks = [_probe(pattern, params, *probe, snapshot) for probe in probes]
    checks.extend(_reaches(pattern, params, wanted, snapshot, problems))
    waiting = sorted(queue.name for queue in pattern.delay_queues(params, wanted.queues))
    check_consumers = _has_consumer if pattern.is_held(params) else _no_consumer
    checks.extend(check_consumers(name, snapshot) for name in waiting)
    who = OTHERS_FORWARDER if is_read_by_others else OUR_FORWARDER
    checks.extend(_waits(forwarder.queue, snapshot, who) for forwarder in forwarders)
    untried = tuple(pattern.untried(params, snapshot.definitions))
    return Verification(make_plan(wanted, snapshot), tuple(checks), untried)


def _reaches(
    pattern: Pattern,
    params: Any,
    wanted: Definitions,
    snapshot: Snapshot,
    problems: Mapping[str, str],
) -> Iterator[Check]:
    """What of these problems is still there, and what is stuck beside."""
    names = [name for name in problems if name]
    unroutable = find_unroutable(pattern, params, names, snapshot)
    queues = [queue for one in wanted.queues if (queue := snapshot.definitions.queue(one.name))]
    stuck = count_stuck(queues, snapshot) or {}
    for name, sentence in problems.items():
        if name in unroutable or stuck:
            yield Check(False, sentence)
        elif name:
            yield Check(True, f"A route to destination “{name}” exists again.")
    if stuck and not problems:
        where = ", ".join(sorted(stuck))
        many = count_of(sum(stuck.values()), "message", "is")
        yield Check(False, f"{many} stuck in {where}. RabbitMQ cannot route them.")


def _probe(
    pattern: Pattern, params: Any, delay: timedelta, target: str, queue: str, snapshot: Snapshot
) -> Check:
    """`queue` is where it must arrive, "" for any."""
    route = pattern.route(params, delay, target)
    made_up = MADE_UP_DESTINATION if queue == MADE_UP else Definitions()
    walked = _walk_route(route, snapshot.definitions | made_up, pattern.forwarders(params))
    promised = pattern.achievable(params, delay)
    arrivals = [outcome for outcome in walked.delivered if queue in ("", outcome.queue)]
    where = "a destination" if queue == MADE_UP else (queue or target)
    if any(outcome.after == promised for outcome in arrivals):
        return Check(True, f"A probe would arrive in {where} after {format_delay(promised)}.")
    if arrivals:
        real = format_delay(arrivals[0].after)
        return Check(
            False, f"A probe would arrive in {where} after {real}, not {format_delay(promised)}."
        )
    return Check(False, f"A probe would not arrive in {where}: {_why_not(walked)}.")


def _probe_to_others(route: Route, queue: str, snapshot: Snapshot) -> Check:
    """Check the route of a probe as far as the queue that a consumer of others reads: what it does
    next is not known.
    """
    walked = _walk_route(route, snapshot.definitions, ())
    arrived = [outcome for outcome in walked.delivered if outcome.queue == queue]
    if not arrived:
        return Check(False, f"A probe would not arrive in {queue}: {_why_not(walked)}.")
    after = format_delay(arrived[0].after)
    return Check(
        True,
        f"A probe would arrive in {queue} after {after}. An external consumer reads this queue.",
    )


def _walk_route(route: Route, there: Definitions, forwarders: Sequence[Forwarder]) -> Walk:
    return walk(
        there.without_taps() | route.declares,
        route.exchange,
        route.routing_key,
        headers=route.make_headers(0),
        forwarders=forwarders,
    )


def _why_not(walked: Walk) -> str:
    reasons = (outcome.why for outcome in walked.outcomes if outcome.ending != "delivered")
    return "; ".join(reasons) or "no route exists"


def _no_consumer(name: str, snapshot: Snapshot) -> Check:
    numbers = snapshot.numbers.get(name)
    if numbers is None:
        return Check(False, f"The delay queue {name} does not exist.")
    if numbers.consumers:
        return Check(
            False,
            f"{numbers.consumers} consumers read the delay queue {name}. Messages leave it "
            "before they are due.",
        )
    return Check(True, f"The delay queue {name} has no consumers.")


def _has_consumer(name: str, snapshot: Snapshot) -> Check:
    """Check for a consumer of a queue whose consumers hold messages until they are due."""
    numbers = snapshot.numbers.get(name)
    if numbers is None:
        return Check(False, f"The queue {name} does not exist.")
    if not numbers.consumers:
        return Check(False, f"No worker reads {name}, so nothing publishes its messages when due.")
    return Check(True, f"Workers read {name}.")


def _waits(name: str, snapshot: Snapshot, who: tuple[str, str]) -> Check:
    """`who` should consume; the text says what it does when somebody consumes."""
    should, is_there = who
    numbers = snapshot.numbers.get(name)
    if numbers is None:
        return Check(False, f"The forwarder's queue {name} does not exist.")
    if not numbers.consumers:
        sentence = f"{name} has no consumer, so no message leaves the delay. Start {should}."
        return Check(False, sentence)
    return Check(True, is_there.replace("{name}", name))
