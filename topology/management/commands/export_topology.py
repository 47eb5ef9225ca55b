"""Prints a topology for other tools."""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from topology import snapshots
from topology.definitions import Definitions
from topology.exports.names import NotExportable
from topology.management.find_rows import find_topology
from topology.management.input_file import BadInput
from topology.management.topology_command import BAD_INPUT_CODE, FAILED_CODE
from topology.operations.export_topology import FORMATS, export_topology
from topology.patterns.pattern import ParamsError

PATIENCE_SECONDS = 10.0


class Command(BaseCommand):
    help = (
        "Print a topology without its tap: as RabbitMQ definitions, for Terraform, for the "
        "Kubernetes topology operator, or the least permissions on it. Exit code: 0 if it is "
        "printed, 1 if the tool does not support it, 2 if the topology is unknown."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("topology", help="the topology's slug, as in the page's address")
        parser.add_argument("--format", choices=tuple(FORMATS), default="definitions")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            topology = find_topology(options["topology"], error=BadInput)
            # Only permissions contain the names that are bound; without them the line has
            # DESTINATION.
            needs_broker = options["format"] == "permissions"
            known = snapshots.poll(topology.broker, PATIENCE_SECONDS) if needs_broker else None
            found = known.snapshot.definitions if known and known.snapshot else Definitions()
            self.stdout.write(export_topology(topology, options["format"], found), ending="")
        except BadInput as error:
            self.stderr.write(str(error))
            sys.exit(BAD_INPUT_CODE)
        except (NotExportable, ParamsError) as error:
            self.stderr.write(str(error))
            sys.exit(FAILED_CODE)
