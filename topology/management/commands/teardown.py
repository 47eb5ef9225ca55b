"""Deletes what Delayboard created for a topology."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django.core.management.base import CommandParser

from topology.management.topology_command import EXIT_CODES, Result, TopologyCommand, object_fields
from topology.models import State, Topology
from topology.operations import provision
from topology.provisioning.plan import title
from topology.provisioning.teardown import Teardown

NOTHING = Teardown((), (), (), ())


class Command(TopologyCommand):
    operation = "POST teardown"
    help = (
        "Delete the objects that Delayboard created for a topology. Objects that others created "
        f"remain. Exit code: 0 if they are deleted, {EXIT_CODES} With --dry-run, 1 also if the "
        "deletion would be refused."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        self.add_confirmation(
            parser,
            "list the objects only",
            "the topology's name, to delete it with its messages or on a production broker",
        )

    def act(self, topology: Topology, options: Mapping[str, Any]) -> Result:
        if topology.state == State.DELETED:
            return Result(True, ("The topology is already deleted.",), _fields(NOTHING))
        if options["dry_run"]:
            teardown = provision.preview_removal(topology)
            refusal = provision.refusal_of_teardown(topology, teardown, options["confirm"])
            end = refusal or "Dry run: Delayboard changed nothing."
            fields = {"dry_run": True, "refusal": refusal, **_fields(teardown)}
            return Result(not refusal, (*_lines(teardown), end), fields)
        done = provision.remove(options.get("user"), topology, typed_name=options["confirm"])
        return Result(True, (*_lines(done), f"{len(done.deletes)} objects deleted."), _fields(done))


def _lines(teardown: Teardown) -> Iterable[str]:
    yield from (f"- {title(obj)}" for obj in teardown.deletes)
    yield from (f"= {title(obj)}, kept" for obj in teardown.keeps)


def _fields(teardown: Teardown) -> dict[str, Any]:
    return {"deletes": object_fields(teardown.deletes), "keeps": object_fields(teardown.keeps)}
