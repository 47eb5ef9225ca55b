"""What nacks of real brokers say: of one full queue, of one beside others, of an unclear route."""

from __future__ import annotations

import pytest

from tests.brokers import Vhost, every_generation
from tests.builders import address_of, make_broker
from tests.real_broker.refusing import FULL, SAID, refuse_beside
from topology.broker.amqp.depths import live_depths
from topology.broker.amqp.pipeline import CONFIRMED, Publisher, publisher
from topology.broker.errors import NACKED
from topology.broker.management.client import Management
from topology.definitions import Arguments, Binding, Exchange, Queue
from topology.message import Publish
from topology.operations.answers import NackCheck

pytestmark = pytest.mark.django_db


def nack(channel: Publisher, publish: Publish) -> None:
    assert channel.publish(publish).kind == "nacked"


@every_generation
@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_full_queue_alone_refuses_and_beside_another_the_message_may_have_arrived(
    vhost: Vhost, kind: str
) -> None:
    limit = Arguments({"x-queue-type": kind, "x-max-length": 1, "x-overflow": "reject-publish"})
    with Management(address_of(vhost)) as management, publisher(address_of(vhost), "t") as channel:
        management.declare_exchange(Exchange("fan", "fanout"))
        management.declare_queue(Queue("full", arguments=limit))
        management.declare_queue(Queue("work"))
        management.bind(Binding("fan", "full", ""))
        alone, both = Publish("", "full"), Publish("fan", "")
        # A quorum queue takes more than its length, until the channel knows that it is full.
        while channel.publish(alone) == CONFIRMED:
            pass
        taken = live_depths(address_of(vhost), ["full"])
        check = NackCheck(make_broker(vhost))
        assert check.explain(alone).is_refused
        assert check.explain(both).is_refused
        nack(channel, both)
        assert live_depths(address_of(vhost), ["full"]) == taken
        management.bind(Binding("fan", "work", ""))
        nack(channel, both)
        found = NackCheck(make_broker(vhost, name="again")).explain(both)
    assert not found.is_refused
    assert "“full” is full and rejects messages. It may have arrived in “work”" in found.sentence
    assert live_depths(address_of(vhost), ["work"]) == {"work": 1}


@every_generation
def test_what_a_full_queue_dead_letters_has_arrived_somewhere(vhost: Vhost) -> None:
    stated = {
        **FULL,
        "x-overflow": "reject-publish-dlx",
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "dead",
    }
    with Management(address_of(vhost)) as management, publisher(address_of(vhost), "t") as channel:
        management.declare_queue(Queue("dead"))
        management.declare_queue(Queue("work", arguments=Arguments(stated)))
        nack(channel, Publish("", "work"))
    found = NackCheck(make_broker(vhost)).explain(Publish("", "work"))
    assert not found.is_refused
    assert live_depths(address_of(vhost), ["dead"]) == {"dead": 1}


def test_a_broker_that_does_not_answer_leaves_it_unknown(vhost: Vhost) -> None:
    broker = make_broker(vhost)
    broker.management_urls = "http://127.0.0.1:1"
    assert NackCheck(broker).explain(Publish("x", "k")) == (False, NACKED)


def test_a_message_of_a_route_by_headers_is_explained_by_its_own(vhost: Vhost) -> None:
    with Management(address_of(vhost)) as management:
        management.declare_exchange(Exchange("work", "fanout"))
        management.declare_queue(Queue("work"))
        management.bind(Binding("work", "work", ""))
        refuse_beside(management, "work", "")
    found = NackCheck(make_broker(vhost)).explain(Publish("work", ""))
    assert f"{SAID}“work”." in found.sentence
