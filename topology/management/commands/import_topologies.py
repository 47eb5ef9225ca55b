"""Plans topologies from exported definitions."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from django.core.management.base import CommandParser

from topology.broker.management.definitions_file import NotDefinitions
from topology.content.text import visible
from topology.management.exit_codes import BadInput, ExitCode
from topology.management.find_rows import find_broker
from topology.management.input_file import read_json
from topology.management.server import ServedCommand, Server
from topology.operations.definitions_files import import_definitions, make_import_record
from topology.operations.ownership import Refusal


class Command(ServedCommand):
    help = (
        "Plan the topologies that exported definitions have. The broker is not changed: check "
        "each with the command plan, then apply it. Exit code: 0 if at least one is planned, 1 if "
        "none is, 2 if the input cannot be read."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("broker", help="the broker's slug, as in the page's address")
        parser.add_argument("file", help="exported definitions, or - for standard input")
        parser.add_argument("--vhost", help="the virtual host in the file, if it has several")

    def work(self, options: Mapping[str, Any]) -> None:
        broker = find_broker(options["broker"])
        document = read_json(options["file"])
        try:
            imported = import_definitions(None, broker, document, options["vhost"])
        except (NotDefinitions, Refusal) as error:
            raise BadInput(str(error)) from error
        self._print(make_import_record(imported))

    def ask(self, server: Server, options: Mapping[str, Any]) -> None:
        body = {"definitions": read_json(options["file"]), "vhost": options["vhost"]}
        path = f"brokers/{quote(options['broker'], safe='')}/topologies/import"
        self._print(server.post(path, body))

    def _print(self, document: Mapping[str, Any]) -> None:
        for one in document["planned"]:
            self.stdout.write(visible(f"Planned: {one['topology']} ({one['kind']})"))
        for sentence in document["skipped"]:
            self.stderr.write(visible(sentence))
        self.stdout.write(document["sentence"])
        if not document["planned"]:
            sys.exit(ExitCode.NO)
