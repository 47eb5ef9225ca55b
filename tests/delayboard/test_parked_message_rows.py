"""Parked messages: what a row keeps, and the counts that change with it."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from delayboard.dead_letters.parked import store
from delayboard.models import Body, GroupHour, MessageGroup, ParkedMessage
from tests.delayboard.builders import a_death, a_message, deaths_header, parked
from tests.topology.builders import NOON
from topology.broker.properties.read import read_properties
from topology.message import Message, Properties
from topology.models import Broker

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]
DECIMAL = b"\x20\x00\x00\x00\x00\x08\x01dD\x01\x00\x00\x00\x0f"


@pytest.mark.parametrize(
    "message",
    [
        a_message(b'{"n": 1}', message_id="m1", delivery_mode=2),
        a_message(b"", {}),
        Message("ex", "key", read_properties(DECIMAL), b"\x00\xff", redelivered=True),
        Message("", "", read_properties(b"\xff\xff\xff"), b"poison"),
        Message("", "", read_properties(b""), b"no properties at all"),
    ],
)
def test_a_parked_message_gives_its_message_back(broker: Broker, message: Message) -> None:
    (parked_message,) = parked(broker, message)
    assert ParkedMessage.objects.get(pk=parked_message.pk).message == message
    assert parked_message.without_body.body == b""
    assert parked_message.content_id == message.content_id


def test_parked_messages_are_numbered_in_their_order_and_share_equal_bodies(broker: Broker) -> None:
    count = store.AT_ONCE + 3
    messages = [a_message(b"%d" % (number % 2), message_id=f"m{number}") for number in range(count)]
    parked_messages = parked(broker, *messages)
    assert [parked_message.message_id for parked_message in parked_messages] == [
        f"m{number}" for number in range(count)
    ]
    assert Body.objects.count() == 2


def test_nothing_is_put_for_no_message(broker: Broker) -> None:
    assert parked(broker) == []


def test_groups_and_hours_count_what_died_together(broker: Broker) -> None:
    later = NOON + timedelta(hours=2, minutes=5)
    first, second = (deaths_header(a_death(first_at=at)) for at in (NOON, later))
    parked(broker, a_message(headers=first), a_message(headers=second))
    parked(broker, a_message(headers=second))
    group = MessageGroup.objects.get()
    assert (group.parked, group.discarded, group.total) == (3, 0, 3)
    assert (group.first_at, group.last_at) == (NOON, later)
    hours = dict(GroupHour.objects.values_list("hour", "died"))
    assert hours == {NOON: 1, later.replace(minute=0): 2}


def test_groups_are_counted_in_the_order_of_their_keys(broker: Broker) -> None:
    headers = [deaths_header(a_death(queue=name)) for name in "abcdefgh"]
    for one in headers[::2]:
        parked(broker, a_message(headers=one))
    with CaptureQueriesContext(connection) as asked:
        parked(broker, *(a_message(headers=one) for one in headers))
    table = '"delayboard_messagegroup"'
    writing = [q["sql"] for q in asked.captured_queries if table in q["sql"].split("(")[0]]
    writing = [sql for sql in writing if not sql.startswith("SELECT")]
    assert ["INSERT" in sql for sql in writing] == [True] + [False] * len(headers)
    changed = [int(re.findall(r'"id" = (\d+)', sql)[-1]) for sql in writing[1:]]
    assert changed == sorted(MessageGroup.objects.values_list("pk", flat=True))
    assert sum(group.total for group in MessageGroup.objects.all()) == 12


@pytest.mark.parametrize(
    "odd",
    [
        deaths_header(a_death(first_at=datetime(1, 1, 1, tzinfo=UTC))),
        deaths_header(a_death(first_at=datetime(9999, 12, 31, tzinfo=UTC))),
        deaths_header(a_death(count=2**62)),
        deaths_header(a_death(queue="\x00<script>", reason="\u202eodd")),
        {"x-death": "no list"},
        {"x-death": [7, {"queue": b"\xff", "count": "many"}]},
    ],
)
def test_no_header_keeps_a_parked_message_out(broker: Broker, odd: dict[str, Any]) -> None:
    (parked_message,) = parked(broker, Message("", "dead", a_properties(odd), b"{}"))
    assert parked_message.died_at in (None, NOON)
    assert parked_message.deaths <= store.MOST_DEATHS
    assert MessageGroup.objects.get().total == 1


def a_properties(headers: dict[str, Any]) -> Properties:
    """As a hostile publisher may write them: what cannot be encoded is put in decoded."""
    return Properties(headers=headers)
