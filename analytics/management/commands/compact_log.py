from __future__ import annotations

from argparse import ArgumentParser
from datetime import UTC, date, datetime, timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from analytics import nightly
from analytics.launch import LaunchError
from analytics.log import LogError
from analytics.management.commands.run_nightly import parse_day


class Command(BaseCommand):
    help = (
        "Write the finished hours of one UTC day of the event log as Parquet to LOG_URL. "
        "The nightly run does this for its day."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--date", type=parse_day, help="UTC day YYYY-MM-DD, default yesterday")

    def handle(self, *args: Any, **options: Any) -> None:
        day: date = options["date"] or datetime.now(UTC).date() - timedelta(days=1)
        try:
            is_written = nightly.compact(day)
        except (LaunchError, LogError) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"{day} is {'compacted' if is_written else 'already compacted'}.")
