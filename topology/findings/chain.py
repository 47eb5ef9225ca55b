"""The way of a message through the first object of a finding, to draw."""

from __future__ import annotations

from topology.definitions import Binding, Queue
from topology.findings.context import Context
from topology.findings.finding import Finding
from topology.routing.outcome import Walk
from topology.routing.trace_route import Answer, Question, ask, find_path
from topology.snapshot import Snapshot


def chain_of(finding: Finding, snapshot: Snapshot) -> Answer | None:
    """None where there is nothing to draw, as for an object that is gone."""
    obj = snapshot.definitions.get(finding.objects[0])
    if obj is None:
        return None
    context = Context(snapshot)
    match obj:
        case Binding():
            question = Question(obj.source, obj.routing_key, without_consumers=True)
            return ask(question, snapshot, context.index)
        case Queue() if obj.dead_letter_exchange is not None and obj.type != "stream":
            # Where its messages may have any key, one that nothing else uses.
            reasons, keys = context.reasons(obj), context.keys(obj)
            reason = reasons[0] if reasons else "rejected"
            walked = context.die(obj, reason, keys[0] if keys else "")
            return Answer(walked, find_path(context.index, walked, {}, context.version))
    return Answer(Walk(()), snapshot.definitions.only([obj.identity]))
