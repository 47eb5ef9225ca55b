"""Figures, as ratios within one run: `make bench`. Nothing here passes or fails."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from delayboard.demo.node import PrivateNode
from topology.broker.address import parse_address
from topology.broker.consumer import getter
from topology.broker.management import Management
from topology.broker.properties import build_properties
from topology.broker.publisher import publisher
from topology.definitions import Arguments, Binding, Definitions, Exchange, Queue
from topology.message import Message, Publish
from topology.patterns import retry_pair
from topology.routing.index import Index
from topology.routing.walk import walk

MESSAGES = 500


def seconds(act: Callable[[], object], times: int = 1) -> float:
    """Of one call, the fastest of `times`."""
    best = float("inf")
    for _ in range(times):
        began = time.perf_counter()
        act()
        best = min(best, time.perf_counter() - began)
    return best


def repeat(act: Callable[[], object]) -> None:
    for _ in range(MESSAGES):
        act()


def pairs(number: int) -> Definitions:
    made = Definitions()
    for place in range(number):
        made |= retry_pair.definitions(retry_pair.Params(f"work-{place}"))
    return made


def large_vhost() -> Definitions:
    """10,000 exchanges, 10,000 queues and 30,000 bindings; 10,000 of them leave one topic exchange
    and 10,000 one direct exchange. Half of the queues are delays that end in the other half."""
    things: list[Exchange | Queue | Binding] = [Exchange("events", "topic"), Exchange("delivery")]
    things += [Exchange(f"x{n}", "fanout") for n in range(9_998)]
    for place in range(5_000):
        things.append(Queue(f"work{place}"))
        ends = {"x-dead-letter-exchange": "delivery", "x-dead-letter-routing-key": f"work{place}"}
        things.append(Queue(f"hold{place}", arguments=Arguments({"x-message-ttl": 60_000, **ends})))
        keys = (f"eu.{place}.#", f"*.{place}.*.done")
        things += [Binding("events", f"hold{place}", key) for key in keys]
        keys = (f"work{place}", f"again{place}")
        things += [Binding("delivery", f"work{place}", key) for key in keys]
    things += [Binding(f"x{n}", f"x{n + 1}", "", False) for n in range(9_997)]
    things += [Binding("x9997", f"work{n}", "") for n in range(3)]
    return Definitions.of(things)


def walking() -> None:
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


def moving(folder: Path) -> None:
    node = PrivateNode(folder, "bench")
    node.start()
    try:
        address = parse_address(node.amqp_url, node.management_url)
        with Management(address) as management:
            management.declare_queue(Queue("bench"))
        publish = Publish("", "bench", build_properties(delivery_mode=2), b"x" * 512)
        with publisher(address, "bench") as channel:
            sending = seconds(lambda: repeat(lambda: channel.publish(publish)))
        with getter(address, "bench") as source:
            getting = seconds(lambda: repeat(source.get))
    finally:
        node.stop()
    say("one confirmed publish against one get", sending / getting, f"{MESSAGES / sending:.0f}/s")


def identifying() -> None:
    deaths = [{"queue": f"q{n}", "reason": "rejected", "count": 1} for n in range(28)]
    plain = build_properties({"tenant": 1})
    full = build_properties({"tenant": 1, "x-death": deaths})
    one = seconds(lambda: Message("", "", plain, b"x" * 512).content_id, 200)
    other = seconds(lambda: Message("", "", full, b"x" * 512).content_id, 200)
    say("content id with 28 deaths against none", other / one, "deaths are left out: about 1")


def say(what: str, ratio: float, note: str) -> None:
    sys.stdout.write(f"{what:<52} {ratio:8.2f}   ({note})\n")


if __name__ == "__main__":
    identifying()
    walking()
    with tempfile.TemporaryDirectory() as scratch:
        moving(Path(scratch))
