"""Retention of replays: what ended long ago goes, whatever it was large; messages stay."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone
from pytest_django import Settings

from analytics.retention import rules
from analytics.retention.rules import Alive, clean
from delayboard.models import (
    BatchState,
    ItemState,
    ParkedMessage,
    ParkedState,
    ReplayBatch,
    ReplayEdit,
    ReplayItem,
    ReplayRoute,
)
from delayboard.retention.table import REPLAYS
from tests.delayboard.builders import a_message, parked
from tests.delayboard.replay_rows import a_batch
from topology.models import Broker

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]
OLD = timedelta(days=366)


def forget_replays(alive: Alive = lambda: None) -> int:
    return clean([REPLAYS], timezone.now(), alive)[REPLAYS.what]


def some(broker: Broker, state: BatchState, *, days: int = 366) -> ReplayBatch:
    parked_messages = parked(broker, *(a_message(b"%d" % number) for number in range(3)))
    at = timezone.now() - timedelta(days=days)
    return a_batch(broker, parked_messages, state, [ItemState.DONE], state_at=at)


@pytest.mark.parametrize("state", BatchState)
def test_only_what_has_ended_is_forgotten(broker: Broker, state: BatchState) -> None:
    batch = some(broker, state)
    assert forget_replays() == int(batch.is_ended)
    assert ReplayBatch.objects.exists() == (not batch.is_ended)


def test_young_ones_stay_and_old_ones_go_whole_but_for_their_parked_messages(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "BATCH", 2)
    old, young = some(broker, BatchState.DONE), some(broker, BatchState.DONE, days=364)
    (parked_message,) = parked(broker, a_message(b"again"))
    item = old.items.first()
    assert item is not None
    ReplayEdit.objects.create(
        item=item, properties=b"", body=parked_message.body, edited_at=timezone.now()
    )
    young.items.update(died_as=parked_message)
    alive: list[None] = []
    assert forget_replays(lambda: alive.append(None)) == 1
    assert len(alive) == 3
    assert list(ReplayBatch.objects.all()) == [young]
    assert (ReplayItem.objects.count(), ReplayRoute.objects.count()) == (3, 1)
    assert not ReplayEdit.objects.exists()
    assert ParkedMessage.objects.count() == 7


def test_one_of_which_a_message_is_still_on_its_way_stays(broker: Broker) -> None:
    batch = some(broker, BatchState.DONE)
    ParkedMessage.objects.filter(replays=batch.items.last()).update(state=ParkedState.DELAYED)
    assert forget_replays() == 0


def test_the_setting_keeps_them_for_good(broker: Broker, settings: Settings) -> None:
    some(broker, BatchState.DONE)
    settings.KEEP_DAYS = settings.KEEP_DAYS | {REPLAYS.setting: None}
    assert forget_replays() == 0
