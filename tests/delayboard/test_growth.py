from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from threading import Event

import pytest

from analytics.retention.rules import clean
from delayboard.dead_letters.queues.confirmed import Growth, growths, sample_depths
from delayboard.models import CounterSample, DeadLetterQueue, QueueDepth
from delayboard.retention.table import DEPTHS
from delayboard.worker import tasks as repeating
from delayboard.worker.check_brokers import EVERY_SECONDS, Sampling
from tests.builders import make_broker
from tests.topology.builders import a_snapshot
from topology import snapshots
from topology.definitions import Definitions, Queue
from topology.models import Broker
from topology.snapshot import QueueNumbers
from topology.snapshots import Latest

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)


@pytest.fixture
def broker() -> Broker:
    return make_broker()


@pytest.fixture
def row(broker: Broker) -> DeadLetterQueue:
    return a_row(broker, "dead")


def a_row(broker: Broker, name: str, *, is_confirmed: bool = True) -> DeadLetterQueue:
    return DeadLetterQueue.objects.create(
        broker=broker, queue=name, is_confirmed=is_confirmed, decided_at=NOW
    )


def answers(
    monkeypatch: pytest.MonkeyPatch, depths: Mapping[str, int | None], error: str = ""
) -> None:
    numbers = {name: QueueNumbers(messages=depth) for name, depth in depths.items()}
    snapshot = a_snapshot(Definitions.of(Queue(name) for name in depths), numbers)
    monkeypatch.setattr(snapshots, "fresh", lambda _: Latest(snapshot, NOW, error))


def was(row: DeadLetterQueue, messages: int, **ago: int) -> None:
    QueueDepth.objects.create(queue=row, at=NOW - timedelta(**ago), messages=messages)


def test_growth_is_against_the_newest_sample_that_is_an_hour_old(row: DeadLetterQueue) -> None:
    was(row, 1, minutes=69)
    was(row, 5, minutes=61)
    was(row, 90, minutes=30)
    assert growths({row.pk: 17}, NOW) == {row.pk: Growth(12)}


def test_growth_within_the_first_hour_is_against_the_first_sample(row: DeadLetterQueue) -> None:
    was(row, 3, minutes=71)
    was(row, 5, minutes=14)
    was(row, 90, minutes=7)
    assert growths({row.pk: 17}, NOW) == {row.pk: Growth(12, timedelta(minutes=14))}
    assert Growth(12, timedelta(minutes=14)).words == "+12 in 14 min"


def test_growth_is_unknown_without_a_sample_or_a_depth(row: DeadLetterQueue) -> None:
    assert growths({row.pk: 17}, NOW) == {}
    was(row, 5, seconds=59)
    was(row, 5, minutes=71)
    assert growths({row.pk: 17}, NOW) == {}
    was(row, 5, minutes=60)
    assert growths({row.pk: None}, NOW) == {}
    assert growths({row.pk: 5}, NOW) == {row.pk: Growth(0)}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (12, "+12 in the last hour"),
        (-1200, "−1\u202f200 in the last hour"),
        (0, "unchanged in the last hour"),
    ],
)
def test_growth_in_words(change: int, words: str) -> None:
    assert Growth(change).words == words


def test_only_confirmed_queues_with_a_known_depth_are_sampled(
    row: DeadLetterQueue, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_row(broker, "dismissed", is_confirmed=False)
    a_row(broker, "gone")
    a_row(broker, "silent")
    answers(monkeypatch, {"dead": 7, "dismissed": 8, "silent": None, "other": 9})
    assert sample_depths(NOW) == 1
    (depth,) = QueueDepth.objects.all()
    assert (depth.queue, depth.at, depth.messages) == (row, NOW, 7)


def test_a_broker_that_does_not_answer_has_no_depth(
    row: DeadLetterQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(monkeypatch, {"dead": 7}, error="It does not answer.")
    assert sample_depths(NOW) == 0
    assert not QueueDepth.objects.exists()


def test_samples_are_deleted_after_two_days(row: DeadLetterQueue) -> None:
    for hours in (47, 49):
        QueueDepth.objects.create(queue=row, at=NOW - timedelta(hours=hours), messages=1)
    clean([DEPTHS], NOW)
    assert QueueDepth.objects.count() == 1


def test_the_background_task_samples_at_its_start_and_then_every_minute(
    row: DeadLetterQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(monkeypatch, {"dead": 7})
    monkeypatch.setattr(repeating, "BEAT_SECONDS", 0)
    monkeypatch.setattr(snapshots, "fresh_all", lambda brokers, _: [snapshots.fresh(brokers[0])])
    stop, reported = Event(), []

    def beat(details: Mapping[str, object]) -> None:
        reported.append(details)
        if len(reported) == 3:
            stop.set()

    repeating.repeat(Sampling().sample, EVERY_SECONDS, stop=stop, beat=beat)
    assert QueueDepth.objects.count() == 1
    assert CounterSample.objects.get().numbers["stuck"] == 0
    assert [details["sampled"] for details in reported] == [1, 1, 1]
