"""Plans topologies from exported definitions."""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import CommandParser

from topology.broker.management.definitions_file import NotDefinitions
from topology.content.text import visible
from topology.management.command import BoardCommand
from topology.management.exit_codes import BadInput, ExitCode
from topology.management.find_rows import find_broker
from topology.management.input_file import read_json
from topology.operations.definitions_files import import_definitions
from topology.operations.ownership import Refusal


class Command(BoardCommand):
    help = (
        "Plan the topologies that exported definitions have. The broker is not changed: check "
        "each with the command plan, then apply it. Exit code: 0 if at least one is planned, 1 if "
        "none is, 2 if the input cannot be read."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("broker", help="the broker's slug, as in the page's address")
        parser.add_argument("file", help="exported definitions, or - for standard input")
        parser.add_argument("--vhost", help="the virtual host in the file, if it has several")

    def handle(self, *args: Any, **options: Any) -> None:
        broker = find_broker(options["broker"])
        document = read_json(options["file"])
        try:
            imported = import_definitions(None, broker, document, options["vhost"])
        except (NotDefinitions, Refusal) as error:
            raise BadInput(str(error)) from error
        for topology in imported.planned:
            self.stdout.write(visible(f"Planned: {topology.slug} ({topology.kind})"))
        for sentence in imported.skipped:
            self.stderr.write(visible(sentence))
        self.stdout.write(imported.sentence)
        if not imported.planned:
            sys.exit(ExitCode.NO)
