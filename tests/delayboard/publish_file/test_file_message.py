"""Lines of a file: what they mean and which message they become."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import ANY
from uuid import UUID

import pytest

from delayboard.publishing import file_message, publish_file
from delayboard.publishing.file_message import (
    PLAIN,
    Malformed,
    make_publish,
    read_line,
    read_mapping,
)
from delayboard.publishing.publish_file import Verdict, try_file
from tests.delayboard.publish_file.lines import LEVELS, LONGEST, Channel, a_line, read, text
from tests.topology.builders import NOON
from topology.message import PUBLISHED_AT_HEADER, TRACKING_HEADER, Publish
from topology.models import Topology
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
    ms = read_line(text({"destination": "a", "due_at": 1_000_500, "body": "é"}))
    assert (ms.due_at.timestamp(), ms.body) == (1000.5, "é".encode())


NSERVICEBUS = read_mapping("nservicebus")


def test_the_mapping_of_nservicebus_reads_a_row_as_a_database_exports_it() -> None:
    headers = {
        "NServiceBus.MessageId": "m1",
        "NServiceBus.ContentType": "text/json",
        "NServiceBus.CorrelationId": "c1",
    }
    row = {
        "Id": "8f2c",
        "Destination": "Retail.Sales@WEB-7",
        "Time": "2027-01-31 08:00:00.0000000",
        "State": "e30=",
        "PersistenceVersion": "4.6",
    }
    for stated in (headers, json.dumps(headers)):
        read = read_line(text({**row, "Headers": stated}), NSERVICEBUS)
        assert (read.destination, read.body) == ("Retail.Sales", b"{}")
        assert read.due_at == datetime(2027, 1, 31, 8, tzinfo=UTC)
        assert read.properties == {
            "message_id": "m1",
            "content_type": "text/json",
            "correlation_id": "c1",
        }
    without_id = read_line(text({**row, "Headers": {"NServiceBus.MessageId": " "}}), NSERVICEBUS)
    assert without_id.message_id == ""
    with pytest.raises(Malformed, match="“headers” are not a JSON object"):
        read_line(text({**row, "Headers": "<xml>"}), NSERVICEBUS)


def test_a_mapping_of_a_file_says_what_is_wrong_with_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[fields]\ndestination = "queue"\ndue_at = "at"\nbody = "text"')
    read = read_line(text({"queue": "a", "at": 5, "text": "b", "more": 1}), read_mapping(str(file)))
    assert (read.destination, read.body) == ("a", b"b")
    for written, why in (("[fields", "is no mapping"), ("x = 1", "is no mapping")):
        file.write_text(written)
        with pytest.raises(ValueError, match=why):
            read_mapping(str(file))
    file.write_text('[fields]\ndue = "at"')
    with pytest.raises(ValueError, match="the unknown field “due”"):
        read_mapping(str(file))


@pytest.mark.parametrize("empty", ["", "   "])
def test_an_empty_text_states_nothing(empty: str) -> None:
    read = read_line(a_line(message_id=empty, content_type="a", reply_to=empty))
    assert (read.properties, read.message_id) == ({"content_type": "a"}, "")


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
        (a_line(due_at=None), "neither a time"),
        (a_line(due_at_ms=5), "unknown field “due_at_ms”"),
        (a_line(due_at="2027-01-31T08:00:00"), "no time zone"),
        (a_line(due_at="tomorrow"), "neither a time"),
        (a_line(due_at="0001-01-01T00:00:00+14:00"), "neither a time"),
        (a_line(due_at=True), "neither a time"),
        (a_line(due_at=10**20), "neither a time"),
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


@pytest.mark.django_db
def test_lines_are_numbered_and_a_byte_order_mark_is_none(
    channel: Channel, levels: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish_file, "LONGEST_LINE", 100)
    monkeypatch.setattr(file_message, "LONGEST_LINE", 100)
    lines = (b"\xef\xbb\xbf" + b"no json", b" \r", b"x" * 150, b"last")
    verdicts: list[Verdict] = []
    try_file(read(levels, *lines), verdicts.append)
    assert [(one.line, one.sentence[:30]) for one in verdicts] == [
        (1, "The line is not JSON: Expectin"),
        (3, "The line is larger than 0 MiB."),
        (4, "The line is not JSON: Expectin"),
        (5, "The line is not JSON: Expectin"),
    ]


def published(params: delay_levels_params.Params, line: bytes, now: datetime = NOON) -> Publish:
    message = read_line(line)
    left = max(message.due_at - now, timedelta(0))
    route = delay_levels_pattern.delay_levels.route(params, left, message.destination)
    return make_publish(params, message, route, SOME_ID, now, may_be_duplicated=False)


def test_what_a_former_way_through_a_broker_left_on_a_message_does_not_come_in() -> None:
    headers = {"x-death": [{"queue": "a", "count": 3}], "CC": ["b"], "tenant": 4, "x-mine": "y"}
    message = published(LEVELS, a_line(headers=headers, type="t"))
    ours = {TRACKING_HEADER: str(SOME_ID), PUBLISHED_AT_HEADER: ANY}
    assert message.properties.headers == {"tenant": 4, "x-mine": "y", **ours}
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


def test_the_examples_of_the_document_can_be_read() -> None:
    document = Path(__file__).resolve().parents[3] / "docs" / "timeouts.md"
    examples = [line for line in document.read_bytes().splitlines() if line.startswith(b"{")]
    read = [
        read_line(line, NSERVICEBUS if b'"Destination"' in line else PLAIN) for line in examples
    ]
    assert [message.destination for message in read] == [
        *("Retail.Sales", "Retail.Sales", "Retail.Billing", "reminders")
    ]
    assert all(message.message_id for message in read)
    assert read[1].headers["NServiceBus.SagaId"] == "9d1c3e3e-4d0f-4a58-a7f6-ac1b00f59f3b"
