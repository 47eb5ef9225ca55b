"""Which queues are proposed, and whether what dies there died as it is told, on real brokers."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import pytest

from delayboard.dead_letters.queues.candidates import Candidate, candidates
from delayboard.demo.node import PrivateNode
from tests.brokers import Vhost, call_api, every_generation
from tests.builders import address_of, eventually
from tests.publishing import publisher
from tests.topology.builders import a_queue
from topology.broker.amqp.consumer import Consumer, getter
from topology.broker.management.client import Management
from topology.broker.management.observe import observe
from topology.deaths import newest_death
from topology.definitions import Binding, BrokerObject, Definitions, Exchange
from topology.message import Publish
from topology.routing.context import failures_until_death

CRASHING = a_queue("crashing", dlx="dlx", key="failed", type="quorum", x_delivery_limit=1)
THINGS: list[BrokerObject] = [
    Exchange("dlx", "topic"),
    Binding("dlx", "dead", "failed.#"),
    Binding("dlx", "policed.dead", "policed"),
    a_queue("dead"),
    a_queue("policed.dead"),
    a_queue("rejecting", dlx="dlx", key="failed.rejecting"),
    a_queue("full", dlx="dlx", key="failed.full", x_max_length=1),
    CRASHING,
    a_queue("hold", ttl=50, dlx="", key="dead"),
    a_queue("delay", ttl=60_000, dlx="", key="rejecting"),
    a_queue("policed"),
]


@pytest.fixture
def management(vhost: Vhost) -> Iterator[Management]:
    with Management(address_of(vhost)) as session:
        session.declare(Definitions.of(THINGS))
        yield session


def reported(management: Management) -> dict[str, Candidate]:
    return {one.queue: one for one in candidates(observe(management), ())}


def proposed(management: Management, queue: str) -> Candidate | None:
    found = reported(management)[queue]
    return found if found.is_likely else None


def reasons_told(one: Candidate) -> set[tuple[str, str]]:
    return {
        (queue, reason) for feed in one.feeds for queue in feed.queues for reason in feed.reasons
    }


def fail(vhost: Vhost, version: tuple[int, ...]) -> None:
    """One death of each kind."""
    with publisher(address_of(vhost), "test") as channel:
        for queue in ("rejecting", "full", "full", "crashing", "hold"):
            channel.publish(Publish("", queue, body=queue.encode()))
    with Consumer(address_of(vhost), "rejecting", prefetch=1) as consumer:
        (got,) = consumer.batch(limit=1, limit_bytes=10_000, wait=60, linger=0)
        consumer.reject(got)
    for _ in range(failures_until_death(CRASHING, "crashes", 0, version) or 0):
        # A consumer that is gone gives back what it had taken.
        with Consumer(address_of(vhost), "crashing", prefetch=1) as consumer:
            assert consumer.batch(limit=1, limit_bytes=10_000, wait=60, linger=0)


def take_deaths(vhost: Vhost, seen: set[tuple[str, str]]) -> None:
    """Add the newest death of each message that is in the queue now."""
    with getter(address_of(vhost), "dead") as taking:
        while (got := taking.get()) is not None:
            death = newest_death(got.message.headers)
            assert death is not None
            seen.add(death)
            taking.ack([got.tag])


@every_generation
def test_what_dies_in_a_proposed_queue_died_as_it_is_told(
    vhost: Vhost, management: Management
) -> None:
    fail(vhost, observe(management).version_tuple)
    seen: set[tuple[str, str]] = set()

    def all_dead() -> bool:
        take_deaths(vhost, seen)
        return len(seen) == 4

    eventually(all_dead, "one message of each kind died")
    assert seen == {
        ("rejecting", "rejected"),
        ("full", "maxlen"),
        ("crashing", "delivery_limit"),
        ("hold", "expired"),
    }
    found = reported(management)
    assert found["dead"].is_likely
    assert seen <= reasons_told(found["dead"])
    likely = {name for name, one in found.items() if one.is_likely}
    assert likely == {"dead"}, "where delays end, and what nobody feeds, is not proposed"


def test_what_a_policy_gives_counts_as_what_was_declared(
    vhost: Vhost, management: Management, broker_node: PrivateNode
) -> None:
    assert not reported(management)["policed.dead"].is_likely
    policy = {
        "pattern": "^policed$",
        "apply-to": "queues",
        "definition": {
            "dead-letter-exchange": "dlx",
            "dead-letter-routing-key": "policed",
            "max-length": 5,
        },
    }
    call_api(broker_node, "PUT", f"policies/{quote(vhost.name, safe='')}/dead", policy)
    found = eventually(lambda: proposed(management, "policed.dead"), "the policy is seen")
    assert reasons_told(found) == {("policed", "rejected"), ("policed", "maxlen")}
    (feed,) = found.feeds
    assert feed.sentence == (
        "From “policed” when consumers reject messages (rejected) or the queue is full (maxlen), "
        "through the exchange “dlx” with routing key “policed”."
    )
