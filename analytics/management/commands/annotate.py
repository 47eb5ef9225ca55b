from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from django.core.management.base import CommandParser

from analytics.models import Annotation
from analytics.results.annotations import (
    KINDS,
    AnnotationError,
    add_annotation,
    delete_annotation,
    make_mark,
    make_record,
    read_marks,
)
from topology.content.text import visible
from topology.management.exit_codes import BadInput
from topology.management.find_rows import find_broker, find_topology
from topology.management.server import ServedCommand, Server
from topology.models import Broker

LISTED = timedelta(days=28)


class Command(ServedCommand):
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

    def work(self, options: Mapping[str, Any]) -> None:
        is_new = _is_new(options)
        topology = find_topology(options["topology"]) if options["topology"] else None
        broker = find_broker(options["broker"]) if options["broker"] else None
        if options["delete"] is not None:
            row = Annotation.objects.filter(pk=options["delete"]).first()
            if row is None:
                raise BadInput(f"There is no annotation {options['delete']}.")
            delete_annotation(None, row)
            self.stdout.write(f"Deleted annotation {options['delete']}.")
        elif is_new:
            try:
                row = add_annotation(None, broker=broker, topology=topology, **_values(options))
            except AnnotationError as error:
                raise BadInput(str(error)) from error
            self._print([make_record(make_mark(row))], options)
        else:
            now = datetime.now(UTC)
            brokers = [broker] if broker else list(Broker.objects.all())
            found = read_marks(now - LISTED, now + LISTED, brokers, options["topology"], brokers)
            self._print(list(map(make_record, found)), options)

    def ask(self, server: Server, options: Mapping[str, Any]) -> None:
        is_new = _is_new(options)
        where = {name: options[name] for name in ("broker", "topology") if options[name]}
        if options["delete"] is not None:
            server.post(f"annotations/{options['delete']}/delete")
            self.stdout.write(f"Deleted annotation {options['delete']}.")
        elif is_new:
            self._print([server.post("annotations", _values(options) | where)], options)
        else:
            self._print(list(server.read_pages("annotations", where)), options)

    def _print(self, found: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> None:
        if options["json"]:
            self.stdout.write(json.dumps(found, indent=2, ensure_ascii=False))
            return
        for one in found:
            number = "" if one["id"] is None else f"[{one['id']}] "
            until = f" – {_write(one['until_at'])}" if one["until_at"] else ""
            where = one["topology"] or one["broker"] or "all brokers"
            line = f"{_write(one['at'])}{until} {one['kind']} {number}{one['text']} ({where})"
            self.stdout.write(visible(line))
        if not found:
            self.stdout.write("No annotations.")


def _is_new(options: Mapping[str, Any]) -> bool:
    """Raises BadInput for one that is added and deleted."""
    is_new = bool(options["text"] or options["release"])
    if is_new and options["delete"] is not None:
        raise BadInput("--delete adds nothing. Leave the text and --release out.")
    return is_new


def _values(options: Mapping[str, Any]) -> dict[str, str]:
    values = {name: options[name] for name in ("text", "kind", "at", "until")}
    return values | {"version": options["release"]}


def _write(moment: str) -> str:
    return f"{datetime.fromisoformat(moment):%Y-%m-%d %H:%M}"
