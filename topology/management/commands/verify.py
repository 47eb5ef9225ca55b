"""Verifies a topology against its broker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from topology.management.topology_command import (
    EXIT_CODES,
    Result,
    TopologyCommand,
    plan_fields,
    plan_lines,
    refuse_deleted,
)
from topology.models import Topology
from topology.operations import provision
from topology.provisioning.verify import Verification


class Command(TopologyCommand):
    operation = "POST verify"
    help = (
        "Verify a topology: compare every argument and trace the route of a probe for each delay. "
        "Changes and publishes nothing. Exit code: 0 if every check passes, 1 if a check fails, "
        f"{EXIT_CODES}"
    )

    def act(self, topology: Topology, options: Mapping[str, Any]) -> Result:
        refuse_deleted(topology)
        verdict = provision.check(options.get("user"), topology)
        lines = (
            *plan_lines(verdict.plan),
            *(f"{'ok' if one.holds else 'FAILED'}: {one.sentence}" for one in verdict.checks),
            *(f"not tried: {sentence}" for sentence in verdict.untried),
            _sum_up(verdict),
        )
        checks = [{"holds": one.holds, "sentence": one.sentence} for one in verdict.checks]
        fields = {
            "holds": verdict.holds,
            "checks": checks,
            "not_tried": list(verdict.untried),
            "changes": plan_fields(verdict.plan),
        }
        return Result(verdict.holds, lines, fields)


def _sum_up(verdict: Verification) -> str:
    if not verdict.holds:
        return "At least one check failed."
    if verdict.untried:
        return "All checks passed, but not every route was tried."
    return "All checks passed."
