"""What waits in the delays: as a table, or as JSON lines for programs; and changes of it.

Nothing is hidden from whoever has a shell here: redaction rules are for the roles of the site.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from typing import Any
from urllib.parse import quote

from django.core.management.base import CommandParser
from django.db.models import QuerySet

from analytics.models import ScheduledMessage
from analytics.scheduled.pages import export
from analytics.scheduled.pages.lines import make_summary
from analytics.scheduled.queries import listing
from analytics.scheduled.queries.listing import LONGEST_NAME, NAMES, Filter, parse
from delayboard.changes.request import find_changes, make_record
from delayboard.management import scheduled_changes
from topology.content.export_format import compact_json
from topology.content.text import make_printable
from topology.delays import MOMENT_HELP, format_delay, format_span
from topology.management.exit_codes import BadInput
from topology.management.find_rows import find_topology
from topology.management.server import ServedCommand, Server
from topology.models import Broker

HEADS = ("due", "state", "overdue by", "destination", "topology", "delay", "message")
NARROW = 60
MS = timedelta(milliseconds=1)


class Command(ServedCommand):
    help = (
        "List waiting messages in due order. Warnings about missing messages go to stderr; with "
        "--json also to the last line, with the kind “summary”, where a number above counted_to "
        "means more. The actions cancel, reschedule and deliver-now change the named messages; "
        "changes lists the requested changes, newest first, and undo removes them. For these two, "
        "--from and --until select by the original due time."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        scheduled_changes.add_arguments(parser)
        parser.add_argument("--json", action="store_true", help="one JSON object per line")
        parser.add_argument(
            "--topology", default="", help="topology slug, as in the page's address"
        )
        parser.add_argument("--destination", default="", help="queue or exchange after the delay")
        parser.add_argument(
            "--from", default="", help=f"start time. {MOMENT_HELP} Write --from=-1d with “=”."
        )
        parser.add_argument("--until", default="", help=f"end time (exclusive). {MOMENT_HELP}")
        parser.add_argument("--text", default="", help="words and fields, such as header.tenant:42")
        parser.add_argument("--overdue", action="store_true", help="only overdue messages")
        parser.add_argument(
            "--stuck", action="store_true", help="only due messages that RabbitMQ cannot route"
        )
        parser.add_argument(
            "--limit", type=int, help="maximum number of messages or changes; default: all"
        )

    def work(self, options: Mapping[str, Any]) -> None:
        now = datetime.now(UTC)
        filters = _read_filter(options, now)
        if filters.topology:
            find_topology(filters.topology)
        brokers = list(Broker.objects.all())
        rows = listing.filter_waiting(brokers, filters, now)
        action, write = options["action"], self.stdout.write
        if action == "changes":
            changes = find_changes(filters, options["id"])
            scheduled_changes.list_changes(options, map(make_record, changes.iterator()), write)
            return
        if action == "undo":
            scheduled_changes.undo_here(options, filters, write)
            return
        known = _read_ids(rows, options["id"])
        if options["id"]:
            rows = rows.filter(pk__in=set().union(*known.values()))
        found = export.lines(rows, filters.query, None)
        if action in scheduled_changes.KINDS:
            chosen = (line.row for line in found)
            scheduled_changes.change(action, chosen, known, options, now, write)
        else:
            self._list(
                options, map(export.record, found), partial(make_summary, brokers, filters, now)
            )

    def ask(self, server: Server, options: Mapping[str, Any]) -> None:
        now = datetime.now(UTC)
        filters = _read_filter(options, now)
        if options["user"]:
            raise BadInput("--user is for the host. The token of --server decides who acts.")
        if filters.topology:
            server.get(f"topologies/{quote(filters.topology, safe='')}")
        action, write = options["action"], self.stdout.write
        values = filters.as_values() | {"id": options["id"]}
        if action == "changes":
            found = server.read_pages("scheduled/changes", values)
            scheduled_changes.list_changes(options, found, write)
        elif action == "undo":
            scheduled_changes.undo_there(server, values, options, write)
        else:
            lines = map(json.loads, server.read("GET", "scheduled/export", values))
            if action in scheduled_changes.KINDS:
                scheduled_changes.change_there(server, action, lines, options, now, write)
            else:
                self._list(
                    options, lines, partial(server.get, "scheduled/summary", filters.as_values())
                )

    def _list(
        self,
        options: Mapping[str, Any],
        found: Iterable[dict[str, Any]],
        summarize: Callable[[], dict[str, Any]],
    ) -> None:
        lines = islice(found, options["limit"])
        if options["json"]:
            for line in lines:
                self.stdout.write(compact_json({"kind": "message"} | line))
        else:
            self.stdout.write(_columns(HEADS))
            for line in lines:
                self.stdout.write(_columns(_cells(line)))
        summary = summarize()
        for doubt in summary["incomplete"]:
            self.stderr.write(f"{doubt['topology']}: {doubt['sentence']}")
        if options["json"]:
            matching = None if options["id"] else summary["matching"]
            self.stdout.write(compact_json(summary | {"matching": matching}))


def _read_ids(rows: QuerySet[ScheduledMessage], names: Sequence[str]) -> dict[str, set[int]]:
    try:
        return listing.read_ids(rows, names)
    except listing.AmbiguousId as error:
        raise BadInput(f"--id: {error}") from error


def _read_filter(options: Mapping[str, Any], now: datetime) -> Filter:
    """Raises BadInput, also for an option that the action does not accept."""
    values = {name: options[name] for name in NAMES}
    flags = {name: "1" if options[name] else "" for name in ("overdue", "stuck")}
    filters = parse(values | flags, now)
    if filters.problems:
        raise BadInput(" ".join(f"--{name}: {why}" for name, why in filters.problems.items()))
    if options["limit"] is not None and options["limit"] < 1:
        raise BadInput("--limit needs a number from 1 on.")
    scheduled_changes.refuse_unknown_options(options["action"], options)
    return filters


def _cells(line: Mapping[str, Any]) -> tuple[str, ...]:
    late_ms, due_at = line["overdue_ms"], line["due_at"]
    return (
        f"{datetime.fromisoformat(due_at):%Y-%m-%d %H:%M:%S}" if due_at else "",
        line["state"],
        format_span(late_ms * MS) if late_ms else "",
        line["destination"],
        line["topology"],
        format_delay(line["requested_delay_ms"] * MS),
        line["message_id"] or line["content_id"],
    )


def _columns(cells: tuple[str, ...]) -> str:
    widths = (19, 8, 10, 24, 24, 10, 0)
    # The last one is an id, which --id needs whole.
    cut = [make_printable(cell, NARROW) for cell in cells[:-1]]
    cut.append(make_printable(cells[-1], LONGEST_NAME))
    return "  ".join(f"{cell:<{width}}" for cell, width in zip(cut, widths, strict=True)).rstrip()
