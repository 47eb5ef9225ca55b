from __future__ import annotations

import sys
from argparse import ArgumentParser
from datetime import UTC, date, datetime, timedelta
from typing import Any

from django.core.management.base import CommandError

from analytics import nightly
from analytics.launch import LaunchError, NoData
from analytics.log import LogError
from analytics.management.commands.run_nightly import parse_day
from topology.management.command import BoardCommand
from topology.management.exit_codes import BadInput, ExitCode


class Command(BoardCommand):
    help = (
        "Write the finished hours of one UTC day of the event log as Parquet to LOG_URL. "
        "The nightly run does this for its day. Exit code 4: the event log has no data for the day."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--date", type=parse_day, help="UTC day YYYY-MM-DD, default yesterday")

    def handle(self, *args: Any, **options: Any) -> None:
        day: date = options["date"] or datetime.now(UTC).date() - timedelta(days=1)
        try:
            is_written = nightly.compact(day)
        except NoData as nothing:
            self.stderr.write(str(nothing))
            sys.exit(ExitCode.UNKNOWN)
        except nightly.DayRefused as refusal:
            raise BadInput(str(refusal)) from refusal
        except (LaunchError, LogError) as error:
            raise CommandError(str(error)) from error
        if is_written:
            self.stdout.write(f"The finished hours of {day} are compacted.")
        else:
            self.stdout.write(f"{day} has no finished hour that is not compacted.")
