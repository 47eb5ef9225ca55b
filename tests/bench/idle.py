"""What a site and a worker cost while nothing happens: 200 topologies on 50 brokers, of which ten
do not answer. `IDLE_TOPOLOGIES` and `IDLE_BROKERS` change it, `IDLE_SECONDS` the time (60).
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from django.conf import settings
from django.core.management import call_command
from django.utils import timezone

from delayboard.models import BackgroundTask
from tests.bench.figures import say
from tests.brokers import NEWEST, Vhost, root_of, vhost_on
from tests.builders import applied_topology, eventually, make_broker, make_pair
from tests.rooted import make_node
from topology.models import Topology

TOPOLOGIES = int(os.environ.get("IDLE_TOPOLOGIES", "200"))
BROKERS = int(os.environ.get("IDLE_BROKERS", "50"))
SILENT = BROKERS // 5
SECONDS = float(os.environ.get("IDLE_SECONDS", "60"))
# Until all recorders are connected and the first rounds of all checks are over.
SETTLED_SECONDS = 45.0
MOST_CORE, MOST_MB = 5.0, 400.0
OF = f"{TOPOLOGIES} topologies on {BROKERS} brokers, {SILENT} of them silent"
ROOT = Path(__file__).resolve().parents[2]


def measure(folder: Path) -> None:
    with running(folder) as (pids, _):
        usage = measure_usage(pids, SECONDS)
    percent, memory = usage.percent, usage.memory_mb
    note = f"worker {percent['worker']:.1f}, site {percent['site']:.1f}; {OF}; at most {MOST_CORE}"
    say("idle, percent of a core", sum(percent.values()), note)
    note = f"worker {memory['worker']:.0f}, site {memory['site']:.0f}; at most {MOST_MB:.0f}"
    say("idle, MB of memory", sum(memory.values()), note)


@dataclass(frozen=True)
class Usage:
    """Of the worker and the site, by their names: percent of a core, and memory at the end."""

    percent: Mapping[str, float]
    memory_mb: Mapping[str, float]


@contextmanager
def running(
    folder: Path, *, delay: str = "1h"
) -> Iterator[tuple[Mapping[str, int], Sequence[Topology]]]:
    """A worker and a site that have come to rest: their process ids, and the topologies."""
    call_command("migrate", verbosity=0)
    with ExitStack() as stack:
        node = stack.enter_context(make_node(folder / "node", "bench", 5000, root_of(NEWEST)))
        port = stack.enter_context(deaf())
        vhosts = [stack.enter_context(vhost_on(node)) for _ in range(BROKERS - SILENT)]
        answering = [make_broker(vhost, name=vhost.name) for vhost in vhosts]
        topologies = [
            applied_topology(
                make_pair(answering[number % len(answering)], name=f"flow{number}", delay=delay)
            )
            for number in range(TOPOLOGIES)
        ]
        for number in range(SILENT):
            address = f"guest:guest@127.0.0.1:{port}"
            urls = (f"amqp://{address}/v", f"http://127.0.0.1:{port}")
            make_broker(Vhost(*urls, "v", "guest", "guest"), name=f"silent{number}")
        with process("worker") as worker, process("serve") as site:
            eventually(are_recording, "all taps are recorded", seconds=300)
            time.sleep(SETTLED_SECONDS)
            yield {"worker": worker, "site": site}, topologies


def measure_usage(pids: Mapping[str, int], seconds: float) -> Usage:
    """Of the next seconds."""
    before, began = {name: cpu_of(pid) for name, pid in pids.items()}, time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - began
    return Usage(
        {name: 100 * (cpu_of(pid) - before[name]) / took for name, pid in pids.items()},
        {name: memory_of(pid) for name, pid in pids.items()},
    )


def are_recording() -> bool:
    fresh = timezone.now() - timedelta(seconds=10)
    rows = BackgroundTask.objects.filter(key__startswith="record:", beat_at__gt=fresh)
    return rows.count() == TOPOLOGIES


@contextmanager
def deaf() -> Iterator[int]:
    """A port that takes connections and never answers."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(1000)
        yield server.getsockname()[1]


@contextmanager
def process(name: str) -> Iterator[int]:
    variables = {**os.environ, "DELAYBOARD_VAR": str(settings.VAR)}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        variables["PORT"] = str(probe.getsockname()[1])
    with (settings.VAR / f"{name}.output").open("wb") as output:
        started = subprocess.Popen(
            [sys.executable, str(ROOT / "manage.py"), name],
            env=variables,
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield started.pid
    finally:
        os.killpg(started.pid, signal.SIGKILL)
        started.wait()


def cpu_of(pid: int) -> float:
    """Seconds of a processor that the process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_of(pid: int) -> float:
    """MB that it has of its own, and its share of what others use too."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("Pss:")]
    return int(line.split()[1]) / 1024
