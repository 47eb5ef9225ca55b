"""Creates the missing objects of a topology."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.core.management.base import CommandParser

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


class Command(TopologyCommand):
    help = (
        "Apply a topology: create its missing objects in the broker and start monitoring. Exit "
        f"code: 0 if all objects exist now, {EXIT_CODES} With --dry-run, 1 also if the plan "
        "cannot be applied."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--dry-run", action="store_true", help="show the plan, change nothing")

    def act(self, topology: Topology, options: Mapping[str, Any]) -> Result:
        refuse_deleted(topology)
        if options["dry_run"]:
            plan, refusal = provision.preview_plan(topology)
            lines = (*plan_lines(plan), refusal or "Dry run: Delayboard changed nothing.")
            fields = {"dry_run": True, "refusal": refusal, "changes": plan_fields(plan)}
            return Result(not refusal, lines, fields)
        applied = provision.apply(None, topology)
        created = f"{applied.created} created" if applied.created else "all objects exist"
        fields = {"created": applied.created, "changes": plan_fields(applied.plan)}
        return Result(True, (f"Applied: {created}.",), fields)
