"""A million waiting messages, put straight into the database: what the list is measured on."""

from __future__ import annotations

from django.db import connection

from topology.models import Broker, State, Topology
from topology.operations.connect import add_broker

TOPOLOGIES = 10
# One of the million holds it, all do, none does.
RARE, COMMON, ABSENT = "needle-77777", "shop.messages", "nothing holds this"
SQLITE = {
    "moment": "strftime('%Y-%m-%d %H:%M:%f', julianday('now') + ({0}) / 86400.0)",
    "span": "CAST(({0}) * 1000000 AS bigint)",
}
POSTGRESQL = {
    "moment": "(now() + ({0}) * interval '1 second')",
    "span": "(({0}) * interval '1 second')",
}
# Due within the hour or the week, one in 500 some minutes ago.
DUE = (
    "CASE WHEN i % 500 = 0 THEN -(i % 900) - 5 WHEN i % 20 = 0 THEN (i * 7.919) % 3600.0"
    " ELSE (i * 13.577) % 604800.0 END"
)
MESSAGES = """
    WITH RECURSIVE numbers(i) AS (
        SELECT CAST(1 AS bigint) UNION ALL SELECT i + 1 FROM numbers WHERE i < {number}
    )
    INSERT INTO analytics_scheduledmessage (
        broker_id, topology_id, key, message_id, content_id, tracking_id, attempt,
        requested_delay, entered_at, due_at, destination, queue, size, caught_up, source,
        correlation_id, exchange, routing_key, published_at, published_at_source, published_by,
        content_type, headers_json
    )
    SELECT {broker}, {topology}, 'message-' || i, 'message-' || i, 'c' || i, '', 1,
        {span}, {entered}, {due}, {destination}, 'hold', 512, {true}, 'tap',
        'order-' || (i * 7919 % 1000003), 'events', 'order.placed', {entered}, 'timestamp', 'sales',
        'application/json',
        '{{"tenant":' || (i % 997) || ',"endpoint":"sales","type":"shop.messages.OrderPlaced, shop"'
        || ',"customer":"customer-' || (i * 31 % 99991) || '","needle":"needle-' || i || '"'
        || ',"kind":"'
        || (CASE (i / 7) % 3 WHEN 0 THEN 'invoice' WHEN 1 THEN 'message' ELSE 'order' END)
        || '","traceparent":"00-' || (i * 48271 % 2147483647) || '-' || (i * 69621 % 2147483647)
        || '-01"}}'
    FROM numbers
"""
TEXTS = """
    INSERT INTO analytics_scheduledtext (message_id, text, check_at)
    SELECT id, lower(message_id || '{line}' || correlation_id || '{line}' || headers_json), due_at
    FROM analytics_scheduledmessage
"""


def fill(number: int) -> None:
    """So many messages of ten topologies, one of which has a hundred, with texts."""
    broker = add_broker(
        Broker(name="Bench", amqp_addresses="127.0.0.1:9", management_urls="http://127.0.0.1:9"), ""
    )
    first = min(_topology(broker, number).pk for number in range(TOPOLOGIES))
    is_sqlite = connection.vendor == "sqlite"
    words = SQLITE if is_sqlite else POSTGRESQL
    rare = f"i % {max(1, number // 100)} = 0"
    due = words["moment"].format(DUE)
    with connection.cursor() as cursor:
        cursor.execute(
            MESSAGES.format(
                number=number,
                broker=broker.pk,
                topology=f"{first} + CASE WHEN {rare} THEN 9 ELSE i % 9 END",
                destination=f"CASE WHEN {rare} THEN 'seldom' ELSE 'queue-' || (i % 45) END",
                span=words["span"].format("86400"),
                entered=words["moment"].format("-7200"),
                due=due,
                true="1" if is_sqlite else "true",
            )
        )
        cursor.execute(TEXTS.format(line="\n"))
        cursor.execute("INSERT INTO analytics_textposition (id, read_to) VALUES (1, %s)", [number])
        cursor.execute("ANALYZE")


def _topology(broker: Broker, number: int) -> Topology:
    name = f"orders-{number}"
    return Topology.objects.create(
        broker=broker,
        slug=name,
        kind="retry_pair",
        name=name,
        params={"name": name, "delay": "1d", "routing_key": name},
        state=State.APPLIED,
    )
