"""Checks exported definitions or a broker by the rules of findings."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from django.core.management.base import CommandParser
from django.utils import timezone

from topology.content.text import count_of, visible
from topology.findings import report
from topology.findings.find import find
from topology.findings.finding import Finding
from topology.findings.hit import Admin, Severity
from topology.management.exit_codes import BadInput, ExitCode
from topology.management.input_file import choose_vhost, is_file, read_json, read_snapshots
from topology.management.server import ServedCommand, Server
from topology.snapshot import Snapshot

SEVERITIES = [severity.key for severity in sorted(Severity, reverse=True)]


class Command(ServedCommand):
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

    def work(self, options: Mapping[str, Any]) -> None:
        read, muted = _read_source(options)
        snapshots = choose_vhost(read, options["vhost"])
        self._print(check(snapshots, muted, _known(_baseline(options)), options), options)

    def ask(self, server: Server, options: Mapping[str, Any]) -> None:
        if is_file(options["source"]):
            raise BadInput("--server checks a broker. Check a file without it.")
        if options["rabbitmq_version"]:
            raise BadInput("--rabbitmq-version is for a file: a broker reports its version.")
        values = {name: options[name] for name in ("format", "fail_on", "vhost")}
        path = f"brokers/{quote(options['source'], safe='')}/lint"
        self._print(server.post(path, values | {"baseline": _baseline(options)}), options)

    def _print(self, document: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        is_written = options["write_baseline"]
        for line in document["notes"][: 1 if is_written else None]:
            self.stderr.write(visible(line))
        if is_written:
            _write(is_written, document["baseline"])
            self.stdout.write(f"Baseline written to {is_written}.")
            return
        for line in document["output"]:
            self.stdout.write(line)
        if not document["is_good"]:
            sys.exit(ExitCode.NO)


def check(
    snapshots: Mapping[str, Snapshot],
    muted: Collection[str],
    known: report.Known,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """The output of the command with `format` and `fail_on` of the options, and what it notes."""
    present = {vhost: find(snapshot) for vhost, snapshot in snapshots.items()}
    everything = {
        vhost: [one for one in findings if one.key not in muted]
        for vhost, findings in present.items()
    }
    found = {v: report.without_known(findings, v, known) for v, findings in everything.items()}
    worst = Severity[options["fail_on"].upper()]
    excluded = sum(map(len, present.values())) - sum(map(len, everything.values()))
    notes = [f"{count_of(excluded, 'muted finding', 'is')} not listed."] if excluded else []
    return {
        "output": list(_format(found, snapshots, options)),
        "notes": notes + [doubt for one in snapshots.values() for doubt in one.doubts],
        "is_good": all(one.severity < worst for findings in found.values() for one in findings),
        "baseline": report.make_baseline(everything),
    }


def _format(
    found: Mapping[str, Sequence[Finding]],
    snapshots: Mapping[str, Snapshot],
    options: Mapping[str, Any],
) -> Iterable[str]:
    match options["format"]:
        case "json":
            return [json.dumps(report.as_json(found), indent=2)]
        case "sarif":
            return [json.dumps(report.as_sarif(found, options["source"]), indent=2)]
        case "github":
            return map(visible, report.as_annotations(found, options["source"]))
    admins = {vhost: Admin(one.version_tuple) for vhost, one in snapshots.items()}
    return map(visible, report.as_lines(found, admins))


def _read_source(options: Mapping[str, Any]) -> tuple[dict[str, Snapshot], Collection[str]]:
    """Snapshots by vhost, and the keys of muted findings. Raises BadInput and Unreachable."""
    read = read_snapshots(options["source"], options["rabbitmq_version"])
    if is_file(options["source"]):
        return read, ()
    from topology.models import Broker
    from topology.operations.finding_rows import find_mutes

    broker = Broker.objects.get(slug=options["source"])
    return read, find_mutes(broker, timezone.now())


def _baseline(options: Mapping[str, Any]) -> Any:
    """None without one. Raises BadInput."""
    return read_json(options["baseline"]) if options["baseline"] else None


def _known(baseline: Any) -> report.Known:
    """Raises BadInput."""
    try:
        return frozenset() if baseline is None else report.read_baseline(baseline)
    except report.NotABaseline as error:
        raise BadInput(str(error)) from error


def _write(file: str, document: Any) -> None:
    """Raises BadInput."""
    try:
        Path(file).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise BadInput(f"“{file}” cannot be written: {error.strerror}.") from error
