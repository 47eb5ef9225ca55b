from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from analytics.importing.import_files import ImportResult, import_files, read_scope, request_reports
from analytics.importing.requested import record_command
from analytics.importing.sources import FORMATS, Refused
from analytics.importing.staging import Scope
from analytics.launch import LaunchError
from analytics.log import LogError
from analytics.mappings.mapping import QUALITIES, LogMapping, MappingError, parse, shipped_names
from analytics.models.imports import find_mapping
from analytics.retention.log_files import LOG
from topology.management.command import BoardCommand
from topology.management.exit_codes import BadInput, ExitCode
from topology.management.find_rows import find_broker


class Command(BoardCommand):
    help = (
        "Import events into the event log: JSON lines, CSV or Parquet with the fields in "
        "docs/event-log.md, another Delayboard's log, traces of RabbitMQ, or any log by a mapping "
        "(docs/import.md). A repeated import adds nothing. Imported events appear only in reports. "
        "Exit code: 0 if every line is imported or known, 3 if malformed lines were skipped, 1 if "
        "the import failed, 2 if the input is wrong."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="or a folder")
        parser.add_argument(
            "--format", choices=FORMATS, help="file format, if Delayboard cannot detect it"
        )
        parser.add_argument(
            "--mapping",
            metavar="NAME|FILE",
            help="mapping of a foreign log: a TOML file, a saved one, or "
            f"{', '.join(shipped_names())}",
        )
        parser.add_argument("--broker", metavar="SLUG", help="broker of a trace or a mapped log")
        parser.add_argument(
            "--topology",
            metavar="SLUG",
            action="append",
            default=[],
            help="topology of a trace (repeatable; default: all of the broker), or of the events "
            "of a mapped log that name none",
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="read and count without adding lines"
        )
        parser.add_argument(
            "--no-reports", action="store_true", help="do not request new reports for these days"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        self._reported = -1
        mapping = _find_mapping(options["mapping"])
        try:
            outcome = import_files(
                options["files"],
                given=options["format"],
                mapping=mapping,
                scope=_read_scope(options["broker"], options["topology"], mapping),
                is_dry=options["dry_run"],
                is_reported=not options["no_reports"],
                progress=self._progress,
            )
        except KeyboardInterrupt:
            request_reports()
            self.stderr.write(
                "Import stopped. The event log keeps the added lines; run the import again for "
                "the rest."
            )
            sys.exit(ExitCode.STOPPED)
        except Refused as refusal:
            raise BadInput(str(refusal)) from refusal
        except (LogError, LaunchError) as error:
            raise CommandError(str(error)) from error
        self._report(outcome, is_dry=options["dry_run"])
        if not options["dry_run"]:
            broker = find_broker(options["broker"]) if options["broker"] else None
            record_command(options["files"], broker, mapping, outcome)
        if not options["dry_run"] and not options["no_reports"]:
            self._request_reports(outcome.days)
        if outcome.malformed:
            sys.exit(ExitCode.PARTLY)

    def _report(self, outcome: ImportResult, *, is_dry: bool) -> None:
        for sentence in outcome.skipped:
            self.stderr.write(sentence)
        for problem in outcome.problems:
            self.stderr.write(f"{problem.file}, line {problem.number}: {problem.why}")
        rest = outcome.malformed - len(outcome.problems)
        if rest:
            self.stderr.write(f"and {rest} more malformed lines")
        self.stdout.write(
            f"{outcome.read} lines read: {outcome.added} "
            f"{'would be ' if is_dry else ''}added, {outcome.known} already known, "
            f"{outcome.malformed} malformed and skipped."
        )
        if outcome.ignored:
            self.stdout.write(
                f"{outcome.ignored} lines ignored: no rule of the mapping wants them."
            )
        if outcome.topologies:
            self.stdout.write(f"Topologies: {', '.join(outcome.topologies)}.")
        for name in outcome.quality:
            self.stdout.write(f"Note: {QUALITIES[name]}")

    def _request_reports(self, days: Sequence[date]) -> None:
        wanted, busy = request_reports(days)
        if wanted:
            self.stdout.write(
                f"The worker will compute the reports of {', '.join(map(str, wanted))} again."
            )
        for day in busy:
            self.stderr.write(
                f"The report of {day} is in progress and may miss the new lines. The "
                "worker will compute it again."
            )

        cutoff = LOG.cutoff(datetime.now(UTC))
        if cutoff and days and days[0] < cutoff.date():
            self.stdout.write(
                f"Delayboard deletes lines from before {cutoff.date()} after their report "
                f"({LOG.setting})."
            )

    def _progress(self, done: int, total: int) -> None:
        if total and done != self._reported:
            self._reported = done
            self.stdout.write(f"step {done + 1} of {total}")


def _find_mapping(given: str | None) -> LogMapping | None:
    """A file that ends with .toml, else one by name."""
    if not given:
        return None
    try:
        if given.endswith(".toml"):
            return parse(Path(given).read_text(), Path(given).stem)
        return find_mapping(given)
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"Delayboard cannot read the mapping {given}: {error}.") from error
    except MappingError as error:
        raise BadInput(f"{given}: {error}") from error


def _read_scope(
    slug: str | None, topologies: Sequence[str], mapping: LogMapping | None
) -> Scope | None:
    if slug is None:
        if topologies:
            raise BadInput("--topology needs --broker.")
        return None
    return read_scope(find_broker(slug), topologies, mapping)
