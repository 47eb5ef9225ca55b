"""Parked messages as JSON lines or CSV, to standard output: docs/dead-letters.md."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from django.core.management.base import CommandParser

from delayboard.dead_letters.export_messages import NOT_INDEXED, write_messages
from delayboard.dead_letters.search import QueryError, search_by
from topology import audit
from topology.content.export_format import FORMS
from topology.content.text import count_of
from topology.management.exit_codes import BadInput, ExitCode
from topology.management.find_rows import find_broker
from topology.management.server import ServedCommand, Server
from topology.redaction import NOTHING


class Command(ServedCommand):
    help = (
        "Write parked messages to standard output, the newest first. JSON lines can be "
        "imported again without loss (docs/dead-letters.md)."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("broker", help="the slug, as in its page's address")
        parser.add_argument("--q", default="", help="a search, such as reason:rejected")
        parser.add_argument(
            "--format", choices=sorted(FORMS), default="jsonl", help="default: jsonl"
        )

    def work(self, options: Mapping[str, Any]) -> None:
        broker = find_broker(options["broker"])
        query, form = options["q"], options["format"]
        try:
            search = search_by(None, broker, query)
        except QueryError as error:
            raise BadInput(f"--q: {error}") from error
        audit.record(
            None, "parked messages exported", broker=broker, what=query, details={"format": form}
        )
        self._write(form, write_messages(form, search.messages(), NOTHING))
        self._note(search.not_indexed().count())

    def _note(self, omitted: int) -> None:
        if omitted:
            self.stderr.write(
                f"{count_of(omitted, 'message', 'is')} not indexed yet, and may match. Export "
                "again when the worker has indexed them."
            )

    def ask(self, server: Server, options: Mapping[str, Any]) -> None:
        path = f"brokers/{quote(options['broker'], safe='')}/parked-messages/export"
        values = {"q": options["q"], "format": options["format"]}
        heads: dict[str, str] = {}
        self._write(options["format"], server.read("GET", path, values, heads=heads))
        number = heads.get(NOT_INDEXED.lower(), "")
        self._note(int(number) if number.isdecimal() else 0)

    def _write(self, form: str, lines: Iterable[bytes]) -> None:
        out = getattr(sys.stdout, "buffer", None)
        written = 0
        try:
            for line in lines:
                written += 1
                if out is None:
                    self.stdout.write(line.decode(), ending="")
                else:
                    out.write(line)
        except BrokenPipeError:
            sys.stderr.close()
            sys.exit(ExitCode.DONE)
        # The first line of CSV has the names.
        if written == (form == "csv"):
            self.stderr.write("No parked message matches.")
