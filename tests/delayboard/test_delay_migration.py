"""What is left of a delay, with the vectors of NServiceBus, and what nothing can be said about."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from delayboard.delay_migration.places import (
    DELAY_HEADER,
    Malformed,
    Undated,
    Unmovable,
    due_in_delay_queue,
    due_in_level,
    list_places,
    remaining_delay,
)
from topology.broker.properties.read import build_properties
from topology.definitions import PROBE_PREFIX, Binding, Definitions, Exchange, Queue
from topology.message import PUBLISHED_AT_HEADER, Message
from topology.models import Topology
from topology.patterns.delay_levels.params import Params
from topology.patterns.delay_levels.pattern import delay_levels, routing_key
from topology.patterns.hold_queues import params as hold_params
from topology.patterns.hold_queues.params import hold_queue
from topology.patterns.hold_queues.pattern import hold_queues

V1, V2 = Params("nsb-v1"), Params("nsb-v2")
CELERY = Params("celery")
SENT = datetime(2022, 5, 6, 12, tzinfo=UTC)
STAMP = "2022-05-06 12:00:00:000000 Z"
SECOND = timedelta(seconds=1)


def message(key: str, headers: dict[str, Any], timestamp: int | None = None) -> Message:
    return Message("", key, build_properties(headers, timestamp=timestamp), b"")


def sent(delay: int, destination: str = "dest", headers: dict[str, Any] | None = None) -> Message:
    key = routing_key(V1, delay * SECOND, destination)
    stated: dict[str, Any] = {"NServiceBus.TimeSent": STAMP, DELAY_HEADER: delay}
    return message(key, stated | (headers or {}))


def highest(delay: int) -> int:
    return max(0, delay.bit_length() - 1)


@pytest.mark.parametrize(
    ("delay", "passed", "left", "tail", "level"),
    [
        (10, 10, 0, "0.0.0.0.", 0),
        (32, 30, 2, "0.1.0.", 1),
        (64, 30, 34, "0.1.0.0.0.1.0.", 5),
        (128, 30, 98, "0.1.1.0.0.0.1.0.", 6),
        (86400, 43200, 43200, "0.1.0.1.0.1.0.0.0.1.1.0.0.0.0.0.0.", 15),
        (604800, 259200, 345600, "0.1.0.1.0.1.0.0.0.1.1.0.0.0.0.0.0.0.0.0.", 18),
    ],
)
@pytest.mark.parametrize("destination", ["dest", "destination.with.dots.in.name"])
def test_the_vectors_of_nservicebus(
    delay: int, passed: int, left: int, tail: str, level: int, destination: str
) -> None:
    """Particular/NServiceBus.RabbitMQ, When_migrating_a_delayed_message.cs."""
    now = SENT + passed * SECOND
    # Where a message of this delay waits after so long.
    place = _place(delay, passed)
    due = due_in_level(V1, *place, sent(delay, destination), now)
    assert due.destination == destination
    assert remaining_delay(due.at, now) == left * SECOND
    route = delay_levels.route(V2, remaining_delay(due.at, now), destination)
    assert route.exchange == f"nsb.v2.delay-level-{level:02}"
    assert route.routing_key.removesuffix(destination).endswith(tail)
    assert route.routing_key.count("1.") == bin(left).count("1")


def _place(delay: int, passed: int) -> tuple[timedelta, int]:
    """The level that a message is in after so many seconds of its delay."""
    gone = 0
    for level in reversed(range(28)):
        if delay >> level & 1:
            gone += 2**level
            if gone >= passed:
                return 2**level * SECOND, level
    raise AssertionError("it is no longer there")


def test_a_delayed_retry_counts_from_its_own_stamp() -> None:
    retried = sent(
        60,
        headers={
            "NServiceBus.TimeSent": "2022-05-01 00:00:00:000000 Z",
            "NServiceBus.Retries.Timestamp": STAMP,
        },
    )
    now = SENT + 10 * SECOND
    due = due_in_level(V1, 32 * SECOND, 5, retried, now)
    assert remaining_delay(due.at, now) == 50 * SECOND


def test_a_late_message_is_due_at_once_and_a_part_of_a_step_is_rounded_up() -> None:
    assert remaining_delay(SENT, SENT + 5 * SECOND) == timedelta(0)
    left = remaining_delay(SENT + timedelta(milliseconds=1200), SENT)
    assert delay_levels.route(V2, left, "dest").routing_key.endswith("0.1.0.dest")


@pytest.mark.parametrize(
    ("stamp", "left"), [("2022-05-06 11:59:48:000000 Z", 2), ("2022-05-06 12:00:04:000000 Z", 10)]
)
def test_where_it_waits_bounds_what_another_clock_says(stamp: str, left: int) -> None:
    """Delay 10 in level 3: between 2 s and 10 s are left."""
    wrong = sent(10, headers={"NServiceBus.TimeSent": stamp})
    due = due_in_level(V1, 8 * SECOND, 3, wrong, SENT)
    assert remaining_delay(due.at, SENT) == left * SECOND


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_stamp_that_does_not_fit_the_queue_makes_no_message_early_or_late(hours: int) -> None:
    """As of a message that was published again with the properties of its first publish."""
    stamp = SENT + timedelta(hours=hours)
    wrong = message("", {PUBLISHED_AT_HEADER: int(stamp.timestamp() * 1000)})
    with pytest.raises(Undated, match="does not fit the queue"):
        due_in_delay_queue(to_created, 600 * SECOND, wrong, SENT)
    recorded_at = SENT + 400 * SECOND
    due = due_in_delay_queue(to_created, 600 * SECOND, wrong, SENT, recorded_at)
    assert due.at == recorded_at


def to_created(message: Message) -> str:
    return "created"


def test_of_a_queue_without_a_ttl_the_expiration_says_the_delay() -> None:
    stated = {PUBLISHED_AT_HEADER: int(SENT.timestamp() * 1000)}
    held = Message("", "", build_properties(stated, expiration="9000"), b"")
    assert due_in_delay_queue(to_created, None, held, SENT).at == SENT + 9 * SECOND
    forever = Message("", "", build_properties(stated), b"")
    with pytest.raises(Unmovable, match="its queue has no x-message-ttl"):
        due_in_delay_queue(to_created, None, forever, SENT)


def test_a_message_with_further_keys_stays() -> None:
    """As those of rascal: the target would route it by them too."""
    stated = {PUBLISHED_AT_HEADER: int(SENT.timestamp() * 1000), "CC": ["delay.1m"]}
    with pytest.raises(Unmovable, match="CC or BCC"):
        due_in_delay_queue(to_created, 9 * SECOND, message("", stated), SENT)


@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=2))])
def test_a_task_of_celery_states_its_due_time(zone: timezone) -> None:
    key = routing_key(CELERY, 300 * SECOND, "celery")
    eta = (SENT + 300 * SECOND).astimezone(zone).isoformat()
    task = message(key, {"task": "tasks.send", "id": "1", "eta": eta})
    due = due_in_level(CELERY, 256 * SECOND, 8, task, SENT + 10 * SECOND)
    assert (due.destination, due.at) == ("celery", SENT + 300 * SECOND)
    far = "0001-01-01T00:00:00+14:00"
    for odd in ({"eta": "soon"}, {"eta": None}, {"eta": "2022-05-06T12:05:00"}, {"eta": far}):
        with pytest.raises(Undated, match="without a publish time"):
            due_in_level(CELERY, 256 * SECOND, 8, message(key, {"task": "t", **odd}), SENT)


@pytest.mark.parametrize(("own", "wait"), [("5000", 5), ("90000", 30), ("", 30), ("soon", 30)])
def test_a_ttl_of_its_own_shortens_the_wait_in_a_hold_queue(own: str, wait: int) -> None:
    stated = {PUBLISHED_AT_HEADER: int(SENT.timestamp() * 1000)}
    held = Message("", "", build_properties(stated, expiration=own or None), b"")
    assert due_in_delay_queue(to_created, 30 * SECOND, held, SENT).at == SENT + wait * SECOND


def test_without_a_header_the_key_says_the_delay_and_an_amqp_timestamp_is_never_early() -> None:
    key = routing_key(V1, 64 * SECOND, "dest")
    place = (64 * SECOND, 6)
    ours = message(key, {PUBLISHED_AT_HEADER: int(SENT.timestamp() * 1000)})
    assert due_in_level(V1, *place, ours, SENT + 4 * SECOND).at == SENT + 64 * SECOND
    cut = message(key, {}, int(SENT.timestamp()))
    assert due_in_level(V1, *place, cut, SENT + 4 * SECOND).at == SENT + 65 * SECOND


def test_hold_queues_say_the_delay_by_their_ttl() -> None:
    ours = message("", {PUBLISHED_AT_HEADER: int(SENT.timestamp() * 1000)})
    due = due_in_delay_queue(to_created, 30 * SECOND, ours, SENT + 12 * SECOND)
    assert (due.destination, due.at) == ("created", SENT + 30 * SECOND)


@pytest.mark.parametrize(
    "malformed",
    [
        message("1.0.short", {"NServiceBus.TimeSent": STAMP}),
        sent(10, destination=""),
        sent(10, headers={DELAY_HEADER: 2**60}),
    ],
)
def test_what_does_not_say_when_or_for_whom_is_malformed(malformed: Message) -> None:
    with pytest.raises(Malformed):
        due_in_level(V1, 8 * SECOND, 3, malformed, SENT)


@pytest.mark.parametrize(
    "undated",
    [
        sent(10, headers={"NServiceBus.TimeSent": "yesterday"}),
        message(routing_key(V1, SECOND, "dest"), {}),
    ],
)
def test_only_the_source_keeps_the_delay_of_a_message_without_a_publish_time(
    undated: Message,
) -> None:
    with pytest.raises(Undated):
        due_in_level(V1, 8 * SECOND, 3, undated, SENT)


def test_a_hold_queue_of_probes_is_not_emptied() -> None:
    """It is there for a while after probes are disabled, and leads to no queue."""
    params = hold_params.Params("orders", ("created",), (30 * SECOND,))
    source = Topology(kind=hold_queues.KIND, params=hold_queues.store(params))
    real = hold_queue(params, 30 * SECOND, "created")
    probes = hold_queue(params, 60 * SECOND, f"{PROBE_PREFIX}orders")
    binding = Binding("orders", "work", "created")
    found = Definitions.of([Exchange("orders"), real, probes, Queue("work"), binding])
    assert [place.queue for place in list_places(source, found)] == [real.name]
