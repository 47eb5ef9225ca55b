"""Which messages an interception takes, and by which header they are known."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from analytics.models import ScheduledMessage
from delayboard.changes.select_messages import MOST, Selection, are_selected, id_headers
from delayboard.models import ChangeKind, ChangeState, Interception, ScheduledChange
from tests.builders import make_broker
from topology import work
from topology.models import Topology
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


def test_above_a_number_of_ids_all_messages_are_taken() -> None:
    ids = [frozenset({("id", str(number))}) for number in range(MOST + 1)]
    assert are_selected(ids[:MOST] * 2)
    assert not are_selected(ids)
    assert not are_selected([ids[0], frozenset()])


@pytest.fixture
def interception() -> Interception:
    broker = make_broker()
    create_topology(None, broker, delay_levels.KIND, levels.Params("own", "a"))
    return Interception.objects.create(
        broker=broker,
        name="delayboard.intercept.1",
        source="a",
        queue="work",
        queue_type="quorum",
        work=work.create("intercept", 0, broker=broker, user=None),
    )


def change(interception: Interception, seconds: float, **id_headers: str) -> ScheduledChange:
    return ScheduledChange.objects.create(
        broker=interception.broker,
        topology=Topology.objects.get(),
        interception=interception,
        kind=ChangeKind.CANCEL,
        key="m",
        destination="work",
        due_at=datetime.now(UTC) + timedelta(seconds=seconds),
        id_headers=id_headers,
    )


@pytest.mark.django_db
def test_each_change_is_selected_once_and_later_all_messages(
    interception: Interception,
) -> None:
    taking = interception.objects_of_broker.taking
    selection = Selection(interception)
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
    assert selection.missing() == [taking({})]
    change(interception, 6, id="5")
    assert selection.missing() == []


@pytest.mark.django_db
def test_all_messages_are_taken_once_where_the_queue_is_gone(interception: Interception) -> None:
    selection = Selection(interception)
    change(interception, 5, id="1")
    assert selection.missing(is_for_all=True) == [interception.objects_of_broker.taking({})]
    assert selection.missing(is_for_all=True) == []
