"""From the tap to a synced line, beside a bare pika consumer on the same messages."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import TypeAlias

from django.conf import settings
from django.core.management import call_command
from django.db import connection

from analytics.recorder.record import record
from delayboard.demo.node import PrivateNode
from tests.bench.figures import say
from tests.brokers import Vhost, call_api, root_of
from tests.builders import address_of, applied_pair, declare_in, make_broker
from tests.flood.counting import LineCount
from tests.flood.generator import Flood
from tests.rooted import make_node
from tests.topology.builders import a_queue
from topology.broker.management.client import Management
from topology.definitions import Binding, Exchange, Queue
from topology.models import Topology
from topology.operations import adopt, provision

MESSAGES = 40_000
FILL_RATE = 20_000
ROUNDS = 2
# How many messages one ack of the bare consumer speaks for -> its queue beside a classic tap.
BARE = {100: "bare-100", 1: "bare-1"}
PATIENCE_SECONDS = 120.0
Make: TypeAlias = Callable[[Vhost, str], Topology]


@dataclass(frozen=True)
class Rates:
    """Messages a second."""

    recorder: float
    bare: dict[int, float]


def measure(folder: Path) -> None:
    call_command("migrate", verbosity=0)
    cases: list[tuple[str, Make]] = [
        ("3.10", make_pair),
        ("4.3", make_pair),
        ("4.3", adopt_chain),
    ]
    for generation, make in cases:
        root = root_of(generation)
        of = " of an adopted chain" if make is adopt_chain else ""
        place = folder / f"{generation}-classic{of.replace(' ', '-')}"
        with make_node(place, "bench", 1000, root) as node:
            rounds = [one_round(node, f"classic-{number}", make) for number in range(ROUNDS)]
        ours = max(rates.recorder for rates in rounds)
        for every in BARE:
            bare = max(rates.bare[every] for rates in rounds)
            acks = f"acks every {every}" if every > 1 else "acks each one"
            wanted = "; at least 0.5 is wanted" if every > 1 else ""
            note = f"{ours:.0f}/s against {bare:.0f}/s{wanted}"
            say(f"recorder, classic tap{of}, to a consumer that {acks}", ours / bare, note)


def make_pair(vhost: Vhost, name: str) -> Topology:
    return applied_pair(vhost, name=name, delay="1h")


def adopt_chain(vhost: Vhost, name: str) -> Topology:
    """The chain of somebody else who publishes into it by an exchange, as golevelup does."""
    declare_in(
        vhost,
        Exchange(f"{name}-retry"),
        Exchange(name),
        a_queue(f"{name}.wait", ttl=3_600_000, dlx=name, key=name),
        Queue(name),
        Binding(f"{name}-retry", f"{name}.wait", name),
        Binding(name, name, name),
    )
    topology, _ = adopt.adopt(None, make_broker(vhost), "retry_chain", name)
    provision.start_recording(None, topology)
    return topology


def one_round(node: PrivateNode, name: str, make: Make) -> Rates:
    """In a vhost of its own: fill the tap, read it bare, record it."""
    call_api(node, "PUT", f"vhosts/{name}", {})
    urls = (f"{node.amqp_url.rpartition('/')[0]}/{name}", node.management_url)
    vhost = Vhost(*urls, name, node.username, node.password)
    topology = make(vhost, name)
    with Management(address_of(vhost)) as management:
        for queue in BARE.values():
            management.declare_queue(Queue(queue))
            management.bind(Binding(f"{name}-retry", queue, name))
    flood = Flood(address_of(vhost), f"{name}-retry", name, FILL_RATE, MESSAGES / FILL_RATE)
    flood.run()
    if flood.error:
        raise flood.error
    bare = {every: read_bare(vhost, queue, every) for every, queue in BARE.items()}
    rate = recording_rate(topology)
    call_api(node, "DELETE", f"vhosts/{name}")
    return Rates(rate, bare)


def read_bare(vhost: Vhost, queue: str, ack_every: int) -> float:
    command = [sys.executable, "-m", "tests.bench.bare", queue, str(MESSAGES), str(ack_every)]
    variables = {**os.environ, "BARE_URL": vhost.amqp_url}
    return float(subprocess.check_output(command, env=variables))


def recording_rate(topology: Topology) -> float:
    """From the first synced lines on: connecting is no part of it."""
    stop = Event()
    thread = Thread(target=_record, args=(topology.pk, stop), daemon=True)
    count = LineCount(settings.EVENT_LOG)
    before = count.now()
    thread.start()
    first = await_lines(count, before + 1)
    began, already = time.monotonic(), first - before
    await_lines(count, before + MESSAGES)
    rate = (MESSAGES - already) / (time.monotonic() - began)
    stop.set()
    thread.join()
    return rate


def await_lines(count: LineCount, wanted: int) -> int:
    """Look until so many lines are in the log. Raises TimeoutError."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (lines := count.now()) < wanted:
        if time.monotonic() > deadline:
            raise TimeoutError(f"only {lines} of {wanted} lines were written")
        time.sleep(0.01)
    return lines


def _record(topology_id: int, stop: Event) -> None:
    try:
        record(topology_id, stop=stop, beat=lambda counters: None)
    finally:
        connection.close()
