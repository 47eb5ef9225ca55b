"""Walks and the index in a large vhost."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from tests.bench.figures import say, seconds
from topology.definitions import Arguments, Binding, Definitions, Exchange, Queue
from topology.patterns.retry_pair import params as retry_pair_params
from topology.patterns.retry_pair.pattern import retry_pair
from topology.routing.matching.index import Index
from topology.routing.walk import walk


def measure(folder: Path) -> None:
    large = large_vhost()
    building = seconds(lambda: Index(large), 3)
    say("index of 10,000 queues and 30,000 bindings", building, "seconds; under 1 is wanted")
    index = Index(large)
    for what, exchange, key in (
        ("topic, delay, direct", "events", "eu.4999.order.done"),
        ("default exchange, delay, direct", "", "hold77"),
        ("nothing takes it", "events", "us.7.order"),
    ):
        one = seconds(partial(walk, index, exchange, key), 200)
        say(f"walk in it: {what}", one * 1000, "milliseconds; under 1 is wanted")
    small = seconds(partial(walk, Index(pairs(10)), "work-0-retry", "work-0"), 200)
    other = seconds(partial(walk, Index(pairs(500)), "work-0-retry", "work-0"), 200)
    say("walk with an index, 500 retry pairs against 10", other / small, "about 1")


def pairs(number: int) -> Definitions:
    made = Definitions()
    for place in range(number):
        made |= retry_pair.definitions(retry_pair_params.Params(f"work-{place}"))
    return made


def large_vhost() -> Definitions:
    """10,000 exchanges, 10,000 queues and 30,000 bindings; 10,000 of them leave one topic exchange
    and 10,000 one direct exchange. Half of the queues are delays that end in the other half."""
    objects: list[Exchange | Queue | Binding] = [Exchange("events", "topic"), Exchange("delivery")]
    objects += [Exchange(f"x{n}", "fanout") for n in range(9_998)]
    for place in range(5_000):
        objects.append(Queue(f"work{place}"))
        ends = {"x-dead-letter-exchange": "delivery", "x-dead-letter-routing-key": f"work{place}"}
        objects.append(
            Queue(f"hold{place}", arguments=Arguments({"x-message-ttl": 60_000, **ends}))
        )
        keys = (f"eu.{place}.#", f"*.{place}.*.done")
        objects += [Binding("events", f"hold{place}", key) for key in keys]
        keys = (f"work{place}", f"again{place}")
        objects += [Binding("delivery", f"work{place}", key) for key in keys]
    objects += [Binding(f"x{n}", f"x{n + 1}", "", False) for n in range(9_997)]
    objects += [Binding("x9997", f"work{n}", "") for n in range(3)]
    return Definitions.of(objects)
