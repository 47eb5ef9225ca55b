"""Prints a topology for other tools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from django.core.management.base import CommandError, CommandParser

from topology import snapshots
from topology.definitions import Definitions
from topology.exports.resources import NotExportable
from topology.management.find_rows import find_topology
from topology.management.server import ServedCommand, Server
from topology.operations.definitions_files import FORMATS, export_topology

PATIENCE_SECONDS = 10.0


class Command(ServedCommand):
    help = (
        "Print a topology without its tap: as RabbitMQ definitions, for Terraform, for the "
        "Kubernetes topology operator, or the least permissions on it, also for clients that "
        "declare it. Exit code: 0 if it is printed, 1 if the tool does not support it, 2 if the "
        "topology does not exist."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("topology", help="the topology's slug, as in the page's address")
        parser.add_argument(
            "--format", choices=tuple(FORMATS), default="definitions", help="default: definitions"
        )

    def work(self, options: Mapping[str, Any]) -> None:
        topology = find_topology(options["topology"])
        # Only permissions contain the names that are bound; without them the line has DESTINATION.
        needs_broker = options["format"].startswith("permissions")
        known = snapshots.poll(topology.broker, PATIENCE_SECONDS) if needs_broker else None
        found = known.snapshot.definitions if known and known.snapshot else Definitions()
        try:
            exported = export_topology(topology, options["format"], found)
        except NotExportable as error:
            raise CommandError(str(error)) from error
        self.stdout.write(exported, ending="")

    def ask(self, server: Server, options: Mapping[str, Any]) -> None:
        path = f"topologies/{quote(options['topology'], safe='')}/export"
        for line in server.read("GET", path, {"format": options["format"]}):
            self.stdout.write(line.decode(), ending="")
