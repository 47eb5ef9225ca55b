from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from analytics.management.commands.run_nightly import parse_day
from analytics.nightly import DayRefused, refuse_day
from analytics.results.nightly_report import (
    PdfError,
    as_html,
    as_json,
    as_text,
    print_pdf,
    report_of,
)
from topology.management.exit_codes import BadInput, ExitCode
from topology.management.server import ServedCommand, Server


class Command(ServedCommand):
    help = (
        "Print the nightly report of one UTC day for all brokers, or write it as a file. "
        "It computes nothing: run_nightly does. Exit code 4: the day has no figures."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--date", type=parse_day, help="UTC day YYYY-MM-DD, default yesterday")
        parser.add_argument("--json", action="store_true", help="raw values of all tables")
        parser.add_argument(
            "--output", type=Path, metavar="FILE", help="write FILE.html or FILE.pdf instead"
        )

    def work(self, options: Mapping[str, Any]) -> None:
        try:
            refuse_day(day := _day_of(options))
        except DayRefused as refusal:
            raise BadInput(str(refusal)) from refusal
        found = report_of(day)
        forms = {"json": as_json, "text": as_text, "html": as_html}
        self._print(options, lambda form: forms[form](found), is_empty=found.is_empty)

    def ask(self, server: Server, options: Mapping[str, Any]) -> None:
        path = f"reports/{_day_of(options)}"
        document = server.get(path)

        def read(form: str) -> Any:
            if form == "json":
                return document
            lines = server.read("GET", f"{path}/document", {"format": form})
            return b"".join(lines).decode()

        self._print(options, read, is_empty=document["is_empty"])

    def _print(
        self, options: Mapping[str, Any], read: Callable[[str], Any], *, is_empty: bool
    ) -> None:
        """`read` returns the report as json, text or html."""
        output: Path | None = options["output"]
        if output is not None and options["json"]:
            raise BadInput("--json prints the report. Redirect it into a file, without --output.")
        if output is not None:
            self._write(output, read("html"))
        elif options["json"]:
            self.stdout.write(json.dumps(read("json"), ensure_ascii=False, indent=1))
        else:
            self.stdout.write(read("text"), ending="")
        if is_empty:
            if output is not None or options["json"]:
                self.stderr.write(f"{_day_of(options)} has no figures.")
            sys.exit(ExitCode.UNKNOWN)

    def _write(self, output: Path, html: str) -> None:
        try:
            if output.suffix == ".html":
                output.write_text(html)
            elif output.suffix == ".pdf":
                output.write_bytes(print_pdf(html))
            else:
                raise BadInput(f"{output} is neither a .html nor a .pdf file. Rename it.")
        except (OSError, PdfError) as error:
            raise CommandError(f"The report was not written: {error}") from error
        self.stdout.write(f"Wrote {output}.")


def _day_of(options: Mapping[str, Any]) -> date:
    day: date = options["date"] or datetime.now(UTC).date() - timedelta(days=1)
    return day
