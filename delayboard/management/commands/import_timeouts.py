"""Brings timeouts kept outside of a broker into delay levels: docs/timeouts.md."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser

from delayboard.management.confirmation import add_confirmation, unconfirmed
from delayboard.publishing.timeout_import.import_tally import LineResult, Tally
from delayboard.publishing.timeout_import.import_timeouts import import_timeouts, try_import
from delayboard.publishing.timeout_import.timeout import numbered_lines
from topology.broker.errors import BrokerError
from topology.management.command import BoardCommand, command_error
from topology.management.exit_codes import BadInput, ExitCode
from topology.management.find_rows import find_topology
from topology.management.input_file import opened
from topology.operations.ownership import Refusal

REPORT_EVERY = 1000
WORDS = {"unknown": "possibly published"}


class Command(BoardCommand):
    help = (
        "Publish timeouts from a file of JSON lines (docs/timeouts.md) into applied delay levels, "
        "so that each arrives when it is due. Importing the same file again adds nothing. Exits "
        "with 0 when every line was published, 3 when some were skipped, 1 when none was published."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("topology", help="the slug of delay levels, as in its page's address")
        parser.add_argument("file", metavar="FILE", help="JSON lines; - is standard input")
        parser.add_argument(
            "--dry-run", action="store_true", help="report the result of each line, publish nothing"
        )
        parser.add_argument("--rate", type=float, metavar="N", help="maximum messages per second")

        add_confirmation(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        rate, file, is_dry = options["rate"], options["file"], options["dry_run"]
        if rate is not None and not rate > 0:
            raise BadInput("--rate must be more than 0.")
        topology = find_topology(options["topology"])
        if not is_dry and (refusal := unconfirmed(topology.broker, options)):
            raise CommandError(f"Nothing was imported. {refusal}")
        self._read, self._is_dry = 0, is_dry
        name = "-" if file == "-" else Path(file).name
        try:
            with opened(file) as stream:
                lines = numbered_lines(stream)
                if is_dry:
                    tally = try_import(topology, name, lines, self._report)
                else:
                    tally = import_timeouts(topology, name, lines, self._report, rate=rate)
        except KeyboardInterrupt:
            self.stderr.write("Stopped. Import the same file again to publish the rest.")
            sys.exit(ExitCode.STOPPED)
        except (Refusal, BrokerError) as error:
            raise command_error(error, "Nothing was imported. ") from error
        self._sum_up(tally)
        if tally.stopped and not tally.published:
            raise CommandError(tally.stopped)
        if tally.stopped or tally.excluded:
            self.stderr.write(tally.stopped, ending="\n" if tally.stopped else "")
            sys.exit(ExitCode.PARTLY)

    def _report(self, verdict: LineResult) -> None:
        """Every line of a dry run; else what a person must look at, and how far it is."""
        self._read += 1
        is_skipped = verdict.mark in ("refused", "unknown", "malformed")
        if self._is_dry or is_skipped or verdict.may_be_doubled:
            to = f" for “{verdict.destination}”" if verdict.destination else ""
            word = f"{WORDS.get(verdict.mark, verdict.mark)}: " if is_skipped else ""
            out = self.stderr if is_skipped and not self._is_dry else self.stdout
            out.write(f"line {verdict.number}{to}: {word}{verdict.sentence}")
        elif self._read % REPORT_EVERY == 0:
            self.stdout.write(f"{self._read} lines")

    def _sum_up(self, tally: Tally) -> None:
        would = "would be " if self._is_dry else ""
        marks = tally.marks
        self.stdout.write(
            f"{tally.marks.total()} lines: {tally.published} {would}published, {marks['due']} of "
            f"them due already; {marks['known']} published before, {marks['refused']} refused, "
            f"{marks['unknown']} possibly published, {marks['malformed']} malformed."
        )
        if tally.doubled:
            self.stdout.write(
                f"An interrupted import began {tally.doubled} of them, so they may be duplicated."
            )
        for destination, counted in sorted(tally.destinations.items()):
            words = ", ".join(
                f"{number} {WORDS.get(mark, mark)}" for mark, number in sorted(counted.items())
            )
            new = f" ({would or 'was '}bound)" if destination in tally.unbound else ""
            self.stdout.write(f"  {destination}{new}: {words}")
