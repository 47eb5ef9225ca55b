from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
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
from topology.management.command import BoardCommand
from topology.management.exit_codes import BadInput, ExitCode


class Command(BoardCommand):
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

    def handle(self, *args: Any, **options: Any) -> None:
        day: date = options["date"] or datetime.now(UTC).date() - timedelta(days=1)
        output: Path | None = options["output"]
        if output is not None and options["json"]:
            raise BadInput("--json prints the report. Redirect it into a file, without --output.")
        try:
            refuse_day(day)
        except DayRefused as refusal:
            raise BadInput(str(refusal)) from refusal
        found = report_of(day)
        if output is not None:
            self._write(output, as_html(found))
        elif options["json"]:
            self.stdout.write(json.dumps(as_json(found), ensure_ascii=False, indent=1))
        else:
            self.stdout.write(as_text(found), ending="")
        if found.is_empty:
            if output is not None or options["json"]:
                self.stderr.write(f"{day} has no figures.")
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
