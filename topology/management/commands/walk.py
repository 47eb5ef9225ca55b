"""Where a publish would go through a broker, and when: as sentences or as JSON."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from django.core.management.base import CommandParser

from topology import snapshots
from topology.broker.errors import Unreachable
from topology.broker.properties.field_values import FieldError, write_table
from topology.delays import format_delay
from topology.management.command import BoardCommand
from topology.management.exit_codes import BadInput, ExitCode
from topology.management.find_rows import find_broker
from topology.operations.topology_rows import forwarders_at
from topology.routing.outcome import RouteOutcome, Walk
from topology.routing.sentences import PUBLISHED
from topology.routing.trace_route import Question, as_json, ask


class Command(BoardCommand):
    help = (
        "Trace the route of a message to every queue without publishing the message. Exit "
        "code: 0 if all copies are delivered, 3 if some are, 1 if none is, 2 if the input is "
        "wrong or the broker does not answer."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("broker", help="the broker's slug, as in the page's address")
        parser.add_argument("exchange", help='"" is the default exchange')
        parser.add_argument("routing_key", help="of the message")
        parser.add_argument(
            "--headers", default="{}", help="a JSON object; CC and BCC affect the route"
        )
        parser.add_argument("--expiration", help="the message's own TTL in milliseconds")
        parser.add_argument(
            "--rejecting",
            action="append",
            default=[],
            metavar="QUEUE",
            help="queue whose consumer rejects the message; can be repeated",
        )
        parser.add_argument(
            "--without-consumers", action="store_true", help="as if no queue had a consumer"
        )
        parser.add_argument("--json", action="store_true", help="times in milliseconds")

    def handle(self, *args: Any, **options: Any) -> None:
        broker = find_broker(options["broker"])
        found = snapshots.poll(broker, 60)
        if found.snapshot is None or found.error:
            raise Unreachable(found.error)
        question = Question(
            exchange=options["exchange"],
            routing_key=options["routing_key"],
            headers=_headers(options["headers"]),
            expiration=options["expiration"],
            rejecting=options["rejecting"],
            without_consumers=options["without_consumers"],
        )
        now_ms = time.time_ns() // 1_000_000
        answer = ask(question, found.snapshot, forwarders=forwarders_at(broker), now_ms=now_ms)
        if options["json"]:
            self.stdout.write(json.dumps(as_json(answer), indent=2, ensure_ascii=False))
        else:
            self._print_sentences(answer.walk)
        if (delivered := len(answer.walk.delivered)) < len(answer.walk.outcomes):
            sys.exit(ExitCode.PARTLY if delivered else ExitCode.NO)

    def _print_sentences(self, walked: Walk) -> None:
        for number, outcome in enumerate(walked.outcomes, start=1):
            self.stdout.write(f"Copy {number}")
            for line in _lines(outcome):
                self.stdout.write(f"  {line}")


def _lines(outcome: RouteOutcome) -> list[str]:
    lines = []
    for hop in outcome.hops:
        when = f"after {format_delay(hop.after)}" if hop.after else "at once"
        stays = "waits in"
        if hop.wait is not None:
            stays = f"waits {format_delay(hop.wait)} in" if hop.wait else "passes"
        through = hop.exchange or "the default exchange"
        sentence = f"{when}: {stays} {hop.queue}, through {through} with {hop.routing_key!r}"
        lines.append(sentence if hop.why == PUBLISHED else f"{sentence}; {hop.why}")
    if outcome.kept and not outcome.hops:
        lines.append(f"at once: {outcome.kept}")
    lines.append(f"{outcome.ending}: {outcome.why}")
    return lines + [f"doubt: {doubt}" for doubt in outcome.doubts]


def _headers(text: str) -> dict[str, Any]:
    try:
        read = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"The headers are not JSON: {error}") from error
    if not isinstance(read, dict):
        raise BadInput("The headers must be a JSON object.")
    try:
        write_table(read)
    except FieldError as error:
        raise BadInput(str(error)) from error
    return read
