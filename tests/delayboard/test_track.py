from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from analytics.buckets import OVERDUE_AFTER
from analytics.models import ScheduledMessage
from delayboard.models import BackgroundTask, Publication
from delayboard.models.background_task import task_key
from delayboard.models.publication import Sent
from delayboard.publishing.track import GIVE_UP_AFTER, make_steps, track
from tests.delayboard.builders import a_publication
from topology.models import Broker, Topology

SECOND = timedelta(seconds=1)
HOPS = [
    {"queue": "level-2", "after_ms": 0, "is_wait": True},
    {"queue": "level-0", "after_ms": 4000, "is_wait": True},
    {"queue": "orders", "after_ms": 5000, "is_wait": False},
]


def saw(
    row: Publication,
    *,
    late_ms: float | None,
    caught_up: bool = True,
    entered_after: timedelta = timedelta(0),
) -> None:
    """What the taps saw of a publication: its entry, and its exit unless `late_ms` is None."""
    entered_at = row.created_at + entered_after
    due = entered_at + 5 * SECOND
    ScheduledMessage.objects.create(
        broker=row.broker,
        topology=row.topology,
        key=str(row.pk),
        content_id="c",
        tracking_id=str(row.pk),
        attempt=1,
        requested_delay=5 * SECOND,
        entered_at=entered_at,
        due_at=due,
        left_at=None if late_ms is None else due + timedelta(milliseconds=late_ms),
        caught_up=caught_up,
    )


def recorder(pair: Topology, **stated: Any) -> None:
    values = {"beat_at": timezone.now()} | stated
    BackgroundTask.objects.create(key=task_key("record", pair.slug), name="Recorder", **values)


def at(row: Publication, after: timedelta) -> datetime:
    return row.created_at + after


@pytest.mark.parametrize(
    ("stated", "mark", "said", "settled"),
    [
        ({"sent": Sent.SENDING}, "sending", "Delayboard is publishing the message.", False),
        ({"sent": Sent.REFUSED, "error": "Full."}, "lost", "not published. Full.", True),
        ({"unobservable_why": "Nobody looks."}, "not_observed", "Nobody looks.", True),
        (
            {"after": None},
            "not_observed",
            "The broker confirmed the message. The message arrives in orders.",
            True,
        ),
        (
            {"sent": Sent.UNKNOWN},
            "waiting",
            "The message may or may not be published, due in 4s.",
            False,
        ),
        ({}, "waiting", "The broker confirmed the message, due in 4s.", False),
    ],
)
def test_what_was_not_seen_is_told_from_its_row(
    broker: Broker, stated: dict[str, Any], mark: str, said: str, settled: bool
) -> None:
    row = a_publication(broker, **({"after": 5 * SECOND} | stated))
    found = track(row, at(row, SECOND))
    assert (found.mark, found.is_settled) == (mark, settled)
    assert said in found.sentence
    assert found.lateness_text == ("not observed" if mark == "not_observed" else "–")


@pytest.mark.parametrize(
    ("late_ms", "caught_up", "said", "short"),
    [
        (3.4, True, "UTC, 3.4ms late.", "+3.4ms"),
        (-2, True, "UTC, on time.", "0s"),
        (-62, True, "UTC, 62ms early.", "-62ms"),
        (0, True, "UTC, on time.", "0s"),
        (900, False, "so the lateness is unknown", "unknown"),
    ],
)
def test_what_arrived_is_told_with_its_lateness(
    broker: Broker, pair: Topology, late_ms: float, caught_up: bool, said: str, short: str
) -> None:
    row = a_publication(broker, topology=pair, after=5 * SECOND)
    saw(row, late_ms=late_ms, caught_up=caught_up)
    found = track(row, at(row, 6 * SECOND))
    assert (found.mark, found.is_settled, found.lateness_text) == ("arrived", True, short)
    assert said in found.sentence


def test_the_lateness_counts_from_the_publish_where_the_entry_is_not_observed(
    broker: Broker, pair: Topology
) -> None:
    row = a_publication(broker, topology=pair, after=5 * SECOND)
    saw(row, late_ms=78)
    ScheduledMessage.objects.update(entered_at=None, due_at=None)
    found = track(row, at(row, 6 * SECOND))
    assert (found.lateness_text, found.observation and found.observation.due_at) == (
        "+78ms",
        row.due_at,
    )
    assert "UTC, 78ms late." in found.sentence


def test_an_arrival_counts_even_when_the_broker_s_answer_was_lost(
    broker: Broker, pair: Topology
) -> None:
    row = a_publication(broker, topology=pair, sent=Sent.UNKNOWN)
    saw(row, late_ms=1)
    assert track(row, at(row, SECOND)).mark == "arrived"


def test_what_entered_waits_then_is_late_and_is_given_up_at_last(
    broker: Broker, pair: Topology
) -> None:
    row = a_publication(broker, topology=pair, after=5 * SECOND)
    saw(row, late_ms=None)
    recorder(pair)
    waiting = track(row, at(row, 2 * SECOND))
    assert (waiting.mark, waiting.sentence) == (
        "waiting",
        "The message waits in the delay, due in 3s.",
    )
    due = 5 * SECOND
    assert track(row, at(row, due + OVERDUE_AFTER / 2)).sentence.endswith("due in 0s.")
    late = track(row, at(row, due + OVERDUE_AFTER + SECOND))
    assert (late.mark, late.is_settled) == ("late", False)
    assert "It was due 2s ago, and its delivery is not observed." in late.sentence
    given_up = track(row, at(row, due + GIVE_UP_AFTER + SECOND))
    assert (given_up.mark, given_up.is_settled) == ("late", True)


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        (None, "The recorder is not running. Start the worker"),
        ({"beat_at": None}, "The recorder is not running"),
        ({"last_error": "No broker."}, "The recorder fails: No broker."),
        ({}, "due in 4s."),
    ],
)
def test_why_nobody_looks_is_said_while_it_waits(
    broker: Broker, pair: Topology, stated: dict[str, Any] | None, said: str
) -> None:
    if stated is not None:
        recorder(pair, **stated)
    row = a_publication(broker, topology=pair, after=5 * SECOND)
    sentence = track(row, at(row, SECOND)).sentence
    assert said in sentence
    assert ("recorder" in sentence) == (stated != {})


@pytest.mark.parametrize(
    ("late_ms", "said", "differences"),
    [
        (80, "UTC, 80ms late.", ["0s", "", "+80ms"]),
        # The entry was recorded late: after the publish and its delay nothing is early.
        (-73, "UTC, on time.", ["+73ms", "", "0s"]),
        (-900, "UTC, 900ms early.", ["0s", "", "-900ms"]),
    ],
)
def test_the_sentence_and_the_planned_times_count_from_one_due_time(
    pair: Topology, late_ms: float, said: str, differences: list[str]
) -> None:
    row = a_publication(pair.broker, topology=pair, after=5 * SECOND)
    row.hops = HOPS
    saw(row, late_ms=late_ms, entered_after=timedelta(milliseconds=868))
    found = track(row, at(row, 9 * SECOND))
    assert said in found.sentence
    assert [step.difference for step in make_steps(row, found.observation)] == differences


def test_each_planned_hop_is_compared_with_what_a_tap_saw(pair: Topology) -> None:
    row = a_publication(pair.broker, topology=pair, after=5 * SECOND)
    row.hops = HOPS
    assert [step.difference for step in make_steps(row, None)] == ["", "", ""]
    saw(row, late_ms=7)
    steps = make_steps(row, track(row, timezone.now()).observation)
    assert [step.difference for step in steps] == ["0s", "", "+7ms"]
    assert steps[1].planned_at - row.created_at == 4 * SECOND
    ScheduledMessage.objects.update(caught_up=False)
    behind = make_steps(row, track(row, timezone.now()).observation)
    assert [step.difference for step in behind] == ["recorded late", "", "recorded late"]
    ScheduledMessage.objects.update(caught_up=True)
    row.unobservable_why = "No tap."
    ScheduledMessage.objects.update(left_at=None)
    steps = make_steps(row, track(row, row.created_at + 9 * SECOND).observation)
    assert [step.difference for step in steps] == ["0s", "", ""]
