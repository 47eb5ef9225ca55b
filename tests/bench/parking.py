"""From a queue into the journal, beside a bare pika consumer that only acknowledges."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from threading import Event, Thread

from django.core.management import call_command
from django.db import connection
from django.db.models import Sum
from django.utils import timezone

from delayboard.dead_letters.parked.park_queue import park_automatically
from delayboard.dead_letters.parked.store_batch import SpaceCheck
from delayboard.demo.node import PrivateNode
from delayboard.models import DeadLetterQueue, MessageGroup
from tests.bench.figures import say
from tests.bench.recording import PATIENCE_SECONDS
from tests.brokers import Vhost, call_api, root_of
from tests.builders import address_of, make_broker
from tests.flood.generator import Flood
from tests.rooted import make_node
from topology.broker.amqp.depths import live_depths
from topology.broker.management.client import Management
from topology.definitions import Arguments, Binding, Exchange, Queue

MESSAGES = 20_000
FILL_RATE = 10_000
ROUNDS = 2
# How many messages one ack of the bare consumer speaks for -> its queue.
BARE = {100: "bare-100", 1: "bare-1"}
# So many messages of the start are no part of the rate: connecting, the first statements.
WARM = 2000


def measure(folder: Path) -> None:
    call_command("migrate", verbosity=0)
    for generation in ("3.10", "4.3"):
        with make_node(folder / generation, "bench", 1000, root_of(generation)) as node:
            for kind in ("classic", "quorum"):
                rounds = [one_round(node, f"{kind}-{n}-{generation}", kind) for n in range(ROUNDS)]
                ours = max(rate for rate, _ in rounds)
                for every in BARE:
                    bare = max(rates[every] for _, rates in rounds)
                    acks = f"acks every {every}" if every > 1 else "acks each one"
                    note = f"{ours:.0f}/s against {bare:.0f}/s; at least 0.4 is wanted"
                    say(f"parking, {kind} {generation}, to one that {acks}", ours / bare, note)


def one_round(node: PrivateNode, name: str, kind: str) -> tuple[float, dict[int, float]]:
    """In a vhost of its own: fill, read bare, park. Messages a second."""
    call_api(node, "PUT", f"vhosts/{name}", {})
    urls = (f"{node.amqp_url.rpartition('/')[0]}/{name}", node.management_url)
    vhost = Vhost(*urls, name, node.username, node.password)
    arguments = Arguments({"x-queue-type": kind})
    queues = ["dead", *BARE.values()]
    with Management(address_of(vhost)) as management:
        management.declare_exchange(Exchange("dying", "fanout"))
        dying = Arguments({"x-message-ttl": 1, "x-dead-letter-exchange": "dying"})
        management.declare_queue(Queue("work", arguments=dying))
        for queue in queues:
            management.declare_queue(Queue(queue, arguments=arguments))
            management.bind(Binding("dying", queue, ""))
    flood = Flood(address_of(vhost), "", "work", FILL_RATE, MESSAGES / FILL_RATE)
    flood.run()
    if flood.error:
        raise flood.error
    await_depths(vhost, queues)
    bare = {every: read_bare(vhost, queue, every) for every, queue in BARE.items()}
    rate = parking_rate(vhost, name)
    call_api(node, "DELETE", f"vhosts/{name}")
    return rate, bare


def await_depths(vhost: Vhost, queues: list[str]) -> None:
    """Look until all have died. Raises TimeoutError."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while min(live_depths(address_of(vhost), queues).values()) < MESSAGES:
        if time.monotonic() > deadline:
            raise TimeoutError("they did not all die")
        time.sleep(0.1)


def read_bare(vhost: Vhost, queue: str, ack_every: int) -> float:
    command = [sys.executable, "-m", "tests.bench.bare", queue, str(MESSAGES), str(ack_every)]
    variables = {**os.environ, "BARE_URL": vhost.amqp_url}
    return float(subprocess.check_output(command, env=variables))


def parking_rate(vhost: Vhost, name: str) -> float:
    row = DeadLetterQueue.objects.create(
        broker=make_broker(vhost, name=name),
        queue="dead",
        is_confirmed=True,
        decided_at=timezone.now(),
    )
    stop = Event()
    thread = Thread(target=_watch, args=(row.pk, stop), daemon=True)
    thread.start()
    first = await_parked_messages(row.broker_id, WARM)
    began = time.monotonic()
    await_parked_messages(row.broker_id, MESSAGES)
    rate = (MESSAGES - first) / (time.monotonic() - began)
    stop.set()
    thread.join()
    return rate


def await_parked_messages(broker_id: int, wanted: int) -> int:
    """Look until so many are in the journal. Raises TimeoutError."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    groups = MessageGroup.objects.filter(broker=broker_id)
    while (number := groups.aggregate(kept=Sum("total"))["kept"] or 0) < wanted:
        if time.monotonic() > deadline:
            raise TimeoutError(f"only {number} of {wanted} parked messages were kept")
        time.sleep(0.05)
    return number


def _watch(queue_id: int, stop: Event) -> None:
    try:
        park_automatically(queue_id, stop=stop, beat=lambda details: None, space=SpaceCheck())
    finally:
        connection.close()
