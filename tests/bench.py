"""Figures, as ratios within one run: `make bench`. Nothing here passes or fails."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from delayboard.demo.node import PrivateNode
from topology.broker.address import parse_address
from topology.broker.consumer import getter
from topology.broker.management import Management
from topology.broker.properties import build_properties
from topology.broker.publisher import publisher
from topology.definitions import Definitions, Queue
from topology.message import Message, Publish
from topology.patterns import retry_pair
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


def walking() -> None:
    small, large = pairs(10), pairs(500)
    one = seconds(lambda: walk(small, "work-0-retry", "work-0"), 20)
    other = seconds(lambda: walk(large, "work-0-retry", "work-0"), 5)
    say("walk, index built each time, 500 pairs against 10", other / one, "50 would be linear")


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
