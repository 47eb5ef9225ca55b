"""Where a probe goes, for every pattern: into the probe queue and nowhere else, or not at all."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.topology.builders import a_queue, a_snapshot
from topology.definitions import (
    PREDECLARED,
    Arguments,
    Binding,
    BrokerObject,
    Definitions,
    Exchange,
)
from topology.message import PROBE_HEADER
from topology.patterns.chain.params import claim
from topology.patterns.chain.pattern import delay_chain
from topology.patterns.delay_levels.params import Params as Levels
from topology.patterns.delay_levels.pattern import delay_levels
from topology.patterns.hold_queues.params import Params as Hold
from topology.patterns.hold_queues.pattern import hold_queues
from topology.patterns.pattern import Pattern
from topology.patterns.retry_pair.params import Params as Pair
from topology.patterns.retry_pair.pattern import retry_pair
from topology.patterns.table import PATTERNS
from topology.provisioning.probes import probe_definitions, stray_probe
from topology.routing.walk import walk
from topology.structure.find_chains import find_chains
from topology.structure.taps import tap_definitions

PROBE = "delayboard-probe-shop"
MINUTE = timedelta(minutes=1)
DIRECT, TOPIC, HEADERS, FANOUT = "direct", "topic", "headers", "fanout"
LEVELS = [
    Levels("own", "shop", 8),
    Levels("own", "shop", 8, queue_type="classic"),
    Levels("nsb-v1"),
    Levels("nsb-v2"),
    Levels("celery"),
    Levels("nsb-v2", destinations="exchanges"),
]
HOLD = Hold("orders", ("created",), (MINUTE,))


def orders(type: str, key: str = "created", **arguments: str) -> Definitions:
    """The destination exchange of a hold queue with a real queue."""
    bound = Binding("orders", "work", key, arguments=Arguments(arguments))
    return Definitions.of([Exchange("orders", type), a_queue("work"), bound])


def bound_levels(params: Levels) -> Definitions:
    """The levels with real destinations, one of them named like the end of the topology's slug."""
    routes = [delay_levels.route(params, MINUTE, name) for name in ("shop", "orders")]
    made = delay_levels.definitions(params)
    for route in routes:
        made |= route.declares
    ends = [Exchange(name, FANOUT) for name in ("shop", "orders")]
    behind = [Binding(name, name, "") for name in ("shop", "orders")]
    return made | Definitions.of([*ends, a_queue("shop"), a_queue("orders"), *behind])


def a_chain(*objects: BrokerObject) -> tuple[Any, Definitions]:
    """The parameters of the chain of these objects, and all of them."""
    found = Definitions.of(objects)
    (chain,) = find_chains(found)
    return claim(chain, found), PREDECLARED | found


def kept_key(entry: str, exit: str, key: str = "work", **arguments: str) -> tuple[Any, Definitions]:
    """A minute in `wait`, entered and left by exchanges of these types with the message's key."""
    bound = Arguments(arguments)
    return a_chain(
        Exchange("later", entry),
        Exchange("work", exit),
        a_queue("wait", ttl=60_000, dlx="work"),
        a_queue("work"),
        Binding("later", "wait", key, arguments=bound),
        Binding("work", "work", key, arguments=bound),
    )


LINKED = a_chain(
    Exchange("later"),
    Exchange("soon", TOPIC),
    Exchange("work"),
    a_queue("wait", ttl=50_000, dlx="soon"),
    a_queue("wait-10s", ttl=10_000, dlx="work"),
    a_queue("work"),
    Binding("later", "wait", "work"),
    Binding("soon", "wait-10s", "work"),
    Binding("work", "work", "work"),
)
# Messages enter the first by its name, and leave the second to the queue named as their key.
BY_NAME = a_chain(
    a_queue("work-wait", ttl=60_000, dlx="work"),
    Exchange("work"),
    a_queue("work"),
    Binding("work", "work", "work-wait"),
)
TO_NAME = a_chain(
    Exchange("later"),
    a_queue("work-wait", ttl=60_000, dlx=""),
    a_queue("work"),
    Binding("later", "work-wait", "work"),
)
CHAINS = [
    kept_key(DIRECT, DIRECT),
    kept_key(TOPIC, TOPIC, "work.#"),
    kept_key(FANOUT, TOPIC),
    kept_key(HEADERS, HEADERS, **{"x-match": "all", "kind": "created"}),
    BY_NAME,
    TO_NAME,
    LINKED,
]
ROUTED: list[tuple[str, Pattern, Any, Definitions]] = [
    ("pair", retry_pair, Pair("orders"), retry_pair.definitions(Pair("orders"))),
    *[("levels", delay_levels, params, bound_levels(params)) for params in LEVELS],
    *[("hold", hold_queues, HOLD, orders(kind)) for kind in (DIRECT, TOPIC)],
    (
        "hold",
        hold_queues,
        HOLD,
        orders(HEADERS, **{"x-match": "all", "kind": "created"}),
    ),
    ("hold", hold_queues, replace(HOLD, exchange=""), Definitions()),
    *[("chain", delay_chain, params, found) for params, found in CHAINS],
]


@pytest.mark.parametrize("case", ROUTED, ids=lambda case: f"{case[0]}")
def test_a_probe_arrives_in_its_queue_alone_after_its_delay(
    case: tuple[str, Pattern, Any, Definitions],
) -> None:
    _, pattern, params, found = case
    assert pattern.probe_obstacle(params, found) == ""
    delay = pattern.achievable(params, MINUTE)
    route = pattern.probe_route(params, delay, PROBE)
    assert stray_probe(pattern, params, PROBE, route, a_snapshot(found)) == ""
    taps = tap_definitions("delayboard.tap.shop", pattern.taps(params), "classic")
    whole = found | probe_definitions(pattern, params, PROBE) | route.declares
    headers = {**route.headers, PROBE_HEADER: PROBE}
    walked = walk(whole, route.exchange, route.routing_key, headers=headers)
    assert [(one.ending, one.queue, one.after) for one in walked.outcomes] == [
        ("delivered", PROBE, delay)
    ]
    # A tap that sees it, of what enters, is no real consumer, and its recorder passes it over.
    assert stray_probe(pattern, params, PROBE, route, a_snapshot(whole | taps)) == ""


@pytest.mark.parametrize("case", ROUTED, ids=lambda case: f"{case[0]}")
def test_the_bindings_of_a_probe_take_no_real_message(
    case: tuple[str, Pattern, Any, Definitions],
) -> None:
    name, pattern, params, found = case
    target = {"pair": "orders", "levels": "shop", "hold": "created", "chain": "work"}[name]
    if name == "hold" and not params.exchange:
        found |= Definitions.of([a_queue("created")])
    route = pattern.route(params, pattern.achievable(params, MINUTE), target)
    there = found | route.declares
    with_probes = there | probe_definitions(pattern, params, PROBE)
    headers = {"kind": "created"}
    without, beside = (
        walk(one, route.exchange, route.routing_key, headers=headers)
        for one in (there, with_probes)
    )
    assert without.outcomes == beside.outcomes
    assert without.delivered


@pytest.mark.parametrize("kind", sorted(PATTERNS.keys() - {"retry_pair", "delay_levels"}))
def test_where_a_probe_would_reach_real_consumers_one_sentence_says_so(kind: str) -> None:
    pattern = PATTERNS[kind]
    sentence = pattern.probe_obstacle(pattern.EXAMPLE, orders(FANOUT))
    assert sentence.startswith("Probes are not available, because ")
    assert sentence.endswith(".")
    assert ". " not in sentence


WAIT: dict[str, Any] = {"ttl": 60_000, "dlx": "work"}


@pytest.mark.parametrize(
    ("wait", "exit", "sentence"),
    [
        (
            WAIT | {"key": "work"},
            DIRECT,
            "the queue “wait” sends every message to real queues by its x-dead-letter-routing-key "
            "“work”; without this argument messages keep their own keys.",
        ),
        (
            {"dlx": "work"},
            DIRECT,
            "the queue “wait” has no x-message-ttl and each message states its own delay; a queue "
            "with a TTL for each delay could be probed.",
        ),
        (
            WAIT,
            FANOUT,
            "the exchange “work” behind the queue “wait” routes a probe to real queues too; a "
            "direct or topic exchange would tell them apart.",
        ),
    ],
)
def test_what_keeps_probes_from_a_chain_of_others_is_named(
    wait: dict[str, Any], exit: str, sentence: str
) -> None:
    params, found = a_chain(
        Exchange("later"),
        Exchange("work", exit),
        a_queue("wait", **wait),
        a_queue("work"),
        Binding("later", "wait", "work"),
        Binding("work", "work", "work"),
    )
    problem = delay_chain.probe_obstacle(params, found)
    assert problem == f"Probes are not available, because {sentence}"


def test_a_queue_with_a_delayed_retry_of_others_has_no_probes() -> None:
    params, found = a_chain(a_queue("jobs", type="quorum", x_delayed_retry_type="all"))
    assert delay_chain.probe_obstacle(params, found) == (
        "Probes are not available, because RabbitMQ delays failed messages in “jobs” itself "
        "(x-delayed-retry-type), and only its consumer can fail one."
    )


def test_a_binding_that_takes_everything_is_found_by_the_walk() -> None:
    found = orders(TOPIC, "#")
    route = hold_queues.probe_route(HOLD, MINUTE, PROBE)
    assert stray_probe(hold_queues, HOLD, PROBE, route, a_snapshot(found)) == (
        "Probes are not available, because the queue work would receive them too."
    )


def test_a_topology_that_is_incomplete_has_no_probes() -> None:
    params = Pair("orders")
    found = retry_pair.definitions(params).without([("queue", "orders-retry")])
    route = retry_pair.probe_route(params, MINUTE, PROBE)
    sentence = stray_probe(retry_pair, params, PROBE, route, a_snapshot(found))
    assert sentence.startswith("Probes are not available, because a probe would not arrive: ")


@pytest.mark.parametrize("case", ROUTED, ids=lambda case: f"{case[0]}")
def test_a_probe_queue_is_recognised_as_ours(case: tuple[str, Pattern, Any, Definitions]) -> None:
    _, pattern, params, found = case
    route = pattern.probe_route(params, pattern.achievable(params, MINUTE), PROBE)
    whole = found | probe_definitions(pattern, params, PROBE) | route.declares
    assert list(whole.without_probes()) == list(found)
