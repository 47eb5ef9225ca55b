from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from analytics.events import LARGEST_NUMBER, MOST_FAILURES, decode, encode
from analytics.recorder.copies import DESCRIBED_BYTES, Place, event_of_copy, published
from tests.analytics.builders import NOON
from topology.message import Message, Properties
from topology.structure.copies import Reading

PLACE = Place("main", "/", "orders", "retry_pair")
SECOND = timedelta(seconds=1)
DEATHS = [{"queue": "orders", "reason": "rejected", "count": 3}]


def a_message(headers: dict[str, Any] | None = None, **properties: Any) -> Message:
    return Message("orders-retry", "orders", Properties(headers=headers or {}, **properties), b"hi")


def an_entry_of(message: Message, **changes: Any) -> Any:
    reading = Reading(
        "entry", "orders", "orders-retry", timedelta(seconds=5), 2, "orders", "rejected"
    )
    arguments: dict[str, Any] = {"event_id": "e", "recorded_at": NOON, "caught_up": True} | changes
    return event_of_copy(message, reading, PLACE, **arguments)


def test_an_entry_starts_the_clock_of_its_delay() -> None:
    event = an_entry_of(a_message({"x-death": DEATHS}, message_id="m1", correlation_id="c1"))
    assert (event.kind, event.requested_delay_ms, event.due_at) == (
        "scheduled",
        5000,
        NOON + 5 * SECOND,
    )
    assert (event.attempt, event.death_reason, event.death_queue) == (2, "rejected", "orders")
    assert (event.message_id, event.correlation_id, event.size_bytes) == ("m1", "c1", 2)
    assert (event.broker, event.vhost, event.topology, event.pattern) == (
        "main",
        "/",
        "orders",
        "retry_pair",
    )
    assert (event.deaths, event.source) == (3, "tap")


def test_failures_are_what_x_death_records_but_for_the_ends_of_delays() -> None:
    deaths: list[dict[str, Any]] = [
        {"queue": "orders-retry", "reason": "expired", "count": 3, "time": NOON},
        {"queue": "orders\x00", "reason": "rejected", "count": 10**12, "time": NOON},
        {"queue": "older", "reason": "maxlen", "count": 1, "time": NOON - SECOND},
        {"reason": "rejected"},
        {"queue": "orders"},
    ]
    event = an_entry_of(a_message({"x-death": deaths}))
    assert event.failures == (
        {"queue": "older", "reason": "maxlen", "count": 1, "began_s": seconds(NOON) - 1},
        {
            "queue": "orders\\x00",
            "reason": "rejected",
            "count": LARGEST_NUMBER,
            "began_s": seconds(NOON),
        },
    )
    assert decode(encode(event)) == event
    many = [{"queue": f"q{n}", "reason": "rejected"} for n in range(MOST_FAILURES + 1)]
    assert len(an_entry_of(a_message({"x-death": many})).failures) == MOST_FAILURES


def test_exception_and_publisher_are_what_the_client_library_states() -> None:
    dramatiq = {
        "queue_name": "orders",
        "actor_name": "place",
        "message_id": "d1",
        "options": {"retries": 1, "traceback": "Traceback:\n  at\nshop.Late: no answer"},
    }
    body = json.dumps(dramatiq).encode()
    assert an_entry_of(replace(a_message(), body=body)).exception_type == "shop.Late"
    assert (
        an_entry_of(replace(a_message(), body=body + b" " * DESCRIBED_BYTES)).exception_type == ""
    )
    fault = {"MT-Fault-ExceptionType": "System.TimeoutException", "origin": "billing-7"}
    event = an_entry_of(a_message(fault))
    assert (event.exception_type, event.published_by) == ("System.TimeoutException", "billing-7")
    assert an_entry_of(a_message(fault, app_id="shop")).published_by == "shop"
    assert an_entry_of(a_message(user_id="ada")).published_by == "ada"


def seconds(moment: datetime) -> int:
    return int(moment.timestamp())


@pytest.mark.parametrize(
    ("headers", "version"),
    [
        ({}, ""),
        ({"x-version": "2.0", "app-version": "1.9"}, "2.0"),
        ({"version": [1], "app-version": 19}, "19"),
        ({"service-version": b"\xff" + b"v" * 200}, "\\xff" + "v" * 96),
    ],
)
def test_the_version_is_the_first_header_of_one(headers: dict[str, Any], version: str) -> None:
    assert an_entry_of(a_message(headers)).publisher_version == version


STAMP = {"timestamp_in_ms": int((NOON - SECOND).timestamp() * 1000)}


# A task of Celery states when it is due.
TASK = {"task": "note", "eta": (NOON + 3 * SECOND).isoformat()}


@pytest.mark.parametrize(
    ("headers", "changes", "entered_at"),
    [
        (STAMP, {}, NOON),
        (STAMP, {"caught_up": False}, NOON - SECOND),
        ({}, {"caught_up": False}, NOON),
        (STAMP | {"x-death": DEATHS}, {"caught_up": False}, NOON),
        (STAMP | {"delayboard-replay-id": "r"}, {"caught_up": False}, NOON),
        ({"timestamp_in_ms": 4 * 10**12}, {"caught_up": False}, NOON),
        (TASK, {}, NOON),
        (TASK, {"caught_up": False}, NOON - 2 * SECOND),
        (TASK | {"eta": "soon"}, {"caught_up": False}, NOON),
        ({"eta": TASK["eta"]}, {"caught_up": False}, NOON),
    ],
)
def test_an_entry_that_was_read_late_is_due_by_its_publishers_stamp(
    headers: dict[str, Any], changes: dict[str, Any], entered_at: datetime
) -> None:
    event = an_entry_of(a_message(headers), **changes)
    assert event.due_at == entered_at + 5 * SECOND
    assert event.recorded_at == NOON


@pytest.mark.parametrize(
    "headers",
    [
        {"timestamp_in_ms": 253_402_300_799_000},
        {"timestamp_in_ms": -62_135_596_800_000},
        {"NServiceBus.TimeSent": "9999-12-31 23:59:59:000000 Z"},
    ],
)
def test_a_stamp_at_the_ends_of_the_calendar_is_none(headers: dict[str, Any]) -> None:
    assert an_entry_of(a_message(headers)).published_at_source in ("recorded", "")


def test_a_stamp_of_whole_seconds_does_not_say_when_it_is_due() -> None:
    event = an_entry_of(a_message(timestamp=int(NOON.timestamp()) - 7), caught_up=False)
    assert event.due_at == NOON + 5 * SECOND


@pytest.mark.parametrize(("phase", "kind"), [("exit", "delivered"), ("publish", "published")])
def test_what_comes_out_or_passes_by_has_no_due_time(phase: Any, kind: str) -> None:
    reading = Reading(phase, "orders", "orders", timedelta(0), 1)
    event = event_of_copy(
        a_message(), reading, PLACE, event_id="e", recorded_at=NOON, caught_up=True
    )
    assert (event.kind, event.due_at) == (kind, None)


def test_tracking_and_replay_ids_come_from_the_headers() -> None:
    event = an_entry_of(a_message({"delayboard-tracking-id": "t", "delayboard-replay-id": "r"}))
    assert (event.tracking_id, event.replay_id) == ("t", "r")


def test_texts_that_no_database_takes_are_escaped() -> None:
    copied = an_entry_of(a_message({"delayboard-tracking-id": "a\x00b"}, message_id="\udcff"))
    event = decode(encode(copied))
    assert (event.tracking_id, event.message_id) == ("a\\x00b", "\\udcff")


def test_a_long_exception_name_is_cut() -> None:
    headers = {"NServiceBus.ExceptionInfo.ExceptionType": "E" * 9000}
    assert an_entry_of(a_message(headers)).exception_type == "E" * 255


STAMPS: dict[str, Any] = {
    "delayboard-published-at-ms": 1_763_600_000_001,
    "NServiceBus.Retries.Timestamp": "2025-11-20 01:00:00:000002 Z",
    "timestamp_in_ms": 1_763_600_000_003,
    "NServiceBus.TimeSent": b"2025-11-20 01:00:00:000004 Z",
}
ORDER = [
    ("delayboard-published-at-ms", "delayboard"),
    ("NServiceBus.Retries.Timestamp", "NServiceBus.Retries.Timestamp"),
    ("timestamp_in_ms", "timestamp_in_ms"),
    ("NServiceBus.TimeSent", "NServiceBus.TimeSent"),
]


@pytest.mark.parametrize("place", range(len(ORDER)))
def test_the_most_trustworthy_stamp_says_when_it_was_published(place: int) -> None:
    headers = {name: STAMPS[name] for name, _ in ORDER[place:]}
    at, source = published(a_message(headers, timestamp=1), recorded_at=NOON)
    assert source == ORDER[place][1]
    assert at is not None
    assert at.microsecond in (1000, 2, 3000, 4)


def test_without_a_stamp_the_recording_says_it_and_the_whole_seconds_come_last() -> None:
    stamped = a_message(timestamp=int(NOON.timestamp()))
    assert published(stamped, recorded_at=NOON + SECOND) == (NOON + SECOND, "recorded")
    assert published(stamped, recorded_at=None) == (NOON, "timestamp")
    assert published(a_message(), recorded_at=None) == (None, "")


def test_the_recording_of_a_message_that_died_before_says_nothing() -> None:
    assert an_entry_of(a_message({"x-death": DEATHS})).published_at is None
    assert an_entry_of(a_message(), caught_up=False).published_at is None
    assert an_entry_of(a_message()).published_at == NOON


@pytest.mark.parametrize("stamp", ["soon", 2**80, True, None, {"a": 1}, -(10**17)])
def test_a_stamp_that_is_none_is_passed_over(stamp: Any) -> None:
    headers = dict.fromkeys(STAMPS, stamp)
    assert published(a_message(headers, timestamp=2**62), recorded_at=None) == (None, "")
