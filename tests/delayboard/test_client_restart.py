"""What a replay makes of a message that its client library failed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from delayboard.dead_letters.replay.content import make_sent, reset_counters, unwrap
from delayboard.dead_letters.replay.options import Options
from delayboard.dead_letters.replay.verdicts import MessageChecker
from delayboard.models import ReplayBatch
from tests.builders import make_broker
from tests.delayboard.builders import parked, shop
from tests.topology.builders import a_snapshot
from topology.broker.properties.read import build_properties
from topology.message import REPLAYS_HEADER, Message

INSIDE = '{"Text": "Grüße",  "n": 1.50}'
ENVELOPE = {
    "RoutingKey": "orders",
    "Exchange": "orders",
    "Queue": "orders",
    "Exception": "System.TimeoutException: late",
    "Message": INSIDE,
    "BasicProperties": {
        "MessageId": "a1",
        "Type": "Shop.Placed, Shop",
        "DeliveryMode": 2,
        "Priority": 300,
        "Expiration": "1000",
        "UserId": "shop",
        "Headers": {"tenant": "42"},
        "CorrelationId": 7,
    },
}


def inside(**headers: Any) -> dict[str, Any]:
    """The envelope of a message with these headers."""
    return ENVELOPE | {"BasicProperties": {"Headers": headers}}


RASCAL = {
    "rascal": {
        "originalQueue": "orders",
        "recovery": {"orders": {"forwarded": 2, "immediateNack": True}},
    }
}


def test_only_the_counter_changes_and_other_headers_keep_every_byte() -> None:
    properties = build_properties(
        {"first": b"\x00\xff", "x-retry-count": 3, "last": 2**40}, message_id="a1"
    )
    reset = reset_counters(properties, b"body")
    assert reset is not None
    assert (reset.library, reset.body) == ("golevelup", b"body")
    same = build_properties({"first": b"\x00\xff", "last": 2**40}, message_id="a1")
    assert reset.properties.raw == same.raw
    assert reset_counters(reset.properties, b"body") is None


@pytest.mark.parametrize("headers", [{}, {"x-death": []}, {"task": "a", "id": "b", "retries": 0}])
def test_a_message_that_counts_nothing_stays_as_it_is(headers: dict[str, Any]) -> None:
    batch = ReplayBatch()
    batch.conventions = ()
    assert make_sent(batch, build_properties(headers), b'{"retries": 3}') is None


def test_the_message_inside_an_envelope_has_its_own_bytes_and_properties() -> None:
    found = unwrap(build_properties(type="EasyNetQ.SystemMessages.Error"), write(ENVELOPE))
    assert found is not None
    properties, body = found
    assert body == INSIDE.encode()
    assert (properties.message_id, properties.type) == ("a1", "Shop.Placed, Shop")
    assert (properties.delivery_mode, properties.headers) == (2, {"tenant": "42"})
    assert (properties.priority, properties.expiration, properties.user_id) == (None, None, None)
    assert properties.correlation_id is None


@pytest.mark.parametrize(
    "changed",
    [{"Message": 7}, {"Message": None}, {"BasicProperties": {"Headers": {"n" * 300: 1}}}],
)
def test_an_envelope_that_cannot_be_read_stays_as_it_is(changed: dict[str, Any]) -> None:
    assert unwrap(build_properties(), write(ENVELOPE | changed)) is None
    assert unwrap(build_properties(), b"{}") is None


@pytest.mark.parametrize(
    ("headers", "body", "options", "ending"),
    [
        (RASCAL, {}, Options(), "delivered"),
        (RASCAL, {}, Options(keep_counters=True), "loops"),
        ({}, ENVELOPE, Options(), "envelope"),
        ({}, ENVELOPE, Options(unwraps=True), "delivered"),
        ({}, inside(tenant=float("nan")), Options(unwraps=True), "refused"),
        ({}, inside(tenant=2**70), Options(unwraps=True), "envelope"),
        ({}, inside(**{REPLAYS_HEADER: 9}), Options(unwraps=True), "guarded"),
    ],
)
@pytest.mark.django_db
def test_the_dry_run_says_what_the_library_would_do(
    headers: dict[str, Any], body: dict[str, Any], options: Options, ending: str
) -> None:
    broker = make_broker()
    (parked_message,) = parked(broker, Message("", "dead", build_properties(headers), write(body)))
    checker = MessageChecker(broker, options, a_snapshot(shop()))
    checked = checker.check_message(
        parked_message.group_id,
        "dead",
        bytes(parked_message.properties),
        parked_message.pk,
    )
    assert (checked.ending, checked.is_good) == (ending, ending == "delivered")
    assert checked.routing_key == "orders"


def write(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode()


def test_half_a_surrogate_pair_in_the_body_is_sent_as_it_was_escaped() -> None:
    body = (
        b'{"actor_name":"a","message_id":"m","queue_name":"q","args":["\\ud800"],'
        b'"options":{"retries":3}}'
    )

    reset = reset_counters(build_properties({}), body)

    assert reset is not None
    assert b'"args": ["\\ud800"], "options": {}' in reset.body


def test_a_reset_in_a_body_keeps_every_other_value_as_it_is_written() -> None:
    body = (
        b'{"actor_name":"a","message_id":"m","queue_name":"q","args":[1e400,1.10,"\\ud800"],'
        b'"n":1,"n":2,"options":{"retries":3,"eta":0.12345678901234567890123}}'
    )
    reset = reset_counters(build_properties(), body)
    assert reset is not None
    assert reset.body == (
        b'{"actor_name": "a", "message_id": "m", "queue_name": "q", '
        b'"args": [1e400, 1.10, "\\ud800"], "n": 1, "n": 2, '
        b'"options": {"eta": 0.12345678901234567890123}}'
    )


@pytest.mark.parametrize("value", ["often", {"a": 1}, True, -1])
def test_a_header_that_is_no_count_stays(value: Any) -> None:
    assert reset_counters(build_properties({"retries": value}), b"") is None
