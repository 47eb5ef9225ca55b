"""Imports an export of parked messages: docs/dead-letters.md."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from django.conf import settings
from django.core.management.base import CommandParser

from delayboard.dead_letters.import_messages import import_messages
from topology.management.exit_codes import BadInput, ExitCode
from topology.management.find_rows import find_broker
from topology.management.input_file import opened
from topology.management.server import ServedCommand, Server


class Command(ServedCommand):
    help = (
        "Import JSON lines that an export wrote. Importing the same file again adds nothing. "
        "Exits with 0 when every line is stored, 3 when some were skipped."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("broker", help="the slug, as in its page's address")
        parser.add_argument("file", metavar="FILE", help="JSON lines; - is standard input")

    def work(self, options: Mapping[str, Any]) -> None:
        broker, file = find_broker(options["broker"]), options["file"]
        name = "-" if file == "-" else Path(file).name
        with opened(file) as lines:
            tally = import_messages(None, broker, name, lines, self._report)
        self._end(tally.summary, tally.malformed)

    def ask(self, server: Server, options: Mapping[str, Any]) -> None:
        path = f"brokers/{quote(options['broker'], safe='')}/parked-messages/import"
        most = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        with opened(options["file"]) as file:
            content = file.read(most + 1)
        if len(content) > most:
            raise BadInput(
                f"The file is larger than {most // 1024**2} MiB, which --server cannot send. "
                "Split it by lines, or import it on the host."
            )
        found = server.post(path, content, {"name": Path(options["file"]).name})
        for one in found["wrong"]:
            self._report(one["line"], one["sentence"])
        self._end(found["summary"], found["malformed"])

    def _end(self, summary: str, malformed: int) -> None:
        self.stdout.write(summary)
        if malformed:
            sys.exit(ExitCode.PARTLY)

    def _report(self, number: int, sentence: str) -> None:
        self.stderr.write(f"line {number}: {sentence}")
