"""Which messages an interception takes, and by which header they are known."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from threading import Event
from typing import Any

import pytest

from analytics.models import ScheduledMessage
from delayboard.changes import intercept
from delayboard.changes.request import (
    MOST_IDS,
    MOST_KEYS,
    IdHeaders,
    SelectedMessages,
    Selection,
    Selector,
    id_headers,
    key_of_delay,
)
from delayboard.models import (
    ChangeKind,
    ChangeState,
    Interception,
    InterceptionState,
    ScheduledChange,
)
from tests.builders import make_broker
from topology import work
from topology.broker.errors import Unreachable
from topology.models import Broker, Topology, Work, WorkState
from topology.operations.topology_rows import create_topology
from topology.patterns.delay_levels import params as levels
from topology.patterns.delay_levels.pattern import delay_levels


@pytest.mark.parametrize(
    ("message_id", "correlation_id", "headers", "found"),
    [
        ("m", "", {"a": "b", "NServiceBus.MessageId": "m"}, ["NServiceBus.MessageId"]),
        ("m", "", {"own id": "m"}, ["own id"]),
        ("m", "m", {"conversation": "m", "id": "m"}, ["conversation", "id"]),
        ("1", "", {"number": 1}, []),
        ("m", "", {"x-id": "m"}, []),
        ("m\n", "", {"id": "m\n"}, []),
        ("ü", "", {"id": "ü"}, []),
        ("m", "c", {"id": "c"}, []),
        ("", "c", {"id": "c", "task": "send"}, ["id"]),
        ("", "c", {"conversation": "c"}, []),
        ("", "", {"id": ""}, []),
    ],
)
def test_the_headers_with_the_id_of_a_message(
    message_id: str, correlation_id: str, headers: dict[str, Any], found: list[str]
) -> None:
    row = ScheduledMessage(
        message_id=message_id, correlation_id=correlation_id, headers_json=json.dumps(headers)
    )
    assert id_headers(row) == {name: headers[name] for name in found}


def id_of(number: int) -> IdHeaders:
    return frozenset({("id", str(number))})


def test_a_message_is_selected_by_its_id_else_by_its_key_else_with_all_others() -> None:
    none = Selection()
    assert none.adding([]) == none
    by_id = none.adding([Selector(id_of(1), "1.work"), Selector(id_of(1), "1.work")])
    assert by_id == Selection(headers=frozenset({id_of(1)}))
    both = by_id.adding([Selector(frozenset(), "2.work"), Selector(id_of(2), "2.work")])
    assert both == Selection(frozenset({id_of(1)}), frozenset({"2.work"}))
    everything = both.adding([Selector(frozenset(), "")])
    assert everything.is_all
    assert everything.adding([Selector(id_of(3), "3.work")]) == everything


def test_above_a_number_of_ids_messages_are_selected_by_key_and_above_one_of_keys_all_are() -> None:
    ids = [Selector(id_of(number), f"{number}.work") for number in range(MOST_IDS)]
    most = Selection().adding(ids * 2)
    assert len(most.headers) == MOST_IDS
    assert not most.keys
    more = most.adding([Selector(id_of(-1), "a.work"), Selector(id_of(-2), "a.work")])
    assert (more.headers, more.keys) == (most.headers, frozenset({"a.work"}))
    assert most.adding([Selector(id_of(-1), "")]).is_all
    keys = [Selector(frozenset(), f"{number}.work") for number in range(MOST_KEYS)]
    assert len(Selection().adding(keys).keys) == MOST_KEYS
    assert more.adding(keys).is_all


@pytest.fixture
def interception() -> Interception:
    broker = make_broker()
    create_topology(None, broker, delay_levels.KIND, levels.Params("own", "a"))
    return Interception.objects.create(
        broker=broker,
        name="delayboard.intercept.1",
        source="a",
        queue="work",
        bindings=[["#.work", {}]],
        queue_type="quorum",
        work=work.create("intercept", 0, broker=broker, user=None),
    )


def change(
    interception: Interception, seconds: float, key: str = "", **id_headers: str
) -> ScheduledChange:
    return ScheduledChange.objects.create(
        broker=interception.broker,
        topology=Topology.objects.get(),
        interception=interception,
        kind=ChangeKind.CANCEL,
        key="m",
        destination="work",
        due_at=datetime.now(UTC) + timedelta(seconds=seconds),
        id_headers=id_headers,
        routing_key=key,
    )


@pytest.mark.django_db
def test_each_change_is_selected_once_and_later_all_messages(
    interception: Interception,
) -> None:
    taking = interception.objects_of_broker.taking_headers
    taking_all = interception.objects_of_broker.taking_all
    selection = SelectedMessages(interception)
    first = change(interception, 5, id="1")
    change(interception, 3600, id="2")
    undone = change(interception, 5, id="3")
    ScheduledChange.objects.filter(pk=undone.pk).update(state=ChangeState.UNDONE)
    assert selection.missing() == [taking({"id": "1"})]
    assert selection.missing() == []
    ScheduledChange.objects.filter(pk=first.pk).update(state=ChangeState.DONE)
    change(interception, 6, id="4")
    assert selection.missing() == [taking({"id": "4"})]
    change(interception, 6)
    assert selection.missing() == [taking_all]
    change(interception, 6, id="5")
    assert selection.missing() == []


@pytest.mark.django_db
def test_a_change_without_an_id_header_is_selected_by_its_key(interception: Interception) -> None:
    taking_key = interception.objects_of_broker.taking_key
    selection = SelectedMessages(interception)
    change(interception, 5, "1.work")
    change(interception, 6, "1.work")
    change(interception, 7, "2.work", id="7")
    by_header = interception.objects_of_broker.taking_headers({"id": "7"})
    assert selection.missing() == [by_header, taking_key("1.work")]
    change(interception, 8, "3.work")
    assert selection.missing() == [taking_key("3.work")]
    assert selection.missing() == []


@pytest.mark.parametrize(
    ("kind", "key", "found"),
    [
        ("delay_levels", "0.1.work", "0.1.work"),
        ("delay_levels", "0.1.wörk", ""),
        ("hold_queues", "work", ""),
    ],
)
def test_only_a_routing_key_with_the_delay_selects(kind: str, key: str, found: str) -> None:
    row = ScheduledMessage(topology=Topology(kind=kind), routing_key=key)
    assert key_of_delay(row) == found


@pytest.mark.django_db
def test_all_messages_are_taken_once_where_the_queue_is_gone(interception: Interception) -> None:
    selection = SelectedMessages(interception)
    change(interception, 5, id="1")
    assert selection.missing(is_for_all=True) == [interception.objects_of_broker.taking_all]
    assert selection.missing(is_for_all=True) == []


@pytest.mark.django_db
def test_read_only_stops_what_intercepts_nothing_yet_unless_a_copy_may_be_published(
    interception: Interception,
) -> None:
    own = change(interception, 5, id="1")
    Broker.objects.update(is_read_only=True)

    def attend() -> str:
        Work.objects.update(not_before_at=None)
        claimed = work.claim(["intercept"], "test")
        assert claimed is not None
        with suppress(Unreachable):
            work.attempt(intercept.attend, claimed, stop=Event())
        claimed.refresh_from_db()
        assert claimed.state == WorkState.WAITING
        return claimed.error

    sentence = "Test broker is read-only. An administrator can end this."
    assert attend() == sentence
    interception.refresh_from_db()
    assert interception.state == InterceptionState.WAITING
    # It would be delivered beside its copy.
    ScheduledChange.objects.update(copy_begun_at=own.due_at)
    assert "Nothing listens" in attend()
    # Where nothing was intercepted in time, that is said all the same.
    late = own.due_at - timedelta(hours=1)
    ScheduledChange.objects.update(copy_begun_at=None, due_at=late)
    change(interception, 5, id="2")
    assert attend() == sentence
    assert ScheduledChange.objects.get(pk=own.pk).state == ChangeState.MISSED
