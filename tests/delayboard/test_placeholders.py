"""A hundred keys and messages as they are met, and what a group shows of each."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayboard.dead_letters.parked.failure import (
    LONGEST,
    READ_CHARACTERS,
    RULES,
    failure_of,
    put_placeholders,
)
from tests.delayboard.builders import a_death, a_message, deaths_header
from topology.clients.describe import describe
from topology.deaths import read_history
from topology.message import Message

SAME = ""
EXAMPLES: list[tuple[str, str]] = [
    ("order.created.550e8400-e29b-41d4-a716-446655440000", "order.created.<uuid>"),
    ("order.created.550E8400-E29B-41D4-A716-446655440000.eu1", "order.created.<uuid>.eu1"),
    ("order.created.550e8400e29b41d4a716446655440000", "order.created.<hex>"),
    ("order_550e8400-e29b-41d4-a716-446655440000_done", "order_<uuid>_done"),
    ("invoice.01ARZ3NDEKTSV4RRFFQ69G5FAV.paid", "invoice.<id>.paid"),
    ("event.0ujtsYcgvSTl8PAuAdqWYSMnLOv", "event.<id>"),
    ("mongo.507f1f77bcf86cd799439011.updated", "mongo.<hex>.updated"),
    ("xid.9m4e2mr0ui3e8a215n4g", "xid.<id>"),
    ("tweet.1541815603606036480.created", "tweet.<number>.created"),
    ("user.42.signed_up", "user.<number>.signed_up"),
    ("tenant-4711.orders", "tenant-<number>.orders"),
    ("tenant4711.orders", SAME),
    ("tenant47110.orders", "tenant<number>.orders"),
    ("tenant.acme.orders", SAME),
    ("orders.v1.created", SAME),
    ("orders.v2.created", SAME),
    ("orders.eu1", SAME),
    ("orders.eu-1.created", SAME),
    ("api.v1.2.3.orders", "api.v1.<number>.orders"),
    ("events.1700000000000", "events.<number>"),
    ("events.1700000000", "events.<number>"),
    ("events.2026-11-22", "events.<date>"),
    ("events.2026-11-22T10:15:30.123Z", "events.<date>"),
    ("events.20261122", "events.<date>"),
    ("events.20261122T101530Z", "events.<date>"),
    ("events.2026.11.22.orders", "events.<date>.orders"),
    ("events.2026-11", "events.<date>"),
    ("ORD-2026-000123", "ORD-<number>-<number>"),
    ("SKU-AB12", SAME),
    ("cus_9s6XKzkNRiz8i3.charged", "cus_<id>.charged"),
    ("acct_1032D82eZvKYlo2C", "acct_<id>"),
    ("user.bob@example.com.created", "user.<email>.created"),
    ("host.10.0.0.3.up", "host.<number>.up"),
    ("metrics.192.168.10.20", "metrics.<number>"),
    ("sessions.2001:db8::8a2e:370:7334", "sessions.<ip>"),
    (
        "https://api.example.com/orders/123?user=9",
        "https://api.example.com/orders/<number>?user=<number>",
    ),
    ("/orders/123/items/550e8400-e29b-41d4-a716-446655440000", "/orders/<number>/items/<uuid>"),
    ("0.0.0.0.0.1.0.1.1.0.billing", "<number>.billing"),
    ("retry.5s", "retry.<number>s"),
    ("delay.30000ms", "delay.<number>ms"),
    ("orders-api-7f9c6d5b8-x2x4k", "orders-api-<id>"),
    ("orders.#", SAME),
    ("stock.*.low", SAME),
    ("orders.http2", SAME),
    ("log4j.warn", SAME),
    ("sha256.check", SAME),
    ("git.1a2b3c4d5e6f", "git.<hex>"),
    ("git.abcdef1", SAME),
    ("car.deadbeef", SAME),
    ("Connection refused: /10.0.0.3:5432", "Connection refused: /<ip>:5432"),
    ("Connection reset by peer: /10.0.0.3:52344", "Connection reset by peer: /<ip>:<number>"),
    ("connect ECONNREFUSED 127.0.0.1:6379", "connect ECONNREFUSED <ip>:6379"),
    ("connect ECONNREFUSED ::1:5432", "connect ECONNREFUSED <ip>"),
    ("connect ECONNREFUSED [::1]:5432", "connect ECONNREFUSED [<ip>]:5432"),
    (
        "dial tcp 10.0.0.3:5432: connect: connection refused",
        "dial tcp <ip>:5432: connect: connection refused",
    ),
    ("Timeout after 30000ms", "Timeout after <number>ms"),
    ("Timeout after 30000 ms", "Timeout after <number> ms"),
    (
        "The operation timed out after 30.5 seconds",
        "The operation timed out after <number> seconds",
    ),
    (
        'duplicate key value violates unique constraint "pk" Detail: Key (id)=(123) exists.',
        'duplicate key value violates unique constraint "pk" Detail: Key (id)=(<number>) exists.',
    ),
    (
        "Duplicate entry '4711' for key 'orders.PRIMARY'",
        "Duplicate entry '<number>' for key 'orders.PRIMARY'",
    ),
    ("ORA-00001: unique constraint (SHOP.ORDERS_PK) violated", SAME),
    (
        "SQLSTATE[23000]: Integrity constraint violation: 1062 Duplicate entry",
        "SQLSTATE[23000]: Integrity constraint violation: <number> Duplicate entry",
    ),
    ("MySQL error 1062: Duplicate", SAME),
    ("[Errno 111] Connection refused", SAME),
    ("HTTP 404", SAME),
    ("HTTP 500: boom 7", "HTTP 500: boom <number>"),
    ("HTTP/1.1 503 Service Unavailable", SAME),
    ("Request failed with status code 500", SAME),
    ("Response status code does not indicate success: 404 (Not Found).", SAME),
    ("status=502 for order 17", "status=502 for order <number>"),
    ("The remote server returned an error: (403) Forbidden.", SAME),
    ("401 Unauthorized", SAME),
    ("HRESULT: 0x80004005", SAME),
    ("segfault at 0x7ffe12ab34cd", "segfault at <hex>"),
    ("com.shop.Order@1f2e3d4c cannot be cast", "com.shop.Order@<hex> cannot be cast"),
    ("java.lang.Object@6d06d69c", "java.lang.Object@<hex>"),
    ("stock of 4711 is negative", "stock of <number> is negative"),
    ("stock is -5", "stock is <number>"),
    ("Cannot read properties of undefined (reading 'id')", SAME),
    (
        "Cannot find user 9f8b7c6d-1234-4abc-8def-1234567890ab in tenant 12",
        "Cannot find user <uuid> in tenant <number>",
    ),
    (
        "invalid literal for int() with base 10: 'abc123'",
        "invalid literal for int() with base <number>: 'abc123'",
    ),
    ("KeyError: 'order_123'", "KeyError: 'order_<number>'"),
    ("list index 5 out of range 3", "list index <number> out of range <number>"),
    ("Expected 1,234.50 but was 99", "Expected <number> but was <number>"),
    ("Sun, 22 Nov 2026 10:15:00 GMT expired", "Sun, <date> expired"),
    ("token expired at 11/22/2026 9:05:01 PM", "token expired at <date>"),
    ("job started 10:15:30.123 failed", "job started <time> failed"),
    (
        "1 unhandled exceptions: 09:17:12 +00:00: boom",
        "<number> unhandled exceptions: <time>: boom",
    ),
    ("Deadlock found when trying to get lock; try restarting transaction", SAME),
    (
        "deadlock detected: Process 12345 waits for ShareLock on transaction 998877",
        "deadlock detected: Process <number> waits for ShareLock on transaction <number>",
    ),
    (
        "Row was updated or deleted by another transaction : [Order#42]",
        "Row was updated or deleted by another transaction : [Order#<number>]",
    ),
    (
        "No such file or directory: '/tmp/export-20261122-7.csv'",
        "No such file or directory: '/tmp/export-<date>-<number>.csv'",
    ),
    ("bad version 3.10.8", "bad version <number>"),
    ("line 42, column 7", "line <number>, column <number>"),
    ("exit code 137", SAME),
    ("goroutine 17 [running]", "goroutine <number> [running]"),
    (
        "Order 550e8400-e29b-41d4-a716-446655440000 not found at 2026-11-22 10:15:30,123",
        "Order <uuid> not found at <date>",
    ),
    ("Payload too large: 1048576 bytes > 262144", "Payload too large: <number> bytes > <number>"),
    ("heap 95% of 4GB used", "heap <number>% of <number>GB used"),
    ("Bearer eyJhbGciOiJIUzI1NiJ9 rejected", "Bearer <id> rejected"),
    ("Mail to bob.smith+x@mail.example.co.uk bounced", "Mail to <email> bounced"),
    (
        "key=value12 x509 utf8 utf-8 iso-8859-1",
        "key=value12 x509 utf8 utf-<number> iso-<number>-<number>",
    ),
    ("windows-1252", "windows-<number>"),
    ("port 8080 in use", "port <number> in use"),
    ("Lock wait timeout exceeded", SAME),
    ("May 5 was", "<date> was"),
    ("May be 5", "May be <number>"),
    (
        "read tcp 10.0.0.5:41234->10.0.0.3:5432: i/o timeout",
        "read tcp <ip>:<number>-><ip>:5432: i/o timeout",
    ),
    ("bob.smith@example.com", "bob.<email>"),
    ("sqs.eu-west-1.orders", SAME),
    ("us-east-2.orders", SAME),
    ("ORA-12154: TNS:could not resolve", SAME),
    ("Error: SQLITE_BUSY: database is locked", SAME),
    (
        "psycopg.errors.UniqueViolation: Key (email)=(bob@x.com) already exists.",
        "psycopg.errors.UniqueViolation: Key (email)=(<email>) already exists.",
    ),
    ("java.net.SocketTimeoutException: Read timed out", SAME),
    ("System.IO.IOException: 0x80131620", SAME),
    ("order.created.{550e8400-e29b-41d4-a716-446655440000}", "order.created.{<uuid>}"),
    ("item/1e5", SAME),
    ("a.b.c.d", SAME),
    ("10.0.0.3.5", "<number>"),
    (
        "payments.tenant_0042.refund.pi_3MtwBwLkdIwHu7ix28a3tqPa",
        "payments.tenant_<number>.refund.pi_<id>",
    ),
    (
        "io.netty.ConnectTimeoutException: connection timed out: redis.internal/10.2.3.4:6379",
        "io.netty.ConnectTimeoutException: connection timed out: redis.internal/<ip>:6379",
    ),
    ('pq: duplicate key value violates unique constraint "users_email_key"', SAME),
    (
        "Violation of PRIMARY KEY constraint 'PK_Orders'. The duplicate key value is (4711).",
        "Violation of PRIMARY KEY constraint 'PK_Orders'. The duplicate key value is (<number>).",
    ),
    ("Timeout expired.  The timeout period elapsed prior to completion of the operation.", SAME),
    ("could not serialize access due to concurrent update", SAME),
    (
        "x509: certificate has expired: 2026-11-22T10:15:30Z is after 2026-01-01T00:00:00Z",
        "x509: certificate has expired: <date> is after <date>",
    ),
]


@pytest.mark.parametrize(("text", "expected"), EXAMPLES)
def test_what_differs_between_messages_becomes_a_placeholder(text: str, expected: str) -> None:
    assert put_placeholders(text) == (expected or text)


def test_every_rule_is_met_by_an_example() -> None:
    assert len(EXAMPLES) >= 100
    text = "\n".join(text for text, _ in EXAMPLES)
    unmet = [rule.pattern.pattern for rule in RULES if not rule.pattern.search(text)]
    assert unmet == []


PIECES = st.sampled_from(
    [
        *"0123456789abfvxTZ.-:_@/ ()<>[]=+,#é",
        *("550e8400-e29b-41d4-a716-446655440000", "2026-11-22", "10:15:30", "10.0.0.3", "Nov "),
        *("<ip>:", "<number>", "HTTP ", "status ", "eu-", "0x", "ms"),
    ]
)
TEXTS = st.one_of(st.text(max_size=600), st.lists(PIECES, max_size=300).map("".join))


@given(TEXTS)
def test_twice_is_the_same_as_once_and_nothing_grows_without_end(text: str) -> None:
    once = put_placeholders(text)
    assert put_placeholders(once) == once
    assert len(once) <= LONGEST


@given(st.text(alphabet="abcdefghij.-_* #", max_size=LONGEST))
def test_words_alone_stay_as_they_are(text: str) -> None:
    assert put_placeholders(text) == text


HOSTILE = ["1", "a1", "1-", "1:", "1.", "f1:", "a@", "@a.", "::", "20", "Jan 1 ", "-1", "HTTP "]
HOSTILE += [
    "0x",
    "1,1",
    "<ip>:1",
    "b2-",
    "2026-",
    "10.0.0.",
    "a.a@a.a.",
    "status code ",
    "\\",
    "[(",
]


@pytest.mark.parametrize("piece", HOSTILE)
@pytest.mark.parametrize("end", ["", "!", "@", "Z", "1"])
def test_no_text_takes_long(piece: str, end: str) -> None:
    """A rule that goes back over and over would take hours on these."""
    text = (piece * READ_CHARACTERS)[: READ_CHARACTERS - 1] + end
    began = time.process_time()
    put_placeholders.__wrapped__(text)
    assert time.process_time() - began < 5
    assert len(put_placeholders(piece * 1_000_000)) <= LONGEST


def failed(key: str, **headers: str) -> Message:
    return a_message(headers=deaths_header(a_death(routing_keys=(key,))) | headers)


def groups_of(*messages: Message) -> int:
    return len({failure_of(one, read_history(one.headers), "dead").fingerprint for one in messages})


def test_three_hundred_keys_that_differ_in_their_id_are_one_group() -> None:
    ids = (f"{n:08x}-e29b-41d4-a716-446655440000" for n in range(300))
    assert groups_of(*(failed(f"order.created.{one}") for one in ids)) == 1
    assert groups_of(failed("orders.v1"), failed("orders.v2"), failed("orders.eu1")) == 3


def test_messages_of_exceptions_part_groups_but_their_ids_do_not() -> None:
    header = "x-exception-message"
    said = [f"order {n} is gone" for n in range(9)]
    assert groups_of(*(failed("orders", **{header: one}) for one in said)) == 1
    codes = ("HTTP 404", "HTTP 500")
    assert groups_of(*(failed("orders", **{header: one}) for one in codes)) == 2


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"NServiceBus.ExceptionInfo.Message": "Gone.\r\nMore of it"}, "Gone."),
        ({"MT-Fault-Message": "\n  boom   at once \n"}, "boom at once"),
        ({"x-exception-message": b"caf\xc3\xa9 closed"}, "café closed"),
        ({"x-exception-stacktrace": "java.io.IOException: disk full\n\tat a.B.c"}, "disk full"),
        ({"exception-message": "no truck"}, "no truck"),
        ({"x-exception-message": 7}, ""),
        ({}, ""),
    ],
)
def test_the_first_line_of_what_the_exception_said(
    headers: dict[str, object], expected: str
) -> None:
    read = describe(headers)
    assert (read.exception_message if read else None) == (expected or None)
