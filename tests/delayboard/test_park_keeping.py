"""Retention of messages: resolved ones by age and size, unresolved ones never."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from pytest_django import Settings

from analytics.retention.rules import Alive, clean
from delayboard.dead_letters import discard
from delayboard.dead_letters.parked.store import change_parked_messages
from delayboard.models import (
    BackgroundTask,
    BatchState,
    Body,
    ItemState,
    MessageGroup,
    ParkedMessage,
    ParkedState,
    ParkSession,
    ReplayEdit,
)
from delayboard.models.background_task import CLEANING
from delayboard.retention import parked_rows
from delayboard.retention.parked_rows import DISCARDED, PARKED, REPLAYED, SIZE, measure_size
from tests.delayboard.builders import a_message, parked
from tests.delayboard.replay_rows import a_batch
from tests.site.page_setup import signed_in, text_of
from topology.models import Broker, Role

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]
LARGE = 300_000


def discarded(user: User, *parked_messages: ParkedMessage, days: int = 0) -> None:
    keys = [parked_message.pk for parked_message in parked_messages]
    discard.change_these(user, parked_messages[0].broker, discard.DISCARD, keys)
    at = timezone.now() - timedelta(days=days)
    ParkedMessage.objects.filter(pk__in=keys).update(state_at=at)


def clean_parked(alive: Alive = lambda: None) -> dict[str, int]:
    return clean(PARKED, timezone.now(), alive)


def left() -> list[str]:
    return list(ParkedMessage.objects.order_by("pk").values_list("message_id", flat=True))


def some(broker: Broker, *names: str, size: int = 2) -> list[ParkedMessage]:
    return parked(broker, *(a_message(n.encode() * size, message_id=n) for n in names))


def test_discarded_parked_messages_go_after_their_days_and_unresolved_ones_never(
    broker: Broker, user: User
) -> None:
    old, young, _ = some(broker, "o", "y", "p")
    ParkedMessage.objects.update(parked_at=timezone.now() - timedelta(days=900))
    discarded(user, old, days=31)
    discarded(user, young, days=29)
    assert clean_parked()[DISCARDED.what] == 1
    assert left() == ["y", "p"]
    group = MessageGroup.objects.get()
    assert (group.parked, group.discarded, group.total) == (1, 1, 3)
    assert Body.objects.count() == 2


def test_a_body_stays_as_long_as_one_parked_message_has_it(broker: Broker, user: User) -> None:
    one, _ = parked(broker, a_message(b"same"), a_message(b"same"))
    discarded(user, one, days=31)
    clean_parked()
    assert Body.objects.count() == 1


def test_a_parked_message_stays_as_long_as_a_possible_repeat_of_it(
    broker: Broker, user: User
) -> None:
    old, young = some(broker, "o", "y")
    ParkedMessage.objects.filter(pk=young.pk).update(repeat_of=old)
    discarded(user, old, days=31)
    assert clean_parked()[DISCARDED.what] == 0
    assert left() == ["o", "y"]
    assert ParkedMessage.objects.get(pk=young.pk).repeat_of == old
    discarded(user, young, days=31)
    assert clean_parked()[DISCARDED.what] == 2
    assert left() == []


def test_by_size_the_longest_discarded_go_first_and_only_as_many_as_must(
    broker: Broker, user: User, monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    monkeypatch.setattr(parked_rows, "SIZE_BATCH", 1)
    a, b, c, _, _ = some(broker, *"abcde", size=LARGE)
    discarded(user, b, days=3)
    discarded(user, a, days=2)
    discarded(user, c, days=1)
    settings.KEEP_PARKED_MB = 1
    assert clean_parked()[SIZE.what] == 2
    assert left() == ["c", "d", "e"]
    assert not SIZE.is_exceeded(measure_size())


def test_by_size_unresolved_ones_stay_and_the_page_says_so(
    broker: Broker, settings: Settings, tmp_path: Path
) -> None:
    settings.EVENT_LOG = tmp_path / "log"
    some(broker, *"abcde", size=LARGE)
    settings.KEEP_PARKED_MB = 1
    assert clean_parked()[SIZE.what] == 0
    assert len(left()) == 5
    assert SIZE.is_exceeded(measure_size())
    assert not SIZE.is_exceeded(None)
    BackgroundTask.objects.create(
        key=CLEANING, name="Cleaning", details={"parked_messages_bytes": measure_size()}
    )
    text = text_of(signed_in(Role.VIEWER).get("/retention/"))
    assert re.search(r"more than the limit of 1(\.0)?\sMB \(KEEP_PARKED_MB\)", text)
    assert "KEEP_DISCARDED_DAYS" in text


def test_a_parked_message_that_is_restored_meanwhile_stays(broker: Broker, user: User) -> None:
    one, two = some(broker, "a", "b")
    discarded(user, one, two, days=31)

    def restore() -> None:
        discard.change_these(user, broker, discard.RESTORE, [two.pk])

    restore()
    clean_parked(restore)
    assert left() == ["b"]
    assert ParkedMessage.objects.get().state == ParkedState.PARKED


def test_ended_sessions_without_parked_messages_go(broker: Broker, user: User) -> None:
    long_ago = timezone.now() - timedelta(days=2)
    reported = {"broker": broker, "queue": "dead", "began_at": long_ago}
    ParkSession.objects.create(**reported, ended_at=long_ago)
    ParkSession.objects.create(**reported)
    young = timezone.now() - timedelta(hours=23)
    idle = ParkSession.objects.create(**(reported | {"began_at": young}))
    killed = ParkSession.objects.create(**reported, stored_to=7)
    (parked_message,) = some(broker, "a")
    full = ParkSession.objects.create(**reported, ended_at=long_ago)
    ParkedMessage.objects.filter(pk=parked_message.pk).update(session=full)
    clean_parked()
    assert set(ParkSession.objects.values_list("pk", flat=True)) == {idle.pk, killed.pk, full.pk}


def test_bodies_are_deleted_unread(broker: Broker, user: User) -> None:
    parked_messages = some(broker, "a", "b")
    discarded(user, *parked_messages, days=31)
    Body.objects.create(sha256="left", data=b"left", size=4)
    with CaptureQueriesContext(connection) as asked:
        clean_parked()
    assert not Body.objects.exists()
    column = f'"{Body._meta.db_table}"."data"'
    assert [query["sql"] for query in asked.captured_queries if column in query["sql"]] == []


def test_by_size_is_measured_at_the_beginning_and_the_end(
    broker: Broker, user: User, monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    monkeypatch.setattr(parked_rows, "SIZE_BATCH", 1)
    discarded(user, *some(broker, *"abcdef", size=LARGE))
    settings.KEEP_PARKED_MB = 1
    measured: list[int] = []
    real = measure_size

    def size() -> int:
        measured.append(real())
        return measured[-1]

    monkeypatch.setattr(parked_rows, "measure_size", size)
    assert clean_parked()[SIZE.what] == 3
    assert len(measured) == 2


def test_bodies_that_two_share_free_nothing_before_the_last(
    broker: Broker, user: User, monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    monkeypatch.setattr(parked_rows, "SIZE_BATCH", 1)
    parked_messages = parked(broker, *(a_message(b"x" * 1_100_000, message_id=n) for n in "ab"))
    discarded(user, *parked_messages)
    settings.KEEP_PARKED_MB = 1
    assert clean_parked()[SIZE.what] == 2
    assert not Body.objects.exists()


def resolved(state: ParkedState, *parked_messages: ParkedMessage, days: int = 31) -> None:
    """As a replay leaves them."""
    change_parked_messages(
        [parked_message.pk for parked_message in parked_messages],
        (ParkedState.PARKED,),
        state,
        by=None,
        at=timezone.now() - timedelta(days=days),
    )


def test_replayed_parked_messages_go_after_their_days_and_those_on_their_way_never(
    broker: Broker, user: User, settings: Settings
) -> None:
    old, young, delayed, replaying, _ = some(broker, "o", "y", "h", "r", "p")
    resolved(ParkedState.REPLAYED, old)
    resolved(ParkedState.REPLAYED, young, days=29)
    resolved(ParkedState.DELAYED, delayed, days=900)
    resolved(ParkedState.REPLAYING, replaying, days=900)
    settings.KEEP_DAYS = settings.KEEP_DAYS | {DISCARDED.setting: None}
    assert clean_parked() == {
        REPLAYED.what: 1,
        DISCARDED.what: 0,
        SIZE.what: 0,
    }
    assert left() == ["y", "h", "r", "p"]
    group = MessageGroup.objects.get()
    numbers = (group.parked, group.replaying, group.delayed, group.replayed)
    assert numbers == (1, 1, 1, 1)


@pytest.mark.parametrize(
    ("state", "stays"),
    [
        (BatchState.RUNNING, True),
        (BatchState.PAUSED, True),
        (BatchState.DRAFT, False),
        (BatchState.DONE, False),
        (BatchState.CANCELLED, False),
    ],
)
def test_parked_messages_of_a_replay_that_runs_stay(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, state: BatchState, stays: bool
) -> None:
    parked_messages = some(broker, "a", size=2 * LARGE)
    resolved(ParkedState.REPLAYED, *parked_messages)
    batch = a_batch(broker, parked_messages, state, [ItemState.DONE])
    clean_parked()
    assert bool(left()) == stays
    assert (batch.items.get().parked_message_id is not None) == stays


def test_by_size_a_parked_message_of_a_replay_that_runs_stays(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    monkeypatch.setattr(parked_rows, "SIZE_BATCH", 1)
    parked_messages = some(broker, *"abcd", size=LARGE)
    resolved(ParkedState.REPLAYED, *parked_messages, days=1)
    a_batch(broker, parked_messages[:1], BatchState.RUNNING, [ItemState.DONE])
    settings.KEEP_PARKED_MB = 1
    clean_parked()
    assert left() == ["a", "c", "d"]


def test_by_size_discarded_and_replayed_ones_go_in_the_order_of_their_times(
    broker: Broker, user: User, monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    monkeypatch.setattr(parked_rows, "SIZE_BATCH", 1)
    a, b, c, d = some(broker, *"abcd", size=LARGE)
    discarded(user, a, days=4)
    resolved(ParkedState.REPLAYED, b, days=6)
    discarded(user, c, days=8)
    resolved(ParkedState.REPLAYED, d, days=2)
    settings.KEEP_PARKED_MB = 1
    assert clean_parked()[SIZE.what] == 1
    assert left() == ["a", "b", "d"]
    ParkedMessage.objects.filter(pk=a.pk).delete()
    some(broker, *"ef", size=LARGE)
    clean_parked()
    assert left() == ["d", "e", "f"]


def test_the_body_of_an_edit_stays_as_long_as_the_edit(broker: Broker) -> None:
    parked_messages = some(broker, "a")
    batch = a_batch(broker, parked_messages)
    body = Body.objects.create(sha256="edited", data=b"edited", size=6)
    edit = ReplayEdit.objects.create(
        item=batch.items.get(), properties=b"", body=body, edited_at=timezone.now()
    )
    clean_parked()
    assert Body.objects.filter(pk="edited").exists()
    edit.delete()
    clean_parked()
    assert not Body.objects.filter(pk="edited").exists()


def test_the_page_tells_both_rules(broker: Broker, settings: Settings, tmp_path: Path) -> None:
    settings.EVENT_LOG = tmp_path / "log"
    resolved(ParkedState.REPLAYED, *some(broker, "a", "b"))
    some(broker, "c")
    text = text_of(signed_in(Role.VIEWER).get("/retention/"))
    assert "Replayed parked messages" in text
    assert "KEEP_REPLAYED_DAYS" in text
    assert "2 rows" in text
    assert "1 unresolved" in text
