"""Move queue on a real broker: a shovel moves all messages as they are, or nothing happens."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from delayboard.dead_letters import shovel
from delayboard.models import DeadLetterQueue
from tests.brokers import Vhost, every_generation
from tests.builders import address_of, eventually, make_broker
from topology.broker.amqp.depths import live_depths
from topology.broker.amqp.pipeline import pipeline
from topology.broker.errors import NotFound
from topology.broker.management.client import Management, Shovels, path
from topology.broker.properties.read import build_properties
from topology.definitions import Arguments, Queue
from topology.message import Publish
from topology.models import AuditEntry, Broker

pytestmark = pytest.mark.django_db(transaction=True)
NUMBER = 300


@pytest.fixture
def broker(vhost: Vhost) -> Broker:
    """Its queue “dead” has messages and is marked; “few” has a maximum length."""
    few = Queue("few", arguments=Arguments({"x-max-length": 2}))
    with Management(address_of(vhost)) as management:
        for queue in (Queue("dead"), Queue("work"), few):
            management.declare_queue(queue)
    with pipeline(address_of(vhost), "filling") as channel:
        for place in range(NUMBER):
            channel.publish(Publish("", "dead", build_properties({"n": place}), b"x"), place)
        while channel.in_flight:
            channel.answers(1.0)
    made = make_broker(vhost)
    DeadLetterQueue.objects.create(
        broker=made, queue="dead", is_confirmed=True, decided_at=timezone.now()
    )
    return made


def depths(broker: Broker) -> dict[str, int]:
    return dict(live_depths(broker.address, ["dead", "work"]))


@every_generation
def test_all_messages_are_moved_where_a_shovel_loses_none(broker: Broker, admin_user: User) -> None:
    with Management(broker.address) as management:
        version = management.version()
    if version < shovel.IGNORES_X_DEATH:
        with pytest.raises(shovel.MoveRefused, match="keeps x-death"):
            shovel.start_move(admin_user, broker, "dead", "work")
        assert depths(broker) == {"dead": NUMBER, "work": 0}
        return
    shovel.start_move(admin_user, broker, "dead", "work")
    eventually(lambda: depths(broker) == {"dead": 0, "work": NUMBER}, "all are moved")
    eventually(lambda: shovel.read_move(broker, "dead") is None, "the shovel deletes itself")
    assert AuditEntry.objects.get(action="queue move started").details == {"target": "work"}


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("few", "maximum length"),
        ("missing", "no queue with the name"),
        ("dead", "would return to dead"),
        ("delayboard.tap.x", "no queue with the name"),
    ],
)
def test_a_refused_destination_moves_nothing(
    broker: Broker, admin_user: User, target: str, reason: str
) -> None:
    with pytest.raises(shovel.MoveRefused, match=reason):
        shovel.start_move(admin_user, broker, "dead", target)
    assert shovel.read_move(broker, "dead") is None
    assert depths(broker) == {"dead": NUMBER, "work": 0}


def test_a_shovel_that_waits_is_shown_and_stopped(broker: Broker, admin_user: User) -> None:
    with Shovels(broker.address) as shovels:
        # Nothing listens there: the shovel connects again and again.
        uri = "amqp://127.0.0.1:1"
        ends = {"src-uri": uri, "src-queue": "dead", "dest-uri": uri, "dest-queue": "work"}
        value = {"src-protocol": "amqp091", "dest-protocol": "amqp091", **ends}
        shovels._call("PUT", shovels._parameter("delayboard move dead"), {"value": value})
    eventually(lambda: shovel.read_move(broker, "dead") is not None, "it is listed")
    with pytest.raises(shovel.MoveRefused, match="exists already"):
        shovel.start_move(admin_user, broker, "dead", "work")
    shovel.stop_move(admin_user, broker, "dead")
    eventually(lambda: shovel.read_move(broker, "dead") is None, "it is deleted")
    assert depths(broker) == {"dead": NUMBER, "work": 0}


@every_generation
def test_a_path_of_no_plugin_is_not_found(broker: Broker) -> None:
    """So the page recognizes a broker without the shovel plugin."""
    with Management(broker.address) as management, pytest.raises(NotFound):
        management._call("GET", path("no-such-plugin", "x"))
