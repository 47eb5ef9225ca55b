"""Lines of an import of timeouts: what they mean and which message they become."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest

from delayboard.publishing.timeout_import import timeout as timeouts
from delayboard.publishing.timeout_import.timeout import Malformed, numbered_lines, read_line
from tests.delayboard.timeouts.lines import LEVELS, LONGEST, a_line, text
from tests.topology.builders import NOON
from topology.message import PUBLISHED_AT_HEADER, TRACKING_HEADER, Publish
from topology.patterns.delay_levels import params as delay_levels_params
from topology.patterns.delay_levels import pattern as delay_levels_pattern

SOME_ID = UUID(int=7)


def test_a_line_says_where_when_and_what() -> None:
    read = read_line(
        text(
            {
                "destination": "Retail.Sales",
                "due_at": "2027-01-31T09:00:00.1234567+01:00",
                "body_base64": "AP8=",
                "headers": {"tenant": 4, "nested": {"a": [1, None]}},
                "correlation_id": "c",
                "priority": 3,
                "reply_to": None,
            }
        )
    )
    assert read.destination == "Retail.Sales"
    assert read.due_at == datetime(2027, 1, 31, 8, 0, 0, 123456, tzinfo=UTC)
    assert read.body == b"\x00\xff"
    assert read.headers == {"tenant": 4, "nested": {"a": [1, None]}}
    assert read.properties == {"correlation_id": "c", "priority": 3}
    ms = read_line(text({"destination": "a", "due_at_ms": 1_000_500, "body": "é"}))
    assert (ms.due_at.timestamp(), ms.body) == (1000.5, "é".encode())


def test_what_nservicebus_keeps_in_headers_becomes_properties_too() -> None:
    headers = {
        "NServiceBus.MessageId": "m1",
        "NServiceBus.ContentType": "text/json",
        "NServiceBus.CorrelationId": "c1",
    }
    assert read_line(a_line(headers=headers)).properties == {
        "message_id": "m1",
        "content_type": "text/json",
        "correlation_id": "c1",
    }
    assert read_line(a_line(headers=headers, message_id="own")).properties["message_id"] == "own"


@pytest.mark.parametrize("empty", ["", "   "])
def test_an_empty_text_states_nothing_in_a_field_or_a_header(empty: str) -> None:
    headers = {"NServiceBus.MessageId": empty, "NServiceBus.ContentType": "text/json"}
    read = read_line(a_line(headers=headers, message_id=empty, content_type=empty, reply_to=empty))
    assert read.properties == {"content_type": "text/json"}
    assert read.message_id == ""


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"\xff{}", "not UTF-8"),
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"7", "not a JSON object"),
        (a_line(due_ta=1), "unknown field “due_ta”"),
        (a_line(expiration="5"), "unknown field “expiration”"),
        (a_line(destination=""), "no “destination”"),
        (text({"destination": 5}), "no “destination”"),
        (a_line(destination="\ud800"), "not valid Unicode"),
        (a_line(due_at=None), "either “due_at” or “due_at_ms”"),
        (a_line(due_at_ms=5), "either “due_at” or “due_at_ms”"),
        (a_line(due_at="2027-01-31T08:00:00"), "no time zone"),
        (a_line(due_at="tomorrow"), "not a valid time"),
        (a_line(due_at=5), "not a valid time"),
        (a_line(due_at="0001-01-01T00:00:00+14:00"), "not a valid time"),
        (a_line(due_at=None, due_at_ms=True), "not a whole number"),
        (a_line(due_at=None, due_at_ms=10**20), "not a valid time"),
        (a_line(body=None), "either “body” or “body_base64”"),
        (a_line(body_base64=""), "either “body” or “body_base64”"),
        (a_line(body={"a": 1}), "not a string"),
        (a_line(body="\ud800"), "not valid Unicode"),
        (a_line(body=None, body_base64="A"), "not valid Base64"),
        (a_line(body=None, body_base64=1234), "not a string"),
        (a_line(headers=[]), "not a JSON object"),
        (a_line(message_id=5), "“message_id” is not a text"),
        (a_line(priority="high"), "“priority” is not a whole number"),
    ],
)
def test_a_malformed_line_says_why(line: bytes, why: str) -> None:
    with pytest.raises(Malformed, match=why):
        read_line(line)


def test_lines_are_numbered_blank_ones_and_a_byte_order_mark_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timeouts, "LONGEST_LINE", 10)
    long = b"x" * 35
    stream = io.BytesIO(b"\xef\xbb\xbffirst\r\n\n  \n" + long + b"\nlast")
    first, cut, last = numbered_lines(stream)
    assert (first, last) == ((1, b"first"), (5, b"last"))
    assert cut[0] == 4
    with pytest.raises(Malformed, match="larger than"):
        read_line(cut[1])


def published(params: delay_levels_params.Params, line: bytes, now: datetime = NOON) -> Publish:
    timeout = read_line(line)
    route = timeouts.route_at(params, timeout, now)
    return timeouts.publish_at(params, timeout, route, SOME_ID, now)


def test_what_a_former_way_through_a_broker_left_on_a_message_does_not_come_in() -> None:
    headers = {"x-death": [{"queue": "a", "count": 3}], "CC": ["b"], "tenant": 4, "x-mine": "y"}
    message = published(LEVELS, a_line(headers=headers, type="t"))
    assert message.properties.headers == {
        "tenant": 4,
        "x-mine": "y",
        TRACKING_HEADER: str(SOME_ID),
        PUBLISHED_AT_HEADER: int(NOON.timestamp() * 1000),
    }
    stated = message.properties.stated()
    assert stated == {"delivery_mode": 2, "message_id": str(SOME_ID), "type": "t"}


def test_what_is_left_is_rounded_up_to_steps_and_what_is_due_goes_at_once() -> None:
    for due, seconds in ((timedelta(seconds=4.2), 5), (timedelta(0), 0), (-LONGEST, 0)):
        message = published(LEVELS, a_line(due=due))
        bits, target = delay_levels_pattern.split_key(LEVELS, message.routing_key)
        assert (int(bits, 2), target) == (seconds, "orders")


def test_particular_s_own_tools_add_up_the_same_due_time() -> None:
    """`delays transfer` takes TimeSent plus DelayInSeconds (nservicebus.md §2)."""
    name = "NServiceBus.Transport.RabbitMQ.DelayInSeconds"
    sent = {"NServiceBus.TimeSent": "2026-11-20 11:59:00:000000 Z"}
    nsb, due = delay_levels_params.Params("nsb-v2"), timedelta(seconds=10)
    assert published(nsb, a_line(due=due, headers=sent)).properties.headers[name] == 70
    assert published(nsb, a_line(due=due)).properties.headers[name] == 10
    assert name not in published(LEVELS, a_line(due=due)).properties.headers


def test_a_line_is_known_by_its_message_id_and_destination_or_by_itself() -> None:
    def key(line: bytes, name: str = "a.jsonl", nth: int = 0) -> str:
        return timeouts.line_key(read_line(line), name, timeouts.line_digest(line), nth)

    named = a_line(message_id="m")
    assert key(named) == key(a_line(message_id="m", due=LONGEST), "b.jsonl", 1)
    assert key(named) != key(a_line("other", message_id="m"))
    plain = a_line()
    assert len({key(plain), key(plain, "b.jsonl"), key(plain, nth=1), key(named)}) == 4


def test_the_examples_of_the_document_can_be_read() -> None:
    document = Path(__file__).resolve().parents[3] / "docs" / "timeouts.md"
    examples = [line for line in document.read_bytes().splitlines() if line.startswith(b"{")]
    read = [read_line(line) for line in examples]
    assert [timeout.destination for timeout in read] == [
        "Retail.Sales",
        "Retail.Sales",
        "Retail.Billing",
        "reminders",
    ]
    assert all("message_id" in timeout.properties for timeout in read)
