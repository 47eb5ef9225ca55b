"""Runs one topology's forwarder alone, as the worker would."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from delayboard.worker.supervise import run_alone
from delayboard.worker.tasks import forwarder_of
from topology.management.command import BoardCommand
from topology.management.find_rows import find_topology
from topology.models import State, Topology


class Command(BoardCommand):
    requires_system_checks = "__all__"
    help = "Forward due messages of a topology that needs a forwarder until stopped."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("topology", help="the topology's slug, as in its page's address")

    def handle(self, *args: Any, **options: Any) -> None:
        topology = _topology(options["topology"])
        run_alone(self, f"forwarder of {topology.name}", forwarder_of(topology))


def _topology(slug: str) -> Topology:
    """Raises CommandError for one that is not there, has no forwarder of ours or is not applied."""
    topology = find_topology(slug)
    if topology.is_read_by_others:
        raise CommandError(
            f"The topology “{slug}” is adopted, so a consumer outside Delayboard forwards its "
            "messages. A second forwarder would conflict with that consumer."
        )
    if not topology.forwarders:
        kind = topology.pattern.EXPLANATION.title
        raise CommandError(f"The topology “{slug}” ({kind}) needs no forwarder.")
    if topology.state != State.APPLIED:
        raise CommandError(
            f"The topology “{slug}” is {topology.get_state_display()}. Apply it first."
        )
    return topology
