"""The history of queues: what each poll adds, and what a page makes of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from django.db.models import F
from django.urls import reverse
from django.utils import timezone

from delayboard.models import QueueSample
from delayboard.queue_history import QueueHistory, QueueSampler, read_history
from tests.site.page_setup import know, signed_in, text_of
from topology import snapshots
from topology.definitions import Queue
from topology.models import Broker, Role
from topology.snapshot import QueueNumbers
from topology.snapshots import Latest

pytestmark = pytest.mark.django_db
NOON = datetime(2026, 11, 20, 12, 0, 5, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def look(sampler: QueueSampler, broker: Broker, minute: int, **numbers: QueueNumbers) -> int:
    snapshot = know(broker, *map(Queue, numbers))
    snapshot = replace(snapshot, numbers=numbers, taken_at=NOON + minute * MINUTE)
    snapshots._latest[broker.pk] = Latest(snapshot, NOON)
    return sampler.sample()


def of(name: str, minute: int, broker: Broker) -> QueueHistory:
    return read_history(broker, name, "1", NOON + minute * MINUTE)


def numbers(depth: int, published: int | None = None) -> QueueNumbers:
    return QueueNumbers(messages=depth, published=published, consumed=0, acked=0)


def test_only_changes_are_stored_and_a_gap_is_unknown(broker: Broker) -> None:
    sampler = QueueSampler()
    assert look(sampler, broker, 0, a=numbers(3, 0), b=numbers(1, 9)) == 3
    assert look(sampler, broker, 10, a=numbers(4, 900), b=numbers(1, 9)) == 0
    # The rates are known from the second moment on.
    assert look(sampler, broker, 15, a=numbers(5, 900), b=numbers(1, 9)) == 3
    assert look(sampler, broker, 30, a=numbers(9, 1800), b=numbers(1, 9)) == 2
    # Nobody reads for half an hour, then RabbitMQ has restarted and “b” is deleted.
    assert look(sampler, broker, 75, a=numbers(2, 0)) == 3
    found = of("a", 75, broker).points[-6:]
    assert [one.messages for one in found] == [3, 5, 9, None, None, 2]
    assert [one.publish_rate for one in found] == [None, 1.0, 1.0, None, None, None]
    assert [one.messages for one in of("b", 75, broker).points[-6:]] == [1, 1, 1, None, None, None]
    assert [one.messages for one in of("", 75, broker).points[-6:]] == [4, 6, 10, None, None, 2]
    peak = of("a", 75, broker).peak
    assert peak is not None
    assert peak.messages == 9
    assert of("a", 75, broker).mean("publish_rate") == 1.0


def test_a_worker_that_starts_again_stores_no_moment_twice(broker: Broker) -> None:
    assert look(QueueSampler(), broker, 0, a=numbers(3)) == 2
    again = QueueSampler()
    assert look(again, broker, 5, a=numbers(3)) == 0
    assert look(again, broker, 15, a=numbers(3)) == 2
    assert look(again, broker, 30, a=numbers(3)) == 1
    # All of them once a day, for retention deletes the oldest rows.
    assert look(again, broker, 12 * 60, a=numbers(3)) == 2


def test_a_queue_that_is_deleted_unseen_has_no_depth_after_that(broker: Broker) -> None:
    first, again = QueueSampler(), QueueSampler()
    look(first, broker, 0, a=numbers(7), b=numbers(1))
    # Between two workers.
    look(again, broker, 15, b=numbers(1))
    assert [one.messages for one in of("a", 15, broker).points[-2:]] == [7, None]
    # Between the last moment of a day and the first of the next.
    look(again, broker, 11 * 60 + 45, b=numbers(5), c=numbers(2))
    look(again, broker, 12 * 60, c=numbers(2))
    assert [one.messages for one in of("b", 12 * 60, broker).points[-2:]] == [5, None]


def test_totals_are_unknown_where_a_depth_is(broker: Broker) -> None:
    look(QueueSampler(), broker, 0, a=numbers(7), b=QueueNumbers(messages=None))
    assert QueueSample.objects.get(queue="").messages is None


def test_an_hour_that_the_clocks_repeat_has_two_places(broker: Broker) -> None:
    begin = datetime(2026, 10, 24, 23, tzinfo=UTC)
    with timezone.override("Europe/Berlin"):
        points = read_history(broker, "a", "1", begin + timedelta(hours=3)).points
        labels = [point.label for point in points]
    assert labels[-13::4] == [
        "25 Oct 01:00",
        "25 Oct 02:00 CEST",
        "25 Oct 02:00 CET",
        "25 Oct 03:00",
    ]
    assert len(labels) == len(set(labels))


def test_a_silent_broker_and_a_very_large_one_have_no_history_of_queues(broker: Broker) -> None:
    many = {f"q{number}": numbers(1) for number in range(1001)}
    assert look(QueueSampler(), broker, 0, **many) == 1
    assert QueueSample.objects.get().messages == 1001
    know(broker, Queue("a"), error="No answer.")
    assert QueueSampler().sample() == 0


def test_the_page_of_a_queue_has_its_history(broker: Broker) -> None:
    client = signed_in(Role.VIEWER, broker)
    know(broker, Queue("a"), a=3)
    page = reverse("dead_letter_queue", args=[broker.slug], query={"name": "a"})
    assert "Nothing was read in this range." in text_of(client.get(page))
    sampler = QueueSampler()
    sampler.sample()
    assert "The line begins with the second reading" in text_of(client.get(page))
    sampler._stored.clear()
    QueueSample.objects.update(at=F("at") - 5 * timedelta(hours=1))
    sampler.sample()
    for chosen in ("", "7", "28", "1000"):
        text = text_of(client.get(f"{page}&range={chosen}"))
        assert "<strong>3</strong><span>greatest depth" in text
        assert "<strong>–</strong><span>mean published" in text
