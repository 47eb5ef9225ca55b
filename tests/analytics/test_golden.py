"""Lines of the event log as each release wrote them, and what they say, field by field.

A line that stands in tests/analytics/golden is never changed: it lies in somebody's log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import get_args

import orjson
import pytest

from analytics.events import FIELDS, Kind, MessageEvent, decode, encode

GOLDEN = Path(__file__).parent / "golden"
SEVEN = datetime(2026, 11, 20, 7, tzinfo=UTC)
ADDED_LATER = (
    *("published_by", "content_type", "body_base64", "properties_base64"),
    *("failures", "publisher_version"),
)


def at(text: str) -> datetime:
    """A moment after seven o'clock: minutes, seconds and microseconds as "05:09.000042"."""
    minutes, seconds = text.split(":")
    return SEVEN + timedelta(minutes=int(minutes), seconds=float(seconds))


TRIP = MessageEvent(
    event_id="9f2c:17",
    kind="scheduled",
    recorded_at=at("05:09.000042"),
    caught_up=True,
    source="tap",
    broker="main",
    vhost="/",
    topology="orders",
    pattern="retry_pair",
    exchange="orders-retry",
    routing_key="orders",
    queue="orders-retry",
    destination="orders",
    message_id="m-1",
    correlation_id="c-1",
    content_id="00ff",
    requested_delay_ms=300_000,
    published_at=at("05:00"),
    published_at_source="delayboard",
    due_at=at("10:09.000042"),
    attempt=2,
    replay_id="r-1",
    exception_type="TimeoutError",
    death_reason="rejected",
    death_queue="orders",
    deaths=3,
    size_bytes=512,
    headers_json='{"a":1}',
    tracking_id="t-1",
)
EXIT = replace(
    TRIP,
    event_id="9f2c:18",
    kind="delivered",
    recorded_at=at("10:09.120042"),
    exchange="orders",
    queue="orders",
    due_at=None,
    exception_type="",
    death_reason="expired",
    death_queue="orders-retry",
    deaths=4,
)
REMINDER = MessageEvent(
    event_id="delayboard.tap.nsb-v2-delay@4a8f00c1b2d3:41",
    kind="scheduled",
    recorded_at=at("06:00"),
    caught_up=True,
    source="tap",
    broker="main",
    vhost="shop",
    topology="nsb-v2-delay",
    pattern="delay_levels",
    exchange="nsb.v2.delay-level-13",
    routing_key="0.0.0.0.0.0.0.0.0.0.0.0.0.0.1.0.1.0.1.0.0.0.1.1.0.0.0.0.letters",
    queue="nsb.v2.delay-level-13",
    destination="letters",
    message_id="m-2",
    content_id="0b1e9cf2a3d4e5f60718293a4b5c6d7e",
    requested_delay_ms=10_800_000,
    published_at=at("06:00"),
    published_at_source="recorded",
    due_at=at("186:00"),
    attempt=1,
    size_bytes=5,
    headers_json='{"NServiceBus.OriginatingEndpoint":"shop"}',
    published_by="shop",
    content_type="text/plain",
    body_base64="aGVsbG8=",
)
FACT = MessageEvent(
    event_id="fact:5e1f0c3ba9d84c5c9f6d2f8a1b7c4e90",
    kind="published",
    recorded_at=at("04:59.5"),
    caught_up=True,
    source="delayboard",
    broker="main",
    vhost="/",
    topology="orders",
    pattern="retry_pair",
    exchange="orders",
    routing_key="orders",
    message_id="m-1",
    content_id="00ff",
    published_at=at("04:59.5"),
    published_at_source="delayboard",
    size_bytes=512,
    headers_json='{"delayboard-tracking-id":"t-1"}',
    tracking_id="t-1",
)
REPLAYED = replace(
    FACT,
    event_id="fact:77aa0c3ba9d84c5c9f6d2f8a1b7c4e91",
    kind="replayed",
    recorded_at=at("20:00"),
    topology="",
    pattern="",
    queue="orders-parked",
    published_at=at("20:00"),
    replay_id="r-2",
    death_queue="orders",
    death_reason="rejected",
    deaths=1,
    tracking_id="",
)


def fact(kind: Kind, number: int) -> MessageEvent:
    """What was done to a dead letter, of which nothing was published."""
    return replace(
        REPLAYED,
        event_id=f"fact:77aa0c3ba9d84c5c9f6d2f8a1b7c4e{number}",
        kind=kind,
        recorded_at=at(f"21:{number}"),
        exchange="",
        routing_key="orders-parked",
        published_at=None,
        published_at_source="",
        replay_id="",
    )


SEEN = MessageEvent(
    event_id="b7d1:5",
    kind="published",
    recorded_at=at("05:00.2"),
    caught_up=False,
    source="tap",
    broker="main",
    vhost="/",
    topology="orders",
    pattern="retry_pair",
    exchange="orders",
    routing_key="orders",
    queue="orders",
    destination="orders",
    content_id="1c2d",
    published_at=at("05:00"),
    published_at_source="timestamp",
    redelivered=True,
    size_bytes=2,
)
OF_31_FIELDS = [
    TRIP,
    EXIT,
    SEEN,
    FACT,
    REPLAYED,
    fact("parked", 31),
    fact("discarded", 32),
    fact("returned", 33),
    fact("died", 34),
    fact("cancelled", 35),
]
FIREHOSE = replace(
    REMINDER,
    event_id="77c0:9",
    recorded_at=at("07:00"),
    source="firehose",
    topology="delay-60000-mail-out",
    pattern="hold_queues",
    exchange="",
    routing_key="delay.60000.mail.out",
    queue="delay.60000.mail.out",
    destination="out",
    message_id="",
    requested_delay_ms=60_000,
    published_at=at("06:59.75"),
    published_at_source="NServiceBus.TimeSent",
    due_at=at("08:00"),
    headers_json="{}",
    published_by="mailer",
    body_base64="",
)
ARRIVED = replace(
    FIREHOSE,
    event_id="77c0:10",
    kind="delivered",
    recorded_at=at("08:01.5"),
    exchange="mail",
    routing_key="out",
    queue="out",
    due_at=None,
    death_reason="expired",
    death_queue="delay.60000.mail.out",
    deaths=1,
)
IMPORTED = replace(
    TRIP,
    event_id="import:0f3a77b2c4d5e6f7",
    recorded_at=at("12:00.5"),
    source="import",
    message_id="m-9",
    published_at=at("11:59"),
    published_at_source="NServiceBus.Retries.Timestamp",
    due_at=at("17:00.5"),
    attempt=1,
    replay_id="",
    deaths=1,
    tracking_id="",
)
FAILED_AGAIN = replace(
    IMPORTED,
    event_id="import:0f3a77b2c4d5e6f8",
    recorded_at=at("17:00.75"),
    published_at_source="timestamp_in_ms",
    due_at=at("22:00.75"),
    attempt=2,
    deaths=3,
)
OF_34_FIELDS = [
    *OF_31_FIELDS,
    REMINDER,
    FIREHOSE,
    ARRIVED,
    IMPORTED,
    FAILED_AGAIN,
    fact("restored", 36),
]
OF_35_FIELDS = [
    replace(event, properties_base64="IAAFc2hvcA==") if event is REMINDER else event
    for event in OF_34_FIELDS
]
OF_37_FIELDS = [
    replace(
        event,
        failures=(
            {"queue": "orders", "reason": "rejected", "count": 2, "began_s": 1795071600},
            {"queue": "older", "reason": "maxlen", "count": 1, "began_s": None},
        ),
        publisher_version="2.0",
    )
    if event is TRIP
    else event
    for event in OF_35_FIELDS
] + [fact("moved", 37)]
STATES = {
    "v1-31-fields.jsonl": OF_31_FIELDS,
    "v1-34-fields.jsonl": OF_34_FIELDS,
    "v1-35-fields.jsonl": OF_35_FIELDS,
    "v1-37-fields.jsonl": OF_37_FIELDS,
}
TODAY = "v1-37-fields.jsonl"


def lines_of(name: str) -> list[bytes]:
    return (GOLDEN / name).read_bytes().splitlines()


def test_every_golden_file_is_read_here() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == STATES.keys()


@pytest.mark.parametrize(("name", "events"), STATES.items())
def test_the_golden_lines_of_every_release_are_still_read(
    name: str, events: Sequence[MessageEvent]
) -> None:
    assert [asdict(decode(line)) for line in lines_of(name)] == [asdict(event) for event in events]


def test_the_golden_lines_of_today_are_written_byte_for_byte() -> None:
    assert [encode(event) for event in OF_37_FIELDS] == lines_of(TODAY)


def test_the_first_release_had_all_but_the_last_fields_of_today() -> None:
    for line in lines_of("v1-31-fields.jsonl"):
        assert [*orjson.loads(line), *ADDED_LATER] == list(FIELDS)


def test_there_is_a_golden_line_of_every_kind_and_source_today() -> None:
    events = [decode(line) for line in lines_of(TODAY)]
    assert {event.kind for event in events} == set(get_args(Kind))
    assert {event.source for event in events} == {"tap", "firehose", "delayboard", "import"}
