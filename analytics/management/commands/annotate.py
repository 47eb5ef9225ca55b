from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from django.core.management.base import CommandParser

from analytics.models import Annotation
from analytics.results.annotations import (
    KINDS,
    AnnotationError,
    Mark,
    add_annotation,
    delete_annotation,
    make_mark,
    make_record,
    read_marks,
)
from topology.content.text import visible
from topology.management.command import BoardCommand
from topology.management.exit_codes import BadInput
from topology.management.find_rows import find_broker, find_topology
from topology.management.server import Server, add_server, open_server
from topology.models import Broker

LISTED = timedelta(days=28)


class Command(BoardCommand):
    help = (
        "Add an annotation, such as a deploy, to the charts of Reports. Without a text and without "
        "--release it lists those of the last 28 days, also Delayboard's own changes, replays and "
        "outages."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("text", nargs="?", default="", help="such as “shop 2.4.0”")
        parser.add_argument("--kind", choices=KINDS, default="deploy", help="default: deploy")
        parser.add_argument(
            "--release", default="", metavar="VERSION", help="the version that was deployed"
        )
        parser.add_argument("--at", default="", metavar="TIME", help="default: now")
        parser.add_argument("--until", default="", metavar="TIME", help="end of a span of time")
        parser.add_argument("--broker", default="", metavar="SLUG", help="default: all brokers")
        parser.add_argument("--topology", default="", metavar="SLUG", help="default: all")
        parser.add_argument("--delete", type=int, metavar="ID", help="delete it instead")
        parser.add_argument("--json", action="store_true", help="print JSON")
        add_server(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        is_new = bool(options["text"] or options["release"])
        if is_new and options["delete"] is not None:
            raise BadInput("--delete adds nothing. Leave the text and --release out.")
        if server := open_server(options):
            self._ask(server, options, is_new=is_new)
            return
        topology = find_topology(options["topology"]) if options["topology"] else None
        broker = find_broker(options["broker"]) if options["broker"] else None
        if options["delete"] is not None:
            row = Annotation.objects.filter(pk=options["delete"]).first()
            if row is None:
                raise BadInput(f"There is no annotation {options['delete']}.")
            delete_annotation(None, row)
            self.stdout.write(f"Deleted annotation {options['delete']}.")
        elif is_new:
            names = ("text", "kind", "at", "until")
            values = {name: options[name] for name in names} | {"version": options["release"]}
            try:
                row = add_annotation(None, broker=broker, topology=topology, **values)
            except AnnotationError as error:
                raise BadInput(str(error)) from error
            self._print([make_mark(row)], is_json=options["json"])
        else:
            now = datetime.now(UTC)
            brokers = [broker] if broker else list(Broker.objects.all())
            found = read_marks(now - LISTED, now + LISTED, brokers, options["topology"], brokers)
            self._print(found, is_json=options["json"])

    def _print(self, marks: list[Mark], *, is_json: bool) -> None:
        if is_json:
            self._dump([make_record(one) for one in marks])
            return
        for one in marks:
            number = "" if one.pk is None else f"[{one.pk}] "
            until = f" – {one.until_at:%Y-%m-%d %H:%M}" if one.until_at else ""
            where = one.topology or one.broker or "all brokers"
            line = f"{one.at:%Y-%m-%d %H:%M}{until} {one.kind} {number}{one.text} ({where})"
            self.stdout.write(visible(line))
        if not marks:
            self.stdout.write("No annotations.")

    def _dump(self, document: Any) -> None:
        self.stdout.write(json.dumps(document, indent=2, ensure_ascii=False, default=str))

    def _ask(self, server: Server, options: dict[str, Any], *, is_new: bool) -> None:
        """Print the document that the API answers. Raises CommandError."""
        if not options["json"]:
            raise BadInput("--server prints documents. Add --json.")
        where = {name: options[name] for name in ("broker", "topology") if options[name]}
        if options["delete"] is not None:
            self._dump(server.call("POST", f"annotations/{options['delete']}/delete"))
        elif is_new:
            body = {name: options[name] for name in ("text", "kind", "at", "until")} | where
            self._dump(
                server.call("POST", "annotations", None, body | {"version": options["release"]})
            )
        else:
            self._dump(server.get("annotations", where)["items"])
