"""What a broker did against what the walk said, case by case."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from tests.real_broker.proof.case import Case
from tests.real_broker.proof.play import Seen
from topology.routing.outcome import Walk

# Quorum queues count in whole milliseconds from the last full one (rabbit_fifo.erl).
EARLY_SECONDS_A_HOP = 0.001


@dataclass(frozen=True)
class Disagreement:
    name: str
    case: Case
    walked: Walk
    what: str

    def __str__(self) -> str:
        case = self.case
        lines = [
            f"{self.name}: {self.what}",
            f"published to {case.exchange!r} with {case.routing_key!r}, {dict(case.headers)}, "
            f"expiration {case.expiration}; consumers {dict(case.consumers)}",
            *(f"  {obj}" for obj in case.definitions),
            *(f"  said: {o.ending} {o.queue} {o.after}: {o.why}" for o in self.walked.outcomes),
            *(f"    {hop.queue} at {hop.after}: {hop.why}" for hop in self.walked.hops),
        ]
        return "\n".join(lines)


def disagreements(
    cases: Mapping[str, Case], walks: Mapping[str, Walk], seen: Seen, left: Mapping[str, int]
) -> list[Disagreement]:
    """`left` is how many messages each queue still has."""
    return [
        Disagreement(name, case, walks[name], what)
        for name, case in cases.items()
        if (what := _difference(name, case, walks[name], seen, left))
    ]


def _difference(name: str, case: Case, walked: Walk, seen: Seen, left: Mapping[str, int]) -> str:
    if (name in seen.returned) == walked.is_routed:
        return f"routed: {name not in seen.returned}, said {walked.is_routed}"
    where = Counter(
        {q.name: n for q in case.definitions.queues if (n := len(_times(name, q.name, seen)))}
    )
    said = Counter(outcome.queue for outcome in walked.delivered)
    if where != said:
        return f"taken {dict(where)}, said {dict(said)}"
    stayed = Counter({q.name: left[q.name] for q in case.definitions.queues if left.get(q.name)})
    held = Counter(o.queue for o in walked.outcomes if o.ending == "stuck")
    if stayed != held:
        return f"still there {dict(stayed)}, said {dict(held)}"
    return _early(name, walked, seen)


def _early(name: str, walked: Walk, seen: Seen) -> str:
    allowed = EARLY_SECONDS_A_HOP * max(len(outcome.hops) for outcome in walked.outcomes)
    early = min(lateness(name, walked, seen), default=0.0)
    return f"{-early:.4f} s earlier than said" if early < -allowed else ""


def lateness(name: str, walked: Walk, seen: Seen) -> list[float]:
    """How many seconds after the said time each copy came; the soonest to the soonest."""
    found = []
    for queue in {outcome.queue for outcome in walked.delivered}:
        said = sorted(o.after.total_seconds() for o in walked.delivered if o.queue == queue)
        came = sorted(at - seen.published[name] for at in _times(name, queue, seen))
        found += [at - after for at, after in zip(came, said, strict=False)]
    return found


def _times(name: str, queue: str, seen: Seen) -> list[float]:
    return [at for taken, at in seen.taken.get(queue, ()) if taken == name]
