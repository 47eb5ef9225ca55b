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
    replacement_fields,
    replacement_lines,
)
from topology.models import Topology
from topology.operations import provision, replace_queue


class Command(TopologyCommand):
    operation = "POST apply"
    help = (
        "Apply a topology: create its missing objects in the broker and start monitoring. Exit "
        f"code: 0 if all objects exist now, {EXIT_CODES} With --dry-run, 1 also if the plan "
        "cannot be applied."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--replace",
            action="store_true",
            help="let the worker replace the queues whose arguments differ; nothing else is done",
        )
        self.add_confirmation(
            parser,
            "show the plan, change nothing",
            "the topology's name, to replace queues on a production broker",
        )

    def act(self, topology: Topology, options: Mapping[str, Any]) -> Result:
        refuse_deleted(topology)
        if options["replace"]:
            return _replace(topology, options)
        if options["dry_run"]:
            plan, refusal = provision.preview_plan(topology)
            lines = (*plan_lines(plan), refusal or "Dry run: Delayboard changed nothing.")
            fields = {"dry_run": True, "refusal": refusal, "changes": plan_fields(plan)}
            return Result(not refusal, lines, fields)
        applied = provision.apply(options.get("user"), topology)
        fields = {"created": applied.created, "changes": plan_fields(applied.plan)}
        return Result(True, (applied.sentence,), fields)


def _replace(topology: Topology, options: Mapping[str, Any]) -> Result:
    if options["dry_run"]:
        found = replace_queue.preview(topology)
        fields = {"dry_run": True, "replacements": replacement_fields(found)}
        is_good = any(not one.refusal for one in found)
        lines = (*replacement_lines(found), "Dry run: Delayboard changed nothing.")
        return Result(is_good, lines, fields)
    queues = replace_queue.request(options.get("user"), topology, typed_name=options["confirm"])
    return Result(True, (replace_queue.describe_request(queues),), {"requested": list(queues)})
