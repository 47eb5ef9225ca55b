"""Where would this go? A publish that nobody makes, its walk, and the way that it takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from topology.definitions import Definitions, Identity
from topology.delays import format_delay, milliseconds
from topology.message import Forwarder
from topology.routing.context import Consumer
from topology.routing.matching.index import Index
from topology.routing.matching.match import keys_of, steps
from topology.routing.outcome import Hop, RouteOutcome, Walk
from topology.routing.sentences import PUBLISHED
from topology.routing.walk import walk
from topology.snapshot import Snapshot


@dataclass(frozen=True)
class Question:
    """A publish to predict; the exchange "" is the default one.

    `expiration` is the property as text. `rejecting` names queues whose consumer rejects every
    message; other consumers ack, unless `without_consumers`.
    """

    exchange: str
    routing_key: str
    headers: Mapping[str, Any] = field(default_factory=dict)
    expiration: str | None = None
    rejecting: Sequence[str] = ()
    without_consumers: bool = False


@dataclass(frozen=True)
class Answer:
    """The walk, the exchanges, queues and bindings that it passes, and the forwarders at work."""

    walk: Walk
    path: Definitions
    forwarders: tuple[Forwarder, ...] = ()

    @property
    def identities(self) -> frozenset[Identity]:
        return frozenset(obj.identity for obj in self.path)


def ask(
    question: Question,
    snapshot: Snapshot,
    index: Index | None = None,
    *,
    forwarders: Sequence[Forwarder] = (),
    now_ms: int = 0,
) -> Answer:
    """Walk the current vhost, without Delayboard's own taps.

    `index` is that of the snapshot without taps, for callers that have it. `now_ms` is the time of
    the publish in UTC, for the headers that the `forwarders` read; these always run.
    """
    index = index or Index(snapshot.definitions.without_taps())
    rejecting = dict.fromkeys(question.rejecting, Consumer("rejects"))
    walked = walk(
        index,
        question.exchange,
        question.routing_key,
        version=snapshot.version_tuple,
        headers=question.headers,
        expiration=question.expiration,
        consumed=frozenset() if question.without_consumers else snapshot.consumed,
        consumers=rejecting,
        forwarders=forwarders,
        now_ms=now_ms,
    )
    path = find_path(index, walked, question.headers, snapshot.version_tuple)
    return Answer(walked, path, tuple(forwarders))


def as_json(answer: Answer) -> dict[str, Any]:
    """What `walk --json` prints: every copy's outcome with its hops, times in milliseconds.

    `later_at_most_ms` is null where nothing bounds it.
    """
    return {
        "routed": answer.walk.is_routed,
        "outcomes": [_outcome(outcome) for outcome in answer.walk.outcomes],
        "sentences": [
            line
            for number, outcome in enumerate(answer.walk.outcomes, start=1)
            for line in (f"Copy {number}", *_describe(outcome))
        ],
    }


def _describe(outcome: RouteOutcome) -> Iterator[str]:
    for hop in outcome.hops:
        when = f"after {format_delay(hop.after)}" if hop.after else "at once"
        stays = "waits in"
        if hop.wait is not None:
            stays = f"waits {format_delay(hop.wait)} in" if hop.wait else "passes"
        through = hop.exchange or "the default exchange"
        sentence = f"  {when}: {stays} {hop.queue}, through {through} with {hop.routing_key!r}"
        yield sentence if hop.why == PUBLISHED else f"{sentence}; {hop.why}"
    if outcome.kept and not outcome.hops:
        yield f"  at once: {outcome.kept}"
    yield f"  {outcome.ending}: {outcome.why}"
    yield from (f"  doubt: {doubt}" for doubt in outcome.doubts)


def _outcome(outcome: RouteOutcome) -> dict[str, Any]:
    return {
        "ending": outcome.ending,
        "queue": outcome.queue,
        "after_ms": milliseconds(outcome.after),
        "later_at_most_ms": None if outcome.spread is None else milliseconds(outcome.spread),
        "why": outcome.why,
        "doubts": list(outcome.doubts),
        "hops": [_hop(hop) for hop in outcome.hops],
    }


def _hop(hop: Hop) -> dict[str, Any]:
    return {
        "exchange": hop.exchange,
        "routing_key": hop.routing_key,
        "queue": hop.queue,
        "after_ms": milliseconds(hop.after),
        "wait_ms": None if hop.wait is None else milliseconds(hop.wait),
        "why": hop.why,
    }


def find_path(
    index: Index, walked: Walk, headers: Mapping[str, Any], version: tuple[int, ...]
) -> Definitions:
    """The objects of every hop, with the bindings that took the message from one to the next."""
    passed: set[Identity] = set()
    for hop in walked.hops:
        passed.add(("queue", hop.queue))
        passed |= _find_exchanges_between(index, hop, headers, version)
    for outcome in walked.outcomes:
        last = outcome.hops[-1].queue if outcome.hops else ""
        dead = index.queues[last].dead_letter_exchange if last in index.queues else None
        if outcome.ending != "delivered" and dead:
            passed.add(("exchange", dead))
    return index.definitions.only(passed)


def _find_exchanges_between(
    index: Index, hop: Hop, headers: Mapping[str, Any], version: tuple[int, ...]
) -> set[Identity]:
    """The exchanges from that of the publish, over others, to the queue of this hop.

    CC and BCC are routed by the first exchange too, so their keys are matched with it.
    """
    keys = (hop.routing_key, *_read_copy_keys(headers))
    came_from: dict[str, set[str]] = {}
    ends: set[str] = set()
    for step in steps(index, hop.exchange, keys, headers, version):
        if hop.queue in step.queues:
            ends.add(step.exchange.name)
        for target in step.further:
            came_from.setdefault(target, set()).add(step.exchange.name)
    passed = _find_sources(ends, came_from)
    exchanges: set[Identity] = {("exchange", name) for name in passed}
    return exchanges | {
        binding.identity
        for binding in index.definitions.bindings
        if binding.source in passed
        and (
            binding.destination == hop.queue
            if binding.destination_is_queue
            else binding.destination in passed
        )
    }


def _find_sources(ends: set[str], came_from: Mapping[str, set[str]]) -> set[str]:
    """All exchanges from which these ends were reached."""
    passed, waiting = set(ends), list(ends)
    while waiting:
        for name in came_from.get(waiting.pop(), ()):
            if name not in passed:
                passed.add(name)
                waiting.append(name)
    return passed


def _read_copy_keys(headers: Mapping[str, Any]) -> tuple[str, ...]:
    try:
        return keys_of("", headers)[1:]
    except ValueError:
        return ()
