"""What consumers published to an error queue themselves goes back where it came from."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import User

from delayboard.dead_letters.replay import make_draft
from delayboard.dead_letters.replay.options import Options
from tests.brokers import Vhost
from tests.builders import address_of, make_broker, make_user
from tests.publishing import publisher
from tests.real_broker.replaying import DEAD, WORK, arrived, park, replayed, shop
from topology.broker.properties.read import build_properties
from topology.message import Message, Publish
from topology.models import Broker, Role
from topology.operations.client_conventions import save_convention

pytestmark = pytest.mark.django_db(transaction=True)

# Two spaces, an escape and digits that a writer of JSON would not keep.
INSIDE = '{"Text": "Grüße – 東京",  "n": 1.50, "path": "a\\/b"}\r\n'
ENVELOPE = {
    "RoutingKey": WORK,
    "Exchange": WORK,
    "Queue": WORK,
    "Exception": "System.TimeoutException: late\r\n   at Shop",
    "Message": INSIDE,
    "BasicProperties": {"MessageId": "a1", "Headers": {"tenant": "42"}},
}
OWN = """name = "shop-client"
known_by = [["/headers/x-src-queue"]]
[facts]
queue = "/headers/x-src-queue"
exception_type = "/headers/x-why"
[restart]
zero = ["/headers/x-tries"]
"""


@pytest.fixture
def broker(vhost: Vhost) -> Broker:
    shop(vhost)
    return make_broker(vhost)


@pytest.fixture
def operator() -> User:
    return make_user("ada", Role.OPERATOR)


def fail(vhost: Vhost, body: bytes, number: int, headers: dict[str, Any]) -> None:
    """Published to the dead-letter queue by a consumer."""
    with publisher(address_of(vhost), "test") as channel:
        for _ in range(number):
            properties = build_properties(headers, delivery_mode=2)
            channel.publish(Publish("", DEAD, properties, body))


def replay_group(
    vhost: Vhost, broker: Broker, user: User, number: int, options: Options | None = None
) -> Message:
    """The first of the messages that arrive, of one group; each arrives once."""
    parked = park(user, broker, number)
    assert len({one.group_id for one in parked}) == 1
    batch = make_draft.draft_group(user, parked[0].group, options or Options())
    assert {(route.ending, route.is_good) for route in batch.routes.all()} == {("delivered", True)}
    assert replayed(user, batch).done == number
    back = arrived(vhost, WORK, number)
    assert len(back) == number
    return back[0]


def test_the_message_inside_an_envelope_of_easynetq_arrives_bit_for_bit(
    vhost: Vhost, broker: Broker, operator: User
) -> None:
    fail(vhost, json.dumps(ENVELOPE).encode(), 3, {})
    back = replay_group(vhost, broker, operator, 3, Options(unwraps=True))
    assert back.body == INSIDE.encode()
    assert (back.exchange, back.routing_key) == (WORK, WORK)
    assert (back.properties.message_id, back.headers["tenant"]) == ("a1", "42")


def test_an_operator_s_convention_says_where_messages_go(
    vhost: Vhost, broker: Broker, operator: User
) -> None:
    save_convention(operator, broker, OWN)
    fail(vhost, b"{}", 3, {"x-src-queue": WORK, "x-why": "Late", "x-tries": 3})
    back = replay_group(vhost, broker, operator, 3)
    assert (back.exchange, back.routing_key) == ("", WORK)
    assert (back.headers["x-tries"], back.headers["x-why"]) == (0, "Late")
