"""Looking anew at a few things, with the rest as it was known."""

from __future__ import annotations

import re
from typing import Any

import responses

from tests.topology.builders import MANAGEMENT, a_queue, a_snapshot, an_address
from topology.broker.management.client import Management
from topology.broker.management.refresh import refresh_objects, refresh_route
from topology.definitions import Arguments, Binding, BrokerObject, Definitions, Exchange, Queue
from topology.routing.walk import walk
from topology.snapshot import QueueNumbers, Snapshot

API = f"{MANAGEMENT}/api"


def answers(**paths: Any) -> None:
    """What the API says below the vhost "v"; of anything else that it is not there."""
    responses.get(f"{API}/overview", json={"rabbitmq_version": "4.3.6"})
    responses.get(f"{API}/health/checks/alarms", json={"status": "ok"})
    for path, reported in paths.items():
        responses.get(f"{API}/{path}", json=reported)
    responses.get(re.compile(f"{API}/.*"), status=404, json={"reason": "Not Found"})


def bound(source: str, destination: str, key: str = "", kind: str = "queue") -> dict[str, Any]:
    return {
        "source": source,
        "destination": destination,
        "destination_type": kind,
        "routing_key": key,
        "arguments": {},
    }


def near(known: Snapshot, *objects: BrokerObject) -> Snapshot:
    with Management(an_address("v")) as management:
        return refresh_objects(management, objects, known)


KNOWN = Definitions.of(
    [
        Exchange("in", "fanout"),
        Exchange("old"),
        Exchange("far"),
        a_queue("work", ttl=5),
        a_queue("far"),
        Binding("in", "work", "stale"),
        Binding("far", "work", "gone"),
        Binding("far", "far", "stays"),
    ]
)


@responses.activate
def test_the_things_are_as_they_stand_and_the_rest_as_it_was_known() -> None:
    answers(
        **{
            "queues/v/work": {
                "name": "work",
                "durable": True,
                "type": "quorum",
                "arguments": {"x-queue-type": "quorum"},
                "effective_policy_definition": {"message-ttl": 9},
                "policy": "short",
                "messages": 3,
            },
            "queues/v/work/bindings": [bound("", "work", "work"), bound("in", "work", "k")],
            "exchanges/v/in": {"name": "in", "type": "topic", "durable": True},
            "exchanges/v/in/bindings/source": [bound("in", "work", "k")],
            "exchanges/v/in/bindings/destination": [bound("far", "in", "e", "exchange")],
        }
    )
    known = a_snapshot(
        KNOWN, {"work": QueueNumbers(messages=1), "far": QueueNumbers(messages=2)}, version="4.0.5"
    )
    seen = near(known, Binding("in", "work", "k"), Exchange("old"))
    assert seen.declared == Definitions.of(
        [
            Exchange("in", "topic"),
            Exchange("far"),
            a_queue("work", type="quorum"),
            a_queue("far"),
            Binding("in", "work", "k"),
            Binding("far", "in", "e", destination_is_queue=False),
            Binding("far", "far", "stays"),
        ]
    )
    work = seen.definitions.queue("work")
    assert work is not None
    assert work.message_ttl_ms == 9
    assert (seen.numbers["work"].messages, seen.numbers["far"].messages) == (3, 2)
    assert (seen.policies, seen.version) == ({"work": "short"}, "4.3.6")
    assert seen.taken_at == known.taken_at


@responses.activate
def test_it_costs_the_same_however_much_there_is() -> None:
    answers()
    crowd = Definitions(queues=frozenset(Queue(f"q{n}") for n in range(10_000)))
    seen = near(a_snapshot(crowd), Queue("q1"), Exchange("x"), Binding("", "q1", "q1"))
    assert len(seen.definitions.queues) == 9_999
    asked = [str(call.request.url).removeprefix(f"{API}/") for call in responses.calls]
    assert sorted(asked) == [
        "exchanges/v/x",
        "health/checks/alarms",
        "overview",
        "queues/v/q1",
    ]


def along(known: Definitions, exchange: str) -> Definitions:
    with Management(an_address("v")) as management:
        return refresh_route(management, known, exchange)


WAY = Definitions.of(
    [
        Exchange("in", "fanout"),
        Exchange("next", "fanout"),
        Queue("work"),
        Binding("in", "next", "", destination_is_queue=False),
        Binding("next", "work", ""),
    ]
)


@responses.activate
def test_the_way_of_a_publish_is_looked_at_through_exchanges() -> None:
    fanout = {"type": "fanout", "durable": True}
    answers(
        **{
            "exchanges/v/in": {"name": "in", **fanout},
            "exchanges/v/next": {"name": "next", **fanout},
            "exchanges/v/in/bindings/source": [bound("in", "next", "", "exchange")],
            "exchanges/v/next/bindings/source": [],
        }
    )
    assert walk(WAY, "in", "").is_routed
    assert not walk(along(WAY, "in"), "in", "").is_routed


@responses.activate
def test_a_queue_that_is_new_and_an_alternate_exchange_are_found_on_the_way() -> None:
    other = {"arguments": {"alternate-exchange": "other"}}
    answers(
        **{
            "exchanges/v/in": {"name": "in", "type": "direct", "durable": True, **other},
            "exchanges/v/in/bindings/source": [],
            "exchanges/v/other": {"name": "other", "type": "fanout", "durable": True},
            "exchanges/v/other/bindings/source": [bound("other", "new")],
            "queues/v/new": {"name": "new", "durable": True},
        }
    )
    found = along(WAY, "in")
    assert found.exchange("in") == Exchange(
        "in", arguments=Arguments({"alternate-exchange": "other"})
    )
    assert walk(found, "in", "k").is_routed


@responses.activate
def test_an_exchange_that_is_gone_takes_nothing() -> None:
    answers()
    found = along(WAY, "in")
    assert found.exchange("in") is None
    assert found.leaving("in") == ()
    assert along(WAY, "") == WAY
