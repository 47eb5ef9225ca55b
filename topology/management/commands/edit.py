"""Changes the parameters of a topology."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django.core.management.base import CommandParser

from topology.management.exit_codes import BadInput
from topology.management.topology_command import (
    EXIT_CODES,
    Result,
    TopologyCommand,
    plan_fields,
    refuse_deleted,
    replacement_fields,
    replacement_lines,
)
from topology.models import Topology
from topology.operations import edit_topology
from topology.provisioning.edit import Edit


class Command(TopologyCommand):
    operation = "POST edit"
    help = (
        "Change parameters of a topology: create new objects, and let the worker replace queues "
        f"whose arguments change. Exit code: 0 if the change is requested, {EXIT_CODES} With "
        "--dry-run, 1 also if the change would be refused."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "values", nargs="+", metavar="NAME=VALUE", help="a parameter, for example delay=30s"
        )
        self.add_confirmation(
            parser,
            "show the changes only",
            "the topology's name, to change it on a production broker",
        )

    def act(self, topology: Topology, options: Mapping[str, Any]) -> Result:
        refuse_deleted(topology)
        edit_topology.refuse_without_parameters(topology)
        values = {**topology.params, **_read(topology, options["values"])}
        if options["dry_run"]:
            found = edit_topology.preview_edit(topology, values)
            lines = found.refusals or (*_lines(found), found.unchanged)
            fields = {"dry_run": True, "refusals": list(found.refusals), **_fields(found)}
            end = "Dry run: Delayboard changed nothing."
            return Result(not found.refusals, (*filter(None, lines), end), fields)
        user, name = options.get("user"), options["confirm"]
        done = edit_topology.edit(user, topology, values, typed_name=name)
        return Result(True, (f"Parameters changed. {done.outcome}".strip(),), _fields(done))

    def make_body(self, options: Mapping[str, Any]) -> dict[str, Any]:
        pairs = [text.partition("=") for text in options["values"]]
        if wrong := [name for name, equals, _ in pairs if not equals]:
            raise BadInput(f"“{wrong[0]}” is not a parameter. Write NAME=VALUE.")
        values = {name: value for name, _, value in pairs}
        return {"values": values, **super().make_body(options)}


def _read(topology: Topology, texts: Iterable[str]) -> dict[str, str]:
    """Raises BadInput."""
    known = [field.name for field in topology.pattern.FIELDS]
    values = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or name not in known:
            raise BadInput(
                f"“{text}” is not a parameter of this topology. Write NAME=VALUE with one of: "
                f"{', '.join(known)}."
            )
        values[name] = value
    return values


def _lines(found: Edit) -> Iterable[str]:
    yield from (f"+ {change.title}" for change in found.plan.changes)
    for number, one in enumerate(found.reroutes, start=1):
        yield f"Key {number} of {len(found.reroutes)} that leads to another queue:"
        yield from (f"    {step}" for step in one.steps)
    yield from replacement_lines(one for one in found.queues if not one.refusal)
    yield from found.kept_sentences


def _fields(found: Edit) -> dict[str, Any]:
    return {
        "changes": plan_fields(found.plan),
        "reroutes": [{"binding": one.stored, "from": one.old} for one in found.reroutes],
        "kept": [list(one.identity) for one in found.kept],
        "replacements": replacement_fields(found.queues),
    }
