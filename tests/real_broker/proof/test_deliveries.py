"""Messages that come back: what counts as a failed delivery, and what never ends."""

from __future__ import annotations

import pytest

from delayboard.demo.node import PrivateNode
from tests.brokers import Vhost, every_generation
from tests.builders import address_of, eventually
from tests.publishing import publisher
from tests.real_broker.proof.case import Case
from tests.real_broker.proof.named import (
    ACKS,
    CRASHES,
    case,
    ends,
    quorum,
    version_of,
)
from tests.real_broker.proof.play import Players, Seen, declare, publish
from tests.real_broker.proof.run import run
from tests.topology.builders import a_queue
from topology.broker.amqp.connection import open_connection
from topology.broker.amqp.consumer import getter
from topology.definitions import Definitions, Queue
from topology.message import Publish
from topology.routing.context import Consumer, Does

pytestmark = every_generation


def test_the_default_delivery_limit_is_twenty_from_4_0_on(
    broker_node: PrivateNode, vhost: Vhost
) -> None:
    limited = case(quorum("work", dlx="", key="dead"), a_queue("dead"), work=CRASHES, dead=ACKS)
    if version_of(vhost) < (4, 0):
        assert_never_ends(broker_node, vhost, limited)
    else:
        played = run(broker_node, vhost, {"limited": limited})
        assert ends(played) == [("delivered", "dead")]
        assert played.seen.deliveries["work"] == 21


def test_failed_deliveries_of_an_earlier_queue_count_from_4_3_on(
    broker_node: PrivateNode, vhost: Vhost
) -> None:
    """A rejection counts as one, and is remembered through a classic queue."""
    way = case(
        quorum("work", dlx="", key="hold"),
        a_queue("hold", ttl=10, dlx="", key="fragile", type="classic"),
        quorum("fragile", dlx="", key="robust", x_delivery_limit=1),
        quorum("robust", dlx="", key="end", x_delivery_limit=3),
        a_queue("end"),
        work=Consumer("rejects", 1),
        fragile=CRASHES,
        robust=CRASHES,
        end=ACKS,
    )
    played = run(broker_node, vhost, {"way": way})
    assert ends(played) == [("delivered", "end")]
    deliveries = [played.seen.deliveries[name] for name in ("fragile", "robust")]
    assert deliveries == ([2, 4] if version_of(vhost) < (4, 3) else [1, 2])


def test_messages_put_back_count_against_the_delivery_limit_before_4_3(
    broker_node: PrivateNode, vhost: Vhost
) -> None:
    back = case(
        quorum("work", dlx="", key="dead", x_delivery_limit=2),
        a_queue("dead"),
        work=Consumer("requeues"),
        dead=ACKS,
    )
    if version_of(vhost) >= (4, 3):
        assert_never_ends(broker_node, vhost, back)
    else:
        assert ends(run(broker_node, vhost, {"back": back})) == [("delivered", "dead")]


def test_a_rejection_that_puts_it_back_counts_as_a_crash(vhost: Vhost) -> None:
    """Unlike a nack, from 4.3 on."""
    with publisher(address_of(vhost), "test") as channel:
        limited = quorum("work", dlx="", key="dead", x_delivery_limit=2)
        channel.declare(Definitions.of([limited, Queue("dead")]))
        channel.publish(Publish("", "work"))
    with open_connection(address_of(vhost), "test") as connection:
        work = connection.channel()

        def put_back() -> bool:
            method, _, _ = work.basic_get("work")
            if method:
                work.basic_reject(method.delivery_tag, requeue=True)
            return bool(method)

        for _ in range(3):
            eventually(put_back, "the message is in the queue work")
    with getter(address_of(vhost), "dead") as source:
        assert eventually(source.get, "the message is in the queue dead")


@pytest.mark.parametrize("does", ["requeues", "crashes"])
def test_a_classic_queue_delivers_again_for_ever(
    broker_node: PrivateNode, vhost: Vhost, does: Does
) -> None:
    consumer = Consumer(does)
    assert_never_ends(broker_node, vhost, case(a_queue("work", dlx="", key="k"), work=consumer))


def assert_never_ends(node: PrivateNode, vhost: Vhost, endless: Case) -> None:
    """The walk says held, and after many deliveries the message is still in the queue."""
    version = version_of(vhost)
    (outcome,) = endless.walked(endless.definitions, version).outcomes
    assert (outcome.ending, outcome.queue) == ("stuck", "work")
    declare(node, vhost, [endless])
    seen = Seen()
    with Players(vhost, endless.consumers, seen):
        publish(vhost, {"endless": endless}, seen)
        eventually(lambda: seen.deliveries["work"] > 25, "it is delivered again and again")
    with getter(address_of(vhost), "work") as source:
        assert eventually(source.get, "it is still in the queue")
