"""What the deaths of a message cost its content id."""

from __future__ import annotations

from pathlib import Path

from tests.bench.figures import say, seconds
from topology.broker.properties.read import build_properties
from topology.message import Message


def measure(folder: Path) -> None:
    deaths = [{"queue": f"q{n}", "reason": "rejected", "count": 1} for n in range(28)]
    plain = build_properties({"tenant": 1})
    full = build_properties({"tenant": 1, "x-death": deaths})
    one = seconds(lambda: Message("", "", plain, b"x" * 512).content_id, 200)
    other = seconds(lambda: Message("", "", full, b"x" * 512).content_id, 200)
    say("content id with 28 deaths against none", other / one, "deaths are left out: about 1")
