"""Taps of Delayboard that receive what nobody else does."""

from __future__ import annotations

from collections.abc import Iterator

from topology.definitions import is_tap
from topology.findings.context import Context
from topology.findings.evidence import Hit
from topology.findings.finding import rule


def _tap_alone(context: Context) -> Iterator[Hit]:
    declared = context.snapshot.declared
    for one in declared.exchanges:
        bound = declared.leaving(one.name)
        if not bound or not all(is_tap(each.destination) for each in bound):
            continue
        for tap in sorted({each.destination for each in bound}):
            sentence = f"Only the tap “{tap}” is bound to the exchange “{one.name}”."
            if alternate := one.arguments.text("alternate-exchange"):
                sentence += f" The alternate exchange “{alternate}” gets no message that it takes."
            unbind = [
                context.admin.unbind(one.name, tap, each.routing_key)
                for each in declared.leads(one.name, tap)
            ]
            evidence = context.evidence_of(one.identity, "bindings", str(len(bound)), sentence)
            yield Hit(one.name, evidence, tuple(unbind))


TAP_ALONE = rule("F14", _tap_alone)
