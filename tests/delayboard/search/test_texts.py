from __future__ import annotations

import threading

import pytest
from django.db import connection

from delayboard.dead_letters.search import index as indexer
from delayboard.dead_letters.search.index import contents_of, read_to
from delayboard.models import ParkedField, ParkedMessage, ParkedPosition, ParkedText
from delayboard.worker import tasks
from tests.delayboard.search.builders import found, index, put
from topology.models import Broker

pytestmark = pytest.mark.both_databases


def indexed() -> list[int]:
    return list(ParkedText.objects.order_by("pk").values_list("pk", flat=True))


def test_parked_messages_are_indexed_in_steps(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexer, "STEP", 2)
    ids = [put(broker, {"n": number}).pk for number in range(5)]
    progress = indexer.begin()
    assert [indexer.keep_up(progress) for _ in range(4)] == [2, 2, 1, 0]
    assert indexed() == ids
    assert ParkedField.objects.filter(name="body.n").count() == 5


def test_what_came_to_be_seen_behind_others_is_swept_up(broker: Broker) -> None:
    first, late, last = (put(broker, {}) for _ in range(3))
    progress = indexer.begin()
    indexer.keep_up(progress)
    ParkedText.objects.filter(pk=late.pk).delete()
    assert indexer.keep_up(progress) == 0
    indexer.sweep(progress)
    assert indexer.sweep(progress) == 1
    assert indexed() == [first.pk, late.pk, last.pk]
    assert read_to() == last.pk
    assert indexer.not_searchable(broker) == 0


def test_an_indexer_that_begins_anew_goes_on(broker: Broker) -> None:
    put(broker, {})
    index()
    young = put(broker, {})
    assert indexed() == [young.pk - 1]
    assert indexer.not_searchable(broker) == 1
    assert indexer.keep_up(indexer.begin()) == 1
    assert indexer.not_searchable(broker) == 0
    assert young.pk in indexed()


def test_two_indexers_write_each_parked_message_once(broker: Broker) -> None:
    put(broker, {})
    one, two = indexer.begin(), indexer.begin()
    assert indexer.keep_up(one) + indexer.keep_up(two) == 1
    assert ParkedText.objects.count() == 1


def test_a_parked_message_that_is_deleted_takes_its_index_along(broker: Broker) -> None:
    gone, stays = put(broker, {"a": "uncommon"}), put(broker, {"a": "uncommon"})
    index()
    ParkedMessage.objects.filter(pk=gone.pk).delete()
    assert indexed() == [stays.pk]
    assert set(ParkedField.objects.values_list("parked_message", flat=True)) == {stays.pk}
    assert found(broker, "uncommon") == [stays.pk]
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO delayboard_parkedindex (delayboard_parkedindex, rank)"
                " VALUES ('integrity-check', 1)"
            )


def test_a_parked_message_that_goes_while_it_is_read_is_left_out(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, stays = put(broker, {}), put(broker, {})
    reading = contents_of

    def read_and_lose(ids: list[int]) -> object:
        contents = reading(ids)
        ParkedMessage.objects.filter(pk=gone.pk).delete()
        return contents

    monkeypatch.setattr(indexer, "contents_of", read_and_lose)
    assert indexer.keep_up(indexer.begin()) == 1
    assert indexed() == [stays.pk]


@pytest.mark.django_db
def test_the_worker_keeps_the_index(broker: Broker) -> None:
    (task,) = [one for one in tasks.list_tasks("me").values() if one.key == "parked-message-index"]
    parked_message = put(broker, {})
    stop, beats = threading.Event(), []

    def beat(details: object) -> None:
        beats.append(details)
        stop.set()

    task.run(stop=stop, beat=beat)
    assert beats == [{"indexed": 1}]
    assert indexed() == [parked_message.pk]
    assert ParkedPosition.objects.count() <= 1
