from __future__ import annotations

import sys
from argparse import ArgumentParser, ArgumentTypeError
from datetime import UTC, date, datetime, timedelta
from time import monotonic
from typing import Any

from django.core.management.base import CommandError

from analytics import nightly
from analytics.launch import JobReport, LaunchError
from analytics.models import Run
from analytics.results.nightly_report import store_report
from topology import work
from topology.delays import format_ms
from topology.management.command import BoardCommand
from topology.management.exit_codes import BadInput, ExitCode


class Command(BoardCommand):
    help = (
        "Compute the reports of one UTC day, or of a range of days, from the event log and replace "
        "earlier results. Two runs of one day exclude each other. Exit code 4: the event log has "
        "no data for the day."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--date", type=parse_day, help="UTC day YYYY-MM-DD, default yesterday")
        parser.add_argument(
            "--from", dest="first", type=parse_day, metavar="DATE", help="first of several days"
        )
        parser.add_argument(
            "--to",
            dest="last",
            type=parse_day,
            metavar="DATE",
            help="last of them, default yesterday",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        yesterday = datetime.now(UTC).date() - timedelta(days=1)
        if options["first"] is not None or options["last"] is not None:
            self._backfill(options["first"], options["last"] or yesterday, options["date"])
        else:
            self._run(options["date"] or yesterday)

    def _backfill(self, first: date | None, last: date, day: date | None) -> None:
        if first is None or day is not None:
            raise BadInput("A range needs --from, and no --date. Without --to it ends yesterday.")
        if first > last:
            raise BadInput(f"The range ends ({last}) before it begins ({first}). Swap the days.")
        try:
            nightly.refuse_day(first)
            nightly.refuse_day(last)
        except nightly.DayRefused as refusal:
            raise BadInput(str(refusal)) from refusal
        days = [first + timedelta(days=number) for number in range((last - first).days + 1)]
        failed, began = [], monotonic()
        for done, one in enumerate(days):
            rest = ""
            if done:
                seconds = (monotonic() - began) / done * (len(days) - done)
                rest = f", about {format_ms(1000 * seconds)} left"
            self.stdout.write(f"{one}, day {done + 1} of {len(days)}{rest}")
            try:
                self._run(one)
            except CommandError as error:
                failed.append(str(one))
                self.stderr.write(str(error))
            except SystemExit:
                # A day without data ends no range.
                continue
        if failed:
            raise CommandError(f"{len(failed)} of {len(days)} days failed: {', '.join(failed)}.")

    def _run(self, day: date) -> None:
        self._reported, self._job = -1, JobReport()
        try:
            run = nightly.run_day(day, progress=self._progress, job=self._job)
        except LaunchError as error:
            self._print_steps(Run.objects.get(day=day))
            raise CommandError(str(error)) from error
        except nightly.DayRefused as refusal:
            raise BadInput(str(refusal)) from refusal
        except work.Stopped as error:
            raise CommandError(str(error), returncode=ExitCode.STOPPED) from error
        self._print_steps(run)
        store_report(day)
        if run.error:
            self.stderr.write(run.error)
            sys.exit(ExitCode.UNKNOWN)
        self.stdout.write(
            f"{day} is done: {run.lines} lines read, {run.malformed} of them malformed."
            + (" The day is not over." if run.is_of_unfinished_day else "")
        )

    def _print_steps(self, run: Run) -> None:
        for name, seconds in run.step_seconds:
            self.stdout.write(f"{name}: {format_ms(1000 * seconds)}")

    def _progress(self, done: int, total: int) -> None:
        if total and done != self._reported:
            self._reported = done
            self.stdout.write(f"Step {done + 1} of {total}: {self._job.steps[-1][0]}")


def parse_day(text: str) -> date:
    """Raises ArgumentTypeError with a sentence."""
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise ArgumentTypeError(
            f"“{text}” is not a date. Enter a date such as 2026-11-20."
        ) from error
