"""The version of a page: whichever process of the site works it out, it is the same text."""

from __future__ import annotations

import os
import subprocess
import sys

SCRIPT = """
from topology.definitions import Arguments, Definitions, Queue
from topology.graph.live_values import make_version
queues = [Queue(f"q{n}", arguments=Arguments({"x-message-ttl": n, "a": "b"})) for n in range(9)]
print(make_version(*Definitions.of(queues), ("q1", None), True))
"""


def test_a_version_is_the_same_in_every_process() -> None:
    versions = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert len(versions[0].strip()) == 16
    assert versions[0] == versions[1]
