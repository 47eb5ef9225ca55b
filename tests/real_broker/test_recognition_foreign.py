"""Everything that others build, put up through the management API: recognized, read, adopted where
it can be, and the broker is left as it was."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote

import pytest
from django.urls import reverse

from delayboard.demo.node import PrivateNode
from tests.brokers import Vhost, call_api, every_generation
from tests.builders import address_of, eventually, make_broker
from tests.site.page_setup import signed_in, text_of
from topology import snapshots
from topology.broker.management.client import Management
from topology.broker.management.observe import observe
from topology.models import Broker, Role, State, Topology
from topology.operations import adopt
from topology.operations.ownership import Refusal
from topology.provisioning.recognition import Found, recognize

pytestmark = [pytest.mark.django_db(transaction=True), every_generation]

Parts = tuple[list[Any], list[Any], list[Any]]
AT_LEAST_ONCE = {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
LEVELS = 28


def exchange(name: str, kind: str = "direct", **arguments: Any) -> dict[str, Any]:
    return {
        "name": name,
        "type": kind,
        "durable": True,
        "auto_delete": False,
        "internal": False,
        "arguments": arguments,
    }


def queue(name: str, **arguments: Any) -> dict[str, Any]:
    """With arguments without their `x-` and with underscores."""
    stated = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    return {"name": name, "durable": True, "auto_delete": False, "arguments": stated}


def bound(source: str, destination: str, key: str, kind: str = "queue") -> dict[str, Any]:
    return {
        "source": source,
        "destination": destination,
        "destination_type": kind,
        "routing_key": key,
        "arguments": {},
    }


def levels(names: list[str], delivery: str, unit_ms: int, arguments: dict[str, Any]) -> Parts:
    """`names` from level 0 up."""
    exchanges = [exchange(delivery, "topic")]
    queues, bindings = [], []
    for number, name in enumerate(names):
        below = names[number - 1] if number else delivery
        skipped = "*." * (len(names) - 1 - number)
        exchanges.append(exchange(name, "topic"))
        queues.append(queue(name))
        queues[-1]["arguments"] = {
            **arguments,
            "x-message-ttl": unit_ms * 2**number,
            "x-dead-letter-exchange": below,
        }
        bindings.append(bound(name, name, f"{skipped}1.#"))
        bindings.append(bound(name, below, f"{skipped}0.#", "exchange"))
    return exchanges, queues, bindings


def all_levels() -> Iterator[Parts]:
    """NServiceBus before and from 7.0 on, Celery with and without a prefix, and one of nobody's."""
    old = [f"nsb.delay-level-{number:02}" for number in range(LEVELS)]
    yield levels(old, "nsb.delay-delivery", 1000, {"x-queue-mode": "lazy"})
    new = [f"nsb.v2.delay-level-{number:02}" for number in range(LEVELS)]
    quorum = {"x-queue-type": "quorum", **AT_LEAST_ONCE}
    yield levels(new, "nsb.v2.delay-delivery", 1000, quorum)
    for prefix in ("", "team_"):
        names = [f"{prefix}celery_delayed_{number}" for number in range(LEVELS)]
        kind = "classic" if prefix else "quorum"
        stated = {"x-queue-type": kind, "x-overflow": "reject-publish"}
        stated |= AT_LEAST_ONCE if kind == "quorum" else {}
        yield levels(names, f"{prefix}celery_delayed_delivery", 1000, stated)
    words = ["late.one", "late.two", "late.three", "late.four"]
    yield levels(words, "late.out", 500, {"x-queue-type": "classic"})
    yield [], [queue("sales")], [bound("nsb.v2.delay-delivery", "sales", "#.sales")]


PAIRS: Parts = (
    [exchange("orders"), exchange("orders-retry"), exchange("mail.failed", "topic")],
    [
        queue("orders", queue_type="quorum", dead_letter_exchange="orders-retry"),
        queue("orders-retry", dead_letter_exchange="orders"),
        queue(
            "mail",
            queue_type="quorum",
            dead_letter_exchange="mail.failed",
            dead_letter_routing_key="mail.again",
        ),
        queue(
            "mail.waiting",
            message_ttl=30_000,
            dead_letter_exchange="",
            dead_letter_routing_key="mail",
        ),
    ],
    [
        bound("orders", "orders", "new"),
        bound("orders-retry", "orders-retry", "new"),
        bound("mail.failed", "mail.waiting", "#.again"),
    ],
)
LOOPS: Parts = (
    [exchange("in", "fanout"), exchange("out", "fanout")],
    [
        queue("service", dead_letter_exchange="out"),
        queue("service.late", message_ttl=30_000, dead_letter_exchange="in"),
        queue("b_input_q", dead_letter_exchange="b_dead_letter_exchange"),
        queue("b_dead_letter_queue", message_ttl=9000, dead_letter_exchange="b_inner_exch"),
    ],
    [bound("in", "service", ""), bound("out", "service.late", "")],
)


def ladder() -> Parts:
    rungs = [
        queue(
            f"steps-rung-{rung}",
            message_ttl=10_000 * rung,
            dead_letter_exchange="steps",
            dead_letter_routing_key=f"steps.try.{rung}",
        )
        for rung in (1, 2)
    ]
    work = queue("steps", dead_letter_exchange="steps-ladder")
    ways = [bound("steps-ladder", "steps-rung-1", "steps")]
    ways += [bound("steps-ladder", "steps-rung-2", "steps.try.1")]
    ways += [
        bound("steps-ladder", "steps-parking", "steps.try.2"),
        bound("steps", "steps", "steps"),
    ]
    ways += [bound("steps", "steps", f"steps.try.{rung}") for rung in (1, 2)]
    return (
        [exchange("steps"), exchange("steps-ladder")],
        [work, queue("steps-parking"), *rungs],
        ways,
    )


def by_name(name: str, ttl: int, work: str, **arguments: Any) -> dict[str, Any]:
    return queue(
        name, message_ttl=ttl, dead_letter_exchange="", dead_letter_routing_key=work, **arguments
    )


ROOMS: Parts = (
    [exchange("shop", "topic")],
    [
        queue("mails"),
        by_name("mails_dlq_10", 10_000, "mails"),
        by_name("mails_dlq_60", 60_000, "mails", queue_type="quorum"),
        queue("hooks"),
        queue("hooks-busy-wait"),
        by_name("hooks-delay", 60_000, "hooks-busy-wait"),
        queue("calls.waiting"),
        by_name("calls.room", 60_000, "calls.waiting"),
        queue(
            "delay.5000.shop.created",
            message_ttl=5000,
            dead_letter_exchange="shop",
            dead_letter_routing_key="created",
            expires=65_000,
        ),
    ],
    [],
)
QUORUM_RETRY: Parts = (
    [],
    [
        queue(
            "fragile",
            queue_type="quorum",
            delayed_retry_type="failed",
            delayed_retry_min=1000,
            delayed_retry_max=60_000,
            delivery_limit=5,
            dead_letter_exchange="",
            dead_letter_routing_key="fragile-parking",
        ),
        queue("fragile-parking", queue_type="quorum"),
    ],
    [],
)
# What is found besides the levels; True where parameters would make it again.
WANTED = {
    ("retry_pair", "orders"): True,
    ("retry_chain", "mail"): True,
    ("retry_loop", "service"): True,
    ("retry_ladder", "steps"): True,
    ("delay_queues", "mails"): True,
    ("delay_chain", "calls.waiting"): True,
    ("busy_wait", "hooks"): True,
    ("hold_queues", "shop"): True,
    ("delay_levels", "nsb.delay-level"): True,
    ("delay_levels", "nsb.v2.delay-level"): True,
    ("delay_levels", "celery_delayed"): True,
    ("delay_levels", "team_celery_delayed"): True,
    ("delay_chain", "late.one"): True,
    ("delay_chain", "b_inner_exch"): True,
}


def is_newest(node: PrivateNode) -> bool:
    return tuple(map(int, node.version.split(".")[:2])) >= (4, 3)


def put_up(node: PrivateNode, vhost: Vhost, parts: Parts) -> None:
    exchanges, queues, bindings = parts
    body = {"exchanges": exchanges, "queues": queues, "bindings": bindings}
    call_api(node, "POST", f"definitions/{vhost.name}", body)


@pytest.fixture
def broker(broker_node: PrivateNode, vhost: Vhost) -> Broker:
    """A vhost where a policy gives one retry queue its time."""
    for parts in (*all_levels(), PAIRS, LOOPS, ladder(), ROOMS):
        put_up(broker_node, vhost, parts)
    if is_newest(broker_node):
        put_up(broker_node, vhost, QUORUM_RETRY)
    policy = {"pattern": "^orders-retry$", "definition": {"message-ttl": 30_000}}
    call_api(broker_node, "PUT", f"policies/{vhost.name}/times", policy | {"apply-to": "queues"})
    return make_broker(vhost)


@pytest.fixture
def found(vhost: Vhost, broker: Broker) -> dict[tuple[str, str], Found]:
    """As soon as the policy is in force."""
    with Management(address_of(vhost)) as management:

        def look() -> dict[tuple[str, str], Found]:
            seen = recognize(observe(management)).found
            by_name = {(one.use.kind, one.use.name): one for one in seen}
            return by_name if by_name.get(("retry_pair", "orders")) else {}

        return eventually(look, "the policy gives the pair its time")


def defined(node: PrivateNode, vhost: Vhost) -> list[str]:
    exported = call_api(node, "GET", f"definitions/{vhost.name}")
    parts = (part for part in exported.values() if isinstance(part, list))
    return sorted(json.dumps(each, sort_keys=True) for part in parts for each in part)


def test_all_of_it_is_found_by_how_it_is_built(
    broker_node: PrivateNode, found: dict[tuple[str, str], Found]
) -> None:
    newest = {("quorum_retry", "fragile"): True} if is_newest(broker_node) else {}
    reported = {name: one.use.params is not None for name, one in found.items()}
    assert reported == WANTED | newest
    assert found["retry_pair", "orders"].queues[0] == "orders"
    assert found["retry_chain", "mail"].queues == ("mail.waiting",)
    for name in ("nsb.v2.delay-level", "nsb.delay-level", "celery_delayed"):
        assert found["delay_levels", name].use.missing == ()
    assert found["delay_chain", "b_inner_exch"].use.missing


def test_it_is_shown_adopted_where_it_can_be_and_the_broker_is_left_as_it_was(
    broker_node: PrivateNode,
    vhost: Vhost,
    broker: Broker,
    found: dict[tuple[str, str], Found],
) -> None:
    before = defined(broker_node, vhost)
    address = reverse("topology:discovered", args=[broker.slug])
    client = signed_in(Role.ADMIN)
    eventually(lambda: snapshots.fresh(broker).snapshot, "the broker is seen")
    text = text_of(client.get(address))
    adoptable = sum(one.plan is not None for one in found.values())
    assert text.count(">Adopt topology</button>") == adoptable
    for (kind, name), one in found.items():
        shown = text_of(client.get(address, {"kind": kind, "name": name}))
        assert "<svg" in shown
        if one.plan is None:
            assert "Delayboard can show this topology but not adopt it." in shown
            with pytest.raises(Refusal, match="Delayboard cannot adopt"):
                adopt.adopt(None, broker, kind, name)
        else:
            topology, _ = adopt.adopt(None, broker, kind, name)
            assert (topology.state, topology.owned) == (State.APPLIED, [])
    assert Topology.objects.count() == sum(one.plan is not None for one in found.values())
    snapshots.forget(broker.pk)
    eventually(lambda: snapshots.fresh(broker).snapshot, "the broker is seen again")
    assert ">Adopt topology</button>" not in text_of(client.get(address))
    assert defined(broker_node, vhost) == before


def test_an_exchange_of_the_archived_plugin_cannot_be_put_up_without_it(
    broker_node: PrivateNode, vhost: Vhost
) -> None:
    stated = {"type": "x-delayed-message", "arguments": {"x-delayed-type": "direct"}}
    path = f"exchanges/{vhost.name}/{quote('late')}"
    with pytest.raises(HTTPError) as raised:
        call_api(broker_node, "PUT", path, {"durable": True, **stated})
    raised.value.close()
    assert raised.value.code == 400
