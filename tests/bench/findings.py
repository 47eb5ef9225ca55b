"""All rules on a large vhost."""

from __future__ import annotations

import time
from pathlib import Path

from tests.bench.figures import say
from tests.bench.multitude import multitude
from tests.bench.walking import large_vhost
from tests.topology.builders import a_snapshot
from topology.findings.find import find


def measure(folder: Path) -> None:
    for what, definitions in (("topologies", multitude()), ("delays in chains", large_vhost())):
        snapshot = a_snapshot(definitions)
        began = time.thread_time()
        find(snapshot)
        spent = time.thread_time() - began
        say(
            f"findings of 10,000 queues: {what}", spent, "seconds of a processor; under 5 is wanted"
        )
