"""What the brokers refuse, or lose in silence, and so does the walk."""

from __future__ import annotations

from typing import Any

import pytest

from tests.brokers import Vhost, every_generation
from tests.builders import address_of, eventually
from tests.publishing import publisher
from tests.real_broker.proof.named import (
    AT_LEAST_ONCE,
    version_of,
)
from tests.topology.builders import a_queue
from topology.broker.amqp.consumer import Consumer as StreamReader
from topology.broker.amqp.consumer import getter
from topology.broker.errors import BrokerError, Refused
from topology.broker.management.client import Management
from topology.broker.management.observe import observe
from topology.broker.properties.read import build_properties
from topology.definitions import Binding, Definitions, Exchange, Queue
from topology.message import Publish
from topology.routing.walk import walk

pytestmark = every_generation


@pytest.mark.parametrize("kept", [{"type": "classic"}, {"type": "quorum"}, AT_LEAST_ONCE])
def test_a_stream_takes_dead_letters_before_3_12_only_at_least_once(
    vhost: Vhost, kept: dict[str, Any]
) -> None:
    found = Definitions.of(
        [a_queue("hold", ttl=10, dlx="", key="log", **kept), a_queue("log", type="stream")]
    )
    (outcome,) = walk(found, "", "hold", version=version_of(vhost)).outcomes
    with publisher(address_of(vhost), "test") as channel:
        channel.declare(found)
        # A stream that is not ready yet takes the message minutes later, or never.
        channel.publish(Publish("", "log", body=b"the first"))
        channel.publish(Publish("", "hold"))
    with getter(address_of(vhost), "hold") as source:
        eventually(lambda: source.get() is None, "it has left the queue hold")
    is_delivered = outcome.ending == "delivered"
    with Management(address_of(vhost)) as management:
        # What is lost must not come later; what is handed on is waited for in the stream.
        eventually(
            lambda: is_delivered or management.queue("hold").get("messages") == 0, "it is lost"
        )
    with publisher(address_of(vhost), "test") as channel:
        channel.publish(Publish("", "log", body=b"the last"))
    expected = {b"the first", b"the last"} | ({b""} if is_delivered else set())
    with StreamReader(address_of(vhost), "log", start="first") as stream:
        # At least once: the broker may hand the same message on twice.
        bodies: set[bytes] = set()

        def has_all() -> bool:
            batch = stream.batch(limit=5, limit_bytes=1000, wait=10)
            bodies.update(delivery.message.body for delivery in batch)
            if not bodies >= expected:
                # A hand-over that is not confirmed is tried again after three to six minutes:
                # an equal message need not wait for that one.
                with publisher(address_of(vhost), "test") as channel:
                    channel.publish(Publish("", "hold"))
            return bodies >= expected

        eventually(has_all, "the stream gives all", seconds=240)
    assert bodies == expected


def test_a_topic_key_with_three_hashes_is_refused_from_4_3_on(vhost: Vhost) -> None:
    with Management(address_of(vhost)) as management:
        management.declare_exchange(Exchange("x", "topic"))
        management.declare_queue(Queue("work"))
        leads = Binding("x", "work", "#.a.#.b.#")
        if version_of(vhost) < (4, 3):
            management.bind(leads)
            assert leads in observe(management).definitions.bindings
        else:
            with pytest.raises(BrokerError, match="at most 2"):
                management.bind(leads)


@pytest.mark.parametrize(
    ("objects", "exchange", "properties"),
    [
        ([Exchange("x", internal=True)], "x", {}),
        ([], "", {"expiration": "1.5"}),
        ([], "", {"expiration": "315360000001"}),
        ([], "", {"headers": {"CC": "work"}}),
    ],
)
def test_what_the_broker_refuses_the_walk_refuses(
    vhost: Vhost,
    objects: list[Exchange],
    exchange: str,
    properties: dict[str, Any],
) -> None:
    definitions = Definitions.of([Queue("work"), *objects])
    with publisher(address_of(vhost), "test") as channel:
        channel.declare(definitions)
        with pytest.raises(Refused):
            channel.publish(Publish(exchange, "work", build_properties(**properties)))
    (outcome,) = walk(definitions, exchange, "work", **properties).outcomes
    assert outcome.ending == "dropped"
    assert outcome.why.startswith("RabbitMQ refuses the publish")
