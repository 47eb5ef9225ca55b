"""What waits in the delays: as a table, or as JSON lines for programs; and changes of it.

Nothing is hidden from whoever has a shell here: redaction rules are for the roles of the site.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from django.core.management.base import CommandParser
from django.db.models import QuerySet

from analytics.models import ScheduledMessage
from analytics.scheduled.pages import export, scheduled_page
from analytics.scheduled.pages.lines import ScheduledLine
from analytics.scheduled.queries import listing
from analytics.scheduled.queries.filter import LONGEST_NAME, NAMES, Filter, parse
from analytics.scheduled.summaries import counts
from analytics.scheduled.summaries.counts import MOST
from delayboard.management import scheduled_changes
from topology.content.export_format import compact_json
from topology.content.text import make_printable
from topology.delays import MOMENT_HELP, format_delay
from topology.management.command import BoardCommand
from topology.management.exit_codes import BadInput
from topology.management.find_rows import find_topology
from topology.models import Broker, Topology

HEADS = ("due", "state", "overdue by", "destination", "topology", "delay", "message")
NARROW = 60


class Command(BoardCommand):
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

    def handle(self, *args: Any, **options: Any) -> None:
        now = datetime.now(UTC)
        filters = _make_filter(options, now)
        if options["limit"] is not None and options["limit"] < 1:
            raise BadInput("--limit needs a number from 1 on.")
        brokers = list(Broker.objects.all())
        rows = listing.filter_waiting(brokers, filters, now)
        action, write = options["action"], self.stdout.write
        scheduled_changes.refuse_unknown_options(action, options)
        known = _read_ids(rows, options["id"])
        if options["id"]:
            rows = rows.filter(pk__in=set().union(*known.values()))
        if action in scheduled_changes.KINDS:
            chosen = (line.row for line in export.lines(rows, filters.query, None))
            scheduled_changes.change(action, chosen, known, options, now, write)
        elif action == "changes":
            scheduled_changes.list_changes(options, filters, write)
        elif action == "undo":
            scheduled_changes.undo_changes(options, filters, write)
        else:
            self._list(options, filters, brokers, rows, now)

    def _list(
        self,
        options: dict[str, Any],
        filters: Filter,
        brokers: list[Broker],
        rows: QuerySet[ScheduledMessage],
        now: datetime,
    ) -> None:
        lines = islice(export.lines(rows, filters.query, None), options["limit"])
        if options["json"]:
            for line in lines:
                self.stdout.write(compact_json({"kind": "message"} | export.record(line)))
        else:
            self.stdout.write(_columns(HEADS))
            for line in lines:
                self.stdout.write(_columns(_cells(line)))
        scope = counts.scope(
            brokers, now, topology_slug=filters.topology, destination=filters.destination
        )
        around = counts.scope(brokers, now, topology_slug=filters.topology)
        doubts = scheduled_page.doubts(around, brokers, Topology.objects.select_related("broker"))
        for doubt in doubts:
            self.stderr.write(f"{doubt.topology.slug}: {doubt.sentence}")
        if options["json"]:
            total = counts.of_counts(scope, filters)
            values = {
                "kind": "summary",
                "waiting": total.waiting,
                "overdue": total.overdue,
                "stuck": total.stuck,
                "matching": None if filters.text or options["id"] else total.matching,
                "counted_to": MOST,
                "incomplete": [doubt.record for doubt in doubts],
            }
            self.stdout.write(compact_json(values))


def _read_ids(rows: QuerySet[ScheduledMessage], names: Sequence[str]) -> dict[str, set[int]]:
    try:
        return listing.read_ids(rows, names)
    except listing.AmbiguousId as error:
        raise BadInput(f"--id: {error}") from error


def _make_filter(options: dict[str, Any], now: datetime) -> Filter:
    values = {name: options[name] for name in NAMES}
    flags = {name: "1" if options[name] else "" for name in ("overdue", "stuck")}
    filters = parse(values | flags, now)
    if filters.problems:
        raise BadInput(" ".join(f"--{name}: {why}" for name, why in filters.problems.items()))
    if filters.topology:
        find_topology(filters.topology)
    return filters


def _cells(line: ScheduledLine) -> tuple[str, ...]:
    row = line.row
    return (
        f"{row.due_at:%Y-%m-%d %H:%M:%S}",
        line.state,
        line.overdue_words,
        row.destination,
        row.topology.slug if row.topology else "",
        format_delay(row.requested_delay),
        row.key,
    )


def _columns(cells: tuple[str, ...]) -> str:
    widths = (19, 8, 10, 24, 24, 10, 0)
    # The last one is an id, which --id needs whole.
    cut = [make_printable(cell, NARROW) for cell in cells[:-1]]
    cut.append(make_printable(cells[-1], LONGEST_NAME))
    return "  ".join(f"{cell:<{width}}" for cell, width in zip(cut, widths, strict=True)).rstrip()
