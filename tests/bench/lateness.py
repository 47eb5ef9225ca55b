"""How late messages leave each pattern and so many hops, beside a bare program of pika.

A table of Markdown for each broker: half and 99 of 100 messages, in milliseconds, as the bare
program sees them and as Delayboard records them; idle, and while LOAD messages a second pass a
retry pair that is recorded too. `error` is how early one in a hundred seems to Delayboard.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from statistics import median, quantiles

import orjson
from django.conf import settings
from django.core.management import call_command

from delayboard.demo.node import PrivateNode
from tests.brokers import SUITES, Vhost, call_api, root_of
from tests.builders import address_of, applied_topology, eventually, make_broker, make_pair
from tests.faults.processes import environment, started
from tests.flood.generator import Flood
from tests.rooted import make_node
from topology.broker.management.client import Management
from topology.definitions import Binding, Exchange, Queue
from topology.message import Route
from topology.operations.topology_rows import create_topology
from topology.patterns.table import PATTERNS

LOAD = int(os.environ.get("BENCH_LOAD", "2000"))
SECONDS, EVERY_SECONDS = 40.0, 0.4
# At-least-once levels have no exit tap.
LEVELS = {"preset": "own", "prefix": "shop", "levels": "8", "unit": "50ms", "queue_type": "classic"}


@dataclass(frozen=True)
class Case:
    label: str
    kind: str
    fields: Mapping[str, str]
    delay_ms: int
    hops: int = 1


# Retries of a quorum queue have no message that enters its delay.
CASES = (
    Case("retry pair", "retry_pair", {"name": "pair", "delay": "500ms"}, 500),
    Case("retry ladder", "retry_ladder", {"name": "ladder", "delays": "500ms, 1s"}, 500),
    Case("retry loop", "retry_loop", {"name": "loop", "delay": "500ms"}, 500),
    Case("hold queues", "hold_queues", {"exchange": "hold", "prefix": "hold"}, 500),
    Case("delay queues", "delay_queues", {"queue": "dq", "delays": "1s"}, 1000),
    Case("busy wait", "busy_wait", {"queue": "busy", "delays": "500ms"}, 500),
    *(Case("delay levels", "delay_levels", LEVELS, 50 * (2**n - 1), n) for n in (1, 2, 4, 8)),
)


def measure(folder: Path) -> None:
    call_command("migrate", verbosity=0)
    for generation in SUITES:
        with make_node(folder / generation, "bench", 1000, root_of(generation)) as node:
            both = [_measure(node, folder / f"{generation}-{load}", load) for load in (0, LOAD)]
            _print_table(node.version, both)


@dataclass(frozen=True)
class Lateness:
    """By message id, in milliseconds."""

    bare: Mapping[str, float]
    recorded: Mapping[str, float]


def _measure(node: PrivateNode, log: Path, load: int) -> Lateness:
    name = f"load-{load}"
    call_api(node, "PUT", f"vhosts/{name}", {})
    url = f"{node.amqp_url.rpartition('/')[0]}/{name}"
    vhost = Vhost(url, node.management_url, name, node.username, node.password)
    settings.EVENT_LOG = log
    broker = make_broker(vhost, name=f"{node.version} {name}")
    routes, queues = [], []
    with Management(address_of(vhost)) as management:
        for number, case in enumerate(CASES):
            pattern = PATTERNS[case.kind]
            params = pattern.parse(case.fields)
            target = next(iter(pattern.targets(params)), f"arrivals-{number}")
            queues.append(target)
            if case.kind == "hold_queues":
                management.declare_exchange(Exchange(params.exchange))
            if case.hops == 1:
                topology = create_topology(None, broker, case.kind, params)
                if not topology.definitions.queue(target):
                    management.declare_queue(Queue(target))
                applied_topology(topology)
            elif target not in queues[:-1]:
                management.declare_queue(Queue(target))
            if case.kind == "hold_queues":
                management.bind(Binding(params.exchange, target, target))
            route = pattern.route(params, timedelta(milliseconds=case.delay_ms), target)
            management.declare(route.declares)
            routes.append(route)
        applied_topology(make_pair(broker, name="load", delay="500ms"))
        with started("worker", variables=environment()):
            eventually(lambda: _is_recorded(management), "all taps are read", seconds=600)
            flood = Flood(address_of(vhost), "load-retry", "load", max(load, 1), SECONDS + 5)
            if load:
                flood.start()
                time.sleep(5)
            bare = _run_bare(url, queues, routes)
            if load:
                flood.join()
                if flood.error:
                    raise flood.error
            eventually(lambda: _is_empty(management), "all copies are recorded", seconds=600)
    call_api(node, "DELETE", f"vhosts/{name}")
    return Lateness(bare, read_recorded(log))


def _is_recorded(management: Management) -> bool:
    taps = [one for one in management.queues() if one["name"].startswith("delayboard.tap")]
    return bool(taps) and all(one.get("consumers") for one in taps)


def _is_empty(management: Management) -> bool:
    taps = [one for one in management.queues() if one["name"].startswith("delayboard.tap")]
    return all(one.get("messages") == 0 for one in taps)


def _run_bare(url: str, queues: Sequence[str], routes: Sequence[Route]) -> dict[str, float]:
    cases = [
        {
            "name": str(number),
            "exchange": route.exchange,
            "key": route.routing_key,
            "headers": dict(route.headers),
            "due_header": route.due_header,
            "delay_ms": case.delay_ms,
        }
        for number, (case, route) in enumerate(zip(CASES, routes, strict=True))
    ]
    return run_bare(url, sorted(set(queues)), cases, SECONDS, EVERY_SECONDS)


def run_bare(
    url: str,
    queues: Sequence[str],
    cases: Sequence[Mapping[str, object]],
    seconds: float,
    every: float,
) -> dict[str, float]:
    """How late messages arrive at the bare program, by message id, in milliseconds."""
    given = {"url": url, "queues": queues, "cases": cases, "seconds": seconds, "every": every}
    command = [sys.executable, "-m", "tests.bench.bare_lateness"]
    done = subprocess.run(
        command, input=json.dumps(given), stdout=subprocess.PIPE, text=True, check=True
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def read_recorded(log: Path) -> dict[str, float]:
    """The same as Delayboard recorded it, of entries and exits that were both read as they came."""
    sides: dict[str, dict[str, float]] = {}
    for path in log.glob("date=*/hour=*/*.jsonl"):
        with path.open("rb") as lines:
            for line in lines:
                if b'"message_id":"flood-' in line:
                    continue
                event = orjson.loads(line)
                if event["caught_up"] and "#" in event["message_id"]:
                    at = _milliseconds(event["recorded_at"])
                    if event["kind"] == "delivered":
                        at -= event["requested_delay_ms"]
                    sides.setdefault(event["message_id"], {})[event["kind"]] = at
    return {
        name: one["delivered"] - one["scheduled"]
        for name, one in sides.items()
        if {"scheduled", "delivered"} <= one.keys()
    }


def _milliseconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp() * 1000


def _print_table(version: str, both: Sequence[Lateness]) -> None:
    sides = ("pika", "Delayboard", "error")
    heads = [f"{side}, {load}" for load in ("idle", f"{LOAD:,}/s") for side in sides]
    lines = [f"RabbitMQ {version}", "", " | ".join(["| topology", "hops", "delay, ms", *heads, ""])]
    lines.append("|---" * (3 + len(heads)) + "|")
    for number, case in enumerate(CASES):
        cells = [case.label, str(case.hops), str(case.delay_ms)]
        for one in both:
            bare, recorded = (_of_case(number, found) for found in (one.bare, one.recorded))
            early = -recorded[len(recorded) // 100] if recorded else None
            cells += [_halves(bare), _halves(recorded)]
            cells.append("–" if early is None else f"{max(early, 0):.1f}")
        lines.append("| " + " | ".join(cells) + " |")
    sys.stdout.write("\n".join([*lines, "", ""]))
    sys.stdout.flush()


def _of_case(number: int, found: Mapping[str, float]) -> list[float]:
    return sorted(ms for name, ms in found.items() if name.startswith(f"{number}#"))


def _halves(late: Sequence[float]) -> str:
    """p50 and p99, of fewer than a hundred the latest one."""
    if len(late) < 2:
        return "–"
    last = quantiles(late, n=100)[98] if len(late) >= 100 else max(late)
    return f"{median(late):.1f} / {last:.1f}"
