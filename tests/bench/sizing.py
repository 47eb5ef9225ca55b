"""The table of docs/operate.md: what a worker and a site need, idle and under load.

The topologies and brokers of `idle`. The messages go into four of the topologies and leave them
after five seconds, so each is recorded twice. Nobody consumes them, and no page is open.
`SIZING_RATES` (1000,10000) are messages a second, `SIZING_SECONDS` (60) is the time of each rate.
The publisher and RabbitMQ run on the same machine.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from django.conf import settings

from delayboard.models import BackgroundTask
from delayboard.models.background_task import INDEX
from tests.bench.idle import OF, SECONDS, Usage, cpu_of, measure_usage, running
from tests.flood.counting import LineCount
from tests.flood.generator import Flood
from topology.models import Topology

RATES = [int(rate) for rate in os.environ.get("SIZING_RATES", "1000,10000").split(",")]
FLOOD_SECONDS = float(os.environ.get("SIZING_SECONDS", "60"))
DELAY_SECONDS = 5
USED = 4
# Nothing more is recorded when nothing came for so long, which is longer than the delay.
QUIET_SECONDS = 8.0
PATIENCE_SECONDS = 150.0
HEADS = (
    *(
        "load",
        "processors, % of a core",
        "processor seconds per 1,000 messages, until listed",
        "memory, MB",
    ),
    *("recorded after the last message", "listed after", "copies recorded"),
    *("log, bytes a message", "database, bytes a message"),
)


def measure(folder: Path) -> None:
    with running(folder, delay=f"{DELAY_SECONDS}s") as (pids, topologies):
        rows: list[tuple[str, ...]] = [
            (f"idle, {OF}", *cells_of(measure_usage(pids, SECONDS)), *("",) * 5)
        ]
        rows += [under(rate, pids, topologies[:USED]) for rate in RATES]
    cores = os.cpu_count()
    lines = [HEADS, ("---",) * len(HEADS), *rows]
    sys.stdout.write(f"\nSizing, SQLite, a machine with {cores} cores:\n\n")
    sys.stdout.writelines(f"| {' | '.join(line)} |\n" for line in lines)
    sys.stdout.flush()


def cells_of(usage: Usage, per_thousand: str = "") -> tuple[str, str, str]:
    percent, memory = usage.percent, usage.memory_mb
    return (
        f"{sum(percent.values()):.1f} (worker {percent['worker']:.1f}, site {percent['site']:.1f})",
        per_thousand,
        f"{sum(memory.values()):.0f} (worker {memory['worker']:.0f}, site {memory['site']:.0f})",
    )


def under(rate: int, pids: Mapping[str, int], topologies: Sequence[Topology]) -> tuple[str, ...]:
    """A row: usage from the first message until all is recorded and listed."""
    count = LineCount(settings.EVENT_LOG)
    cpu_before = sum(map(cpu_of, pids.values()))
    lines, log_bytes, database_bytes = count.now(), size_of_log(), size_of_database()
    floods = [
        Flood(
            one.broker.address, f"{one.name}-retry", one.name, rate / len(topologies), FLOOD_SECONDS
        )
        for one in topologies
    ]
    for flood in floods:
        flood.start()
    usage = measure_usage(pids, FLOOD_SECONDS)
    for flood in floods:
        flood.join()
        if flood.error:
            raise flood.error
    ended = time.monotonic()
    recorded, listed = await_end(count, ended)
    sent = sum(flood.sent for flood in floods)
    copies = count.now() - lines
    spent = sum(map(cpu_of, pids.values())) - cpu_before
    return (
        f"{rate:,} messages a second, sent {sent / FLOOD_SECONDS:,.0f}",
        *cells_of(usage, f"{1000 * spent / sent:.2f}"),
        f"{recorded} (they leave after {DELAY_SECONDS} s)",
        listed,
        f"{copies:,} of {2 * sent:,}",
        f"{(size_of_log() - log_bytes) / sent:,.0f}",
        f"{(size_of_database() - database_bytes) / sent:,.0f}",
    )


def await_end(count: LineCount, ended: float) -> tuple[str, str]:
    """Seconds until the last copy was recorded, and until all was in the list."""
    lines, grown = count.now(), time.monotonic()
    listed = 0.0
    while time.monotonic() - ended < PATIENCE_SECONDS:
        time.sleep(0.25)
        now = time.monotonic()
        if (found := count.now()) != lines:
            lines, grown, listed = found, now, 0.0
        elif is_listed():
            listed = listed or now
            if now - grown > QUIET_SECONDS:
                return f"{grown - ended:.1f} s", f"{listed - ended:.1f} s"
        else:
            listed = 0.0
    late = f"more than {PATIENCE_SECONDS:.0f} s"
    return (late if time.monotonic() - grown < QUIET_SECONDS else f"{grown - ended:.1f} s"), late


def is_listed() -> bool:
    """Whether the list of waiting messages has all lines, as its task said last."""
    task = BackgroundTask.objects.get(key=INDEX)
    return bool(task.details.get("behind_bytes") == 0)


def size_of_log() -> int:
    return sum(path.stat().st_size for path in settings.EVENT_LOG.rglob("*.jsonl"))


def size_of_database() -> int:
    name = Path(settings.DATABASES["default"]["NAME"])
    return sum(path.stat().st_size for path in name.parent.glob(f"{name.name}*"))
