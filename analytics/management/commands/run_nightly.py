from __future__ import annotations

import sys
from argparse import ArgumentParser, ArgumentTypeError
from datetime import UTC, date, datetime, timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from analytics import nightly
from analytics.launch import LaunchError

NO_DATA_CODE = 4


class Command(BaseCommand):
    help = (
        "Compute the reports of one UTC day from the event log and replace earlier results. "
        "Exit code 4: the event log has no data for the day."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--date", type=parse_day, help="UTC day YYYY-MM-DD, default yesterday")

    def handle(self, *args: Any, **options: Any) -> None:
        day = options["date"] or datetime.now(UTC).date() - timedelta(days=1)
        self._said = -1
        try:
            run = nightly.run_day(day, progress=self._progress)
        except (nightly.DayRefused, nightly.Stopped, LaunchError) as error:
            raise CommandError(str(error)) from error
        if run.error:
            self.stderr.write(run.error)
            sys.exit(NO_DATA_CODE)
        self.stdout.write(
            f"{day} is done: {run.lines} lines read, {run.malformed} of them malformed."
        )

    def _progress(self, done: int, total: int) -> None:
        if total and done != self._said:
            self._said = done
            self.stdout.write(f"step {done + 1} of {total}")


def parse_day(text: str) -> date:
    """Raises ArgumentTypeError with a sentence."""
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise ArgumentTypeError(f"“{text}” is not a date. Write it like 2026-11-20.") from error
