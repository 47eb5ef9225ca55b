"""Checks exported definitions or a broker by the rules of findings."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from django.core.management.base import CommandParser
from django.utils import timezone

from topology.content.text import count_of, visible
from topology.findings import report
from topology.findings.find import find
from topology.findings.finding import Finding
from topology.findings.hit import Admin, Severity
from topology.management.command import BoardCommand
from topology.management.exit_codes import BadInput, ExitCode
from topology.management.input_file import choose_vhost, is_file, read_json, read_snapshots
from topology.snapshot import Snapshot

SEVERITIES = [severity.key for severity in sorted(Severity, reverse=True)]


class Command(BoardCommand):
    help = (
        "Check exported definitions (rabbitmqctl export_definitions, or the management page) or "
        "a broker for mistakes in delays, retries and dead-lettering. Exit code: 0 without "
        "findings from --fail-on up, 1 with some, 2 if the input cannot be read."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "source", help="a file of definitions, - for standard input, or a broker's slug"
        )
        parser.add_argument("--vhost", help="check only this virtual host of the file")
        parser.add_argument(
            "--format",
            choices=("text", "json", "sarif", "github"),
            default="text",
            help="default: text",
        )
        parser.add_argument(
            "--fail-on", choices=SEVERITIES, default="cost", help="lowest severity that fails"
        )
        parser.add_argument("--baseline", help="a file of findings that are accepted")
        parser.add_argument(
            "--write-baseline", help="write current findings to this file as accepted"
        )
        parser.add_argument(
            "--rabbitmq-version", default="", help="check for this version, such as 4.3"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        read, muted = _read_source(options)
        snapshots = choose_vhost(read, options["vhost"])
        known = _known(options["baseline"])
        present = {vhost: find(snapshot) for vhost, snapshot in snapshots.items()}
        everything = {
            vhost: [one for one in findings if one.key not in muted]
            for vhost, findings in present.items()
        }
        excluded = sum(map(len, present.values())) - sum(map(len, everything.values()))
        if excluded:
            number = count_of(excluded, "muted finding", "is")
            self.stderr.write(f"{number} not listed.")
        if options["write_baseline"]:
            _write(options["write_baseline"], report.make_baseline(everything))
            self.stdout.write(f"Baseline written to {options['write_baseline']}.")
            return
        found = {v: report.without_known(findings, v, known) for v, findings in everything.items()}
        self._print(found, snapshots, options)
        for snapshot in snapshots.values():
            for doubt in snapshot.doubts:
                self.stderr.write(visible(doubt))
        worst = Severity[options["fail_on"].upper()]
        if any(one.severity >= worst for findings in found.values() for one in findings):
            sys.exit(ExitCode.NO)

    def _print(
        self,
        found: Mapping[str, Sequence[Finding]],
        snapshots: Mapping[str, Snapshot],
        options: Mapping[str, Any],
    ) -> None:
        match options["format"]:
            case "json":
                self._print_json(report.as_json(found))
            case "sarif":
                self._print_json(report.as_sarif(found, options["source"]))
            case "github":
                for line in report.as_annotations(found, options["source"]):
                    self.stdout.write(visible(line))
            case _:
                admins = {vhost: Admin(one.version_tuple) for vhost, one in snapshots.items()}
                for line in report.as_lines(found, admins):
                    self.stdout.write(visible(line))

    def _print_json(self, document: Any) -> None:
        self.stdout.write(json.dumps(document, indent=2))


def _read_source(options: Mapping[str, Any]) -> tuple[dict[str, Snapshot], Collection[str]]:
    """Snapshots by vhost, and the keys of muted findings. Raises BadInput and Unreachable."""
    read = read_snapshots(options["source"], options["rabbitmq_version"])
    if is_file(options["source"]):
        return read, ()
    from topology.models import Broker
    from topology.operations.finding_rows import find_mutes

    broker = Broker.objects.get(slug=options["source"])
    return read, find_mutes(broker, timezone.now())


def _known(file: str | None) -> report.Known:
    """Raises BadInput."""
    try:
        return report.read_baseline(read_json(file)) if file else frozenset()
    except report.NotABaseline as error:
        raise BadInput(str(error)) from error


def _write(file: str, document: Any) -> None:
    """Raises BadInput."""
    try:
        Path(file).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise BadInput(f"“{file}” cannot be written: {error.strerror}.") from error
