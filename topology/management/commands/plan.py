"""Compares a topology's definition with its broker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.core.management.base import CommandParser

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
from topology.provisioning.plan import Plan


class Command(TopologyCommand):
    operation = "GET plan"
    help = (
        "Show what applying a topology would create. Changes nothing. Exit code: 0 if the "
        "topology is applied and in sync, 1 with differences, 2 if the input is wrong or the "
        "broker does not answer."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--without-tap",
            action="store_true",
            help="compare only the objects that an export has, without Delayboard's tap; the "
            "topology need not be applied",
        )

    def act(self, topology: Topology, options: Mapping[str, Any]) -> Result:
        refuse_deleted(topology)
        plan, refusal = provision.preview_plan(topology)
        exported = topology.pattern.definitions(topology.parsed)
        shared = Plan(tuple(one for one in plan.changes if exported.get(one.object.identity)))
        if is_partial := options["without_tap"]:
            plan = shared
        replacing = QueueReplacement.open_of(topology)
        is_stuck = plan.select("conflict") and not replacing
        replacements = replace_queue.preview(topology) if is_stuck else ()
        is_applied = topology.state == State.APPLIED
        is_done = plan.is_empty and not refusal and (is_applied or is_partial)
        lines = [*plan_lines(plan)]
        if replacing:
            lines += (f"Replacement in progress: {row}." for row in replacing)
        elif refusal:
            lines.append(refusal)
        elif not is_applied:
            lines.append("The topology is not applied.")
            if shared.is_empty and not plan.is_empty:
                lines.append(
                    "Only Delayboard's own objects are missing. --without-tap leaves them out."
                )
        lines += replacement_lines(replacements)
        fields = {"in_sync": is_done, "refusal": refusal, "changes": plan_fields(plan)}
        fields["replacing"] = [row.queue for row in replacing]
        fields["replacements"] = replacement_fields(replacements)
        return Result(is_done, tuple(lines), fields)
