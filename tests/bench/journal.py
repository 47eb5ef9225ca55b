"""A large journal, written in bulk: the messages, their bodies, and what is searched of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import islice
from typing import Any

from django.db import connection, transaction
from django.db.models import Model

from analytics.search import content
from delayboard.dead_letters.parked.failure import Failure
from delayboard.migrations._search_index import SEARCH_INDEX
from delayboard.models import (
    Body,
    MessageGroup,
    ParkedField,
    ParkedMessage,
    ParkedPosition,
    ParkedText,
)
from topology.broker.properties.read import build_properties
from topology.models import Broker

# Columns of one kind of row, in the order of its table.
Rows = Iterable[Sequence[Any]]

CHUNK = 5000
GROUPS = 200
QUEUES = 40
TENANTS = 100
RARE = 5000
NOW = datetime.now(UTC)


def fill(broker: Broker, number: int) -> None:
    """`number` messages: of one in a hundred tenants, of amounts up to a million, most of them of
    a few large groups and queues; one in RARE says “uncommon”.
    """
    groups = _groups(broker, number)
    indexes = _without_indexes((ParkedField, ParkedText))
    with connection.cursor() as cursor:
        for statement in NO_INDEX[connection.vendor]:
            cursor.execute(statement)
    parked_messages = (_parked_message(place, broker, groups) for place in range(1, number + 1))
    while chunk := list(islice(parked_messages, CHUNK)):
        with transaction.atomic():
            _insert(Body, ("sha256", "data", "size"), (row[0] for row in chunk))
            _insert(ParkedMessage, PARKED_MESSAGE, (row[1] for row in chunk))
            _insert(ParkedText, TEXT, (row[2] for row in chunk))
            fields = (one for row in chunk for one in row[3])
            _insert(ParkedField, ("parked_message_id", "name", "text", "number"), fields)
    ParkedPosition.objects.create(pk=1, read_to=number)
    with connection.schema_editor() as editor:
        for model, index in indexes:
            editor.add_index(model, index)
    with connection.cursor() as cursor:
        for statement in INDEX_AGAIN[connection.vendor]:
            cursor.execute(statement)
        cursor.execute("ANALYZE" if connection.vendor == "sqlite" else "VACUUM ANALYZE")


NO_INDEX = {
    "sqlite": ("PRAGMA synchronous=OFF", "DROP TRIGGER delayboard_parkedindex_added"),
    "postgresql": ("DROP INDEX delayboard_parkedindex",),
}
INDEX_AGAIN = {
    "sqlite": (
        "INSERT INTO delayboard_parkedindex (delayboard_parkedindex, rank)"
        " VALUES ('hashsize', 67108864)",
        "INSERT INTO delayboard_parkedindex (delayboard_parkedindex) VALUES ('rebuild')",
        SEARCH_INDEX.sqlite[1],
    ),
    "postgresql": (SEARCH_INDEX.postgresql[1],),
}
PARKED_MESSAGE = (
    "id",
    "broker_id",
    "queue",
    "group_id",
    "state",
    "exchange",
    "routing_key",
    "properties",
    "body_id",
    "size",
    "redelivered",
    "content_id",
    "message_id",
    "deaths",
    "died_at",
    "parked_at",
    "state_at",
    "imported_uid",
)
TEXT = ("parked_message_id", "text", "message_id", "size", "deaths", "died_at", "parked_at")


def _parked_message(place: int, broker: Broker, groups: Sequence[int]) -> tuple[Any, Any, Any, Any]:
    """Body, message, text and fields of one, as the indexer would write them."""
    tenant, region, note = _spread(place) % TENANTS, place % 4, place % RARE == 17
    amount, status = _spread(place * 7) % 1_000_000, "waiting" if place % 3 else "paid"
    customer = f"customer-{_spread(place) % 10007}"
    data = (
        f'{{"order":"order-{place:08d}","customer":"{customer}","amount":{amount},'
        f'"status":"{status}"}}'
    )
    message_id, key = f"message-{place:08d}", f"{place:064x}"
    headers = _headers(tenant, region, note)
    at = _moment(NOW - timedelta(seconds=2_000_000 - place * 2))
    size, deaths = len(data), 1 + (place % 9 == 0) + 20 * (place % 50_000 == 0)
    parked_message = (
        place, broker.pk, _queue(place), groups[_group(place)], "parked", "", "dead",
        headers.raw, key, size, False, key[32:], message_id, deaths, at, at, at, "",
    )  # fmt: skip
    text = (place, f"{message_id}\n{headers.text}\n{data}", message_id, size, deaths, at, at)
    values = (("order", f"order-{place:08d}"), ("customer", customer), ("status", status))
    fields = [(place, *one) for one in headers.fields]
    fields += [(place, f"body.{name}", value, None) for name, value in values]
    fields.append((place, "body.amount", str(amount), float(amount)))
    return (key, data.encode(), size), parked_message, text, fields


@dataclass(frozen=True)
class _Headers:
    raw: bytes
    text: str
    fields: tuple[tuple[str, str, float | None], ...]


@cache
def _headers(tenant: int, region: int, note: bool) -> _Headers:
    headers: dict[str, Any] = {"tenant": tenant, "region": f"region-{region}"}
    if note:
        headers["note"] = "uncommon"
    properties = build_properties(headers, content_type="application/json")
    read = content.read(properties, b"")
    fields = tuple((held.name, held.text, held.number) for held in read.fields)
    return _Headers(properties.raw, read.text, fields)


def _spread(place: int) -> int:
    """A number that looks like chance and is always the same."""
    return (place * 2_654_435_761) % 4_294_967_291


def _queue(place: int) -> str:
    """One of two thirds of all, or one of many; the last is seldom."""
    return "orders.dead" if place % 3 else f"queue-{(place // 3) % QUEUES}.dead"


def _group(place: int) -> int:
    """Half of all are in the first, one in RARE is in the last."""
    if place % RARE == 17:
        return GROUPS - 1
    return 0 if place % 2 else 1 + _spread(place) % (GROUPS - 2)


def _groups(broker: Broker, number: int) -> list[int]:
    counts = [0] * GROUPS
    for place in range(1, number + 1):
        counts[_group(place)] += 1
    made = []
    for place, count in enumerate(counts):
        reason = "expired" if place % 4 == 0 else "rejected"
        failure = Failure(f"work-{place}", reason, "orders", f"key.{place}", "", "")
        made.append(
            MessageGroup.objects.create(
                broker=broker,
                fingerprint=failure.fingerprint,
                died_in=failure.died_in,
                reason=failure.reason,
                exchange=failure.exchange,
                routing_key=failure.routing_key,
                parked=count,
                total=count,
                first_at=NOW - timedelta(days=20),
                last_at=NOW - timedelta(seconds=place),
            ).pk
        )
    return made


def _without_indexes(models: Iterable[type[Model]]) -> list[tuple[type[Model], Any]]:
    """Drop what is quicker made at the end."""
    dropped = [(model, index) for model in models for index in model._meta.indexes]
    with connection.schema_editor() as editor:
        for model, index in dropped:
            editor.remove_index(model, index)
    return dropped


def _moment(at: datetime) -> Any:
    return connection.ops.adapt_datetimefield_value(at)


def _insert(model: type[Model], columns: Sequence[str], rows: Rows) -> None:
    table = model._meta.db_table
    names = ", ".join(columns)
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            places = ", ".join(["%s"] * len(columns))
            cursor.executemany(f"INSERT INTO {table} ({names}) VALUES ({places})", list(rows))
            return
        with cursor.copy(f"COPY {table} ({names}) FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)
