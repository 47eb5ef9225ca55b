"""Where a probe goes, for every pattern: into the probe queue and nowhere else, or not at all."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.topology.builders import a_queue, a_snapshot
from topology.definitions import Arguments, Binding, Definitions, Exchange
from topology.message import PROBE_HEADER
from topology.patterns.delay_levels.params import Params as Levels
from topology.patterns.delay_levels.pattern import delay_levels
from topology.patterns.hold_queues.params import Params as Hold
from topology.patterns.hold_queues.pattern import hold_queues
from topology.patterns.pattern import Pattern
from topology.patterns.retry_pair.params import Params as Pair
from topology.patterns.retry_pair.pattern import retry_pair
from topology.patterns.table import PATTERNS
from topology.provisioning.probes import probe_definitions, stray_probe
from topology.provisioning.taps import tap_definitions
from topology.routing.walk import walk

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
    walked = walk(whole, route.exchange, route.routing_key, headers={PROBE_HEADER: PROBE})
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
    target = {"pair": "orders", "levels": "shop", "hold": "created"}[name]
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
