"""What waits, as rows for other programs: the fields of `manage.py scheduled` and of exports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from django.db.models import QuerySet

from analytics.models import ScheduledMessage
from analytics.scheduled.pages.lines import Reader, ScheduledLine
from analytics.scheduled.queries import listing, texts
from analytics.scheduled.queries.listing import filter_columns
from analytics.search.query import Query
from topology.content.export_format import compact_json, format_moment, write_export
from topology.delays import milliseconds
from topology.redaction import HIDDEN, Redaction

# Rows that are read at a time, so that memory stays the same however many there are.
CHUNK = 500
FIELDS = (
    "id",
    "broker",
    "topology",
    "destination",
    "due_at",
    "state",
    "overdue_ms",
    "requested_delay_ms",
    "published_at",
    "published_at_source",
    "published_by",
    "exchange",
    "routing_key",
    "entered_at",
    "queue",
    "hops",
    "remaining_hops",
    "attempt",
    "message_id",
    "correlation_id",
    "content_id",
    "content_type",
    "size_bytes",
    "source",
    "headers",
    "masked",
)


def lines(
    rows: QuerySet[ScheduledMessage], query: Query, hidden: Mapping[int, Redaction] | None
) -> Iterator[ScheduledLine]:
    """Every row that matches, in due order, as it is when read.

    `hidden` as for Reader.
    """
    reader = Reader(hidden)
    for row in read(rows, query):
        yield reader.line(row, datetime.now(UTC))


def record(line: ScheduledLine) -> dict[str, Any]:
    """One message by FIELDS: times are ISO texts in UTC, `_ms` whole milliseconds.

    `masked` is true when rules may redact something: HIDDEN is in its place.
    """
    row = line.row
    return {
        "id": row.pk,
        "broker": row.broker.slug,
        "topology": row.topology.slug if row.topology else "",
        "destination": row.destination,
        "due_at": format_moment(row.due_at),
        "state": line.state,
        "overdue_ms": milliseconds(line.overdue_by) if line.overdue_by else None,
        "requested_delay_ms": milliseconds(row.requested_delay),
        "published_at": HIDDEN if line.hides_published_at else format_moment(row.published_at),
        "published_at_source": row.published_at_source,
        "published_by": line.published_by,
        "exchange": row.exchange,
        "routing_key": row.routing_key,
        "entered_at": format_moment(row.entered_at),
        "queue": row.queue,
        "hops": line.hops,
        "remaining_hops": line.remaining_hops,
        "attempt": row.attempt,
        "message_id": row.message_id,
        "correlation_id": row.correlation_id,
        "content_id": row.content_id,
        "content_type": row.content_type,
        "size_bytes": row.size,
        "source": row.source,
        "headers": line.headers,
        "masked": line.is_masked,
    }


def write(form: str, read: Iterable[ScheduledLine]) -> Iterator[bytes]:
    records = map(record, read)
    return write_export(
        form, FIELDS, records, lambda one: (compact_json(one) + "\n").encode(), dict.values
    )


def read(rows: QuerySet[ScheduledMessage], query: Query) -> Iterator[ScheduledMessage]:
    """The messages that match, the first that is due first, including those that are not indexed
    yet.
    """
    rest = rows = filter_columns(rows, query)
    while chunk := list(rest[:CHUNK]):
        found = {row.pk for row in chunk}
        if query.words:
            found = {pk for pk, text in texts.texts_of(found).items() if query.has_words(text)}
        if query.content:
            found = {pk for pk, has in texts.values_of(found).items() if query.has_values(has)}
        yield from (row for row in chunk if row.pk in found)
        rest = listing.after_row(rows, chunk[-1])
