"""Compares a topology's definition with its broker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from topology.management.topology_command import (
    Result,
    TopologyCommand,
    plan_fields,
    plan_lines,
    refuse_deleted,
    replacement_fields,
    replacement_lines,
)
from topology.models import QueueReplacement, State, Topology
from topology.operations import provision, replace_queue


class Command(TopologyCommand):
    help = (
        "Show what applying a topology would create. Changes nothing. Exit code: 0 if the "
        "topology is applied and in sync, 1 with differences or if the command failed, 2 if the "
        "topology is unknown."
    )

    def act(self, topology: Topology, options: Mapping[str, Any]) -> Result:
        refuse_deleted(topology)
        plan, refusal = provision.preview_plan(topology)
        replacing = QueueReplacement.open_of(topology)
        is_stuck = plan.select("conflict") and not replacing
        replacements = replace_queue.preview(topology) if is_stuck else ()
        is_done = plan.is_empty and not refusal and topology.state == State.APPLIED
        lines = [*plan_lines(plan)]
        if replacing:
            lines += (f"Replacement in progress: {row}." for row in replacing)
        elif refusal:
            lines.append(refusal)
        elif topology.state != State.APPLIED:
            lines.append("The topology is not applied.")
        lines += replacement_lines(replacements)
        fields = {"in_sync": is_done, "refusal": refusal, "changes": plan_fields(plan)}
        fields["replacing"] = [row.queue for row in replacing]
        fields["replacements"] = replacement_fields(replacements)
        return Result(is_done, tuple(lines), fields)
