"""Where a publish would go through a broker, and when: as sentences or as JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from django.core.management.base import CommandParser

from topology import snapshots
from topology.broker.errors import Unreachable
from topology.broker.properties.field_values import FieldError, write_table
from topology.management.exit_codes import BadInput, ExitCode
from topology.management.find_rows import find_broker
from topology.management.server import ServedCommand, Server
from topology.operations.topology_rows import forwarders_at
from topology.routing.trace_route import Question, as_json, ask


class Command(ServedCommand):
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

    def work(self, options: Mapping[str, Any]) -> None:
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
        self._print(as_json(answer), options)

    def ask(self, server: Server, options: Mapping[str, Any]) -> None:
        _headers(options["headers"])
        names = ("exchange", "routing_key", "headers", "without_consumers")
        values = {name: options[name] for name in names}
        values |= {"expiration": options["expiration"] or ""}
        values |= {"rejecting": " ".join(options["rejecting"])}
        path = f"brokers/{quote(options['broker'], safe='')}/route"
        self._print(server.get(path, values), options)

    def _print(self, document: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        if options["json"]:
            self.stdout.write(json.dumps(document, indent=2, ensure_ascii=False))
        else:
            for line in document["sentences"]:
                self.stdout.write(line)
        endings = [outcome["ending"] for outcome in document["outcomes"]]
        if (delivered := endings.count("delivered")) < len(endings):
            sys.exit(ExitCode.PARTLY if delivered else ExitCode.NO)


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
