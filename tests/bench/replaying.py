"""Replays beside a dynamic shovel that moves the same messages, and what a large one takes."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.db import connection
from django.db.models import Model
from django.db.models.functions import Now

from delayboard.dead_letters.replay import batch_state
from delayboard.demo.node import PrivateNode
from delayboard.models import MessageGroup, ReplayBatch
from tests.bench.figures import say, seconds
from tests.bench.replayed import carry_out
from tests.brokers import Vhost, call_api
from tests.builders import address_of, make_broker
from tests.delayboard.builders import a_death, a_route, deaths_header, frozen, parked
from tests.faults import processes
from tests.faults.alarms import control
from tests.faults.processes import environment, kill
from topology.broker.amqp.depths import live_depths
from topology.broker.amqp.pipeline import pipeline
from topology.broker.management.client import Management
from topology.broker.properties.read import build_properties
from topology.definitions import Arguments, Queue
from topology.message import Message, Publish
from topology.models import Broker, Work

MESSAGES = 100_000
# Of the shovel and of ours the best counts.
ROUNDS = 2
# For each of these numbers in flight, so often.
WINDOWS = (100, 300, 1000, 3000)
REPETITIONS = 3
SOME = 20_000
# Whose memory is measured.
VERY_MANY = 1_000_000
BODY = b"x" * 512
PATIENCE_SECONDS = 600.0
NUMBERS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %s)"


def measure(folder: Path) -> None:
    call_command("migrate", verbosity=0)
    with PrivateNode(folder / "node", "bench", 1000) as node:
        # Queues as full as these are no alarm here.
        control(node, "set_vm_memory_high_watermark", "absolute", "2GB")
        vhost = Vhost(node.amqp_url, node.management_url, "/", node.username, node.password)
        broker = make_broker(vhost, name="bench")
        for kind in ("classic", "quorum"):
            shovel = measure_shovel(node, vhost, kind)
            journaled(vhost, broker, kind, shovel)
        in_flight(vhost, broker)
        memory(vhost, broker)


def measure_shovel(node: PrivateNode, vhost: Vhost, kind: str) -> float:
    """The messages a second of a shovel."""
    queues = [f"there-{kind}", f"back-{kind}"]
    declare(vhost, *queues, arguments={"x-queue-type": kind})
    fill(vhost, queues[0])
    shovel = 0.0
    for _ in range(ROUNDS):
        shovel = max(shovel, MESSAGES / seconds(partial(shovelled, node, vhost, *queues)))
        queues.reverse()
    declare(vhost, *queues, arguments=None)
    return shovel


def journaled(vhost: Vhost, broker: Broker, kind: str, shovel: float) -> None:
    """From the journal into an empty queue, claims and all."""
    target, ours = f"target-{kind}", 0.0
    for _ in range(ROUNDS):
        declare(vhost, target, arguments={"x-queue-type": kind})
        batch = of_parked_messages(broker, target, MESSAGES)
        ours = max(ours, MESSAGES / seconds(partial(carry_out, batch.pk)))
        batch.refresh_from_db()
        assert batch.done == MESSAGES
        declare(vhost, target, arguments=None)
    note = f"{ours:.0f}/s against {shovel:.0f}/s; at least 0.35 is wanted"
    say(f"journaled, into a {kind} queue, to a shovel", ours / shovel, note)


def in_flight(vhost: Vhost, broker: Broker) -> None:
    """Into a quorum queue, by how many messages may be in flight: speed, and what a kill doubles.

    All windows come round in turn, so that what else the machine does slows down each of them.
    """
    ways: dict[str, Callable[[Vhost, Broker], ReplayBatch]] = {"journaled": a_journaled_one}
    for name, make in ways.items():
        paces: dict[int, list[float]] = {window: [] for window in WINDOWS}
        doubled: dict[int, list[int]] = {window: [] for window in WINDOWS}
        for window in WINDOWS * REPETITIONS:
            settings.MESSAGES_IN_FLIGHT = window
            batch = make(vhost, broker)
            paces[window].append(SOME / seconds(partial(carry_out, batch.pk)))
            doubled[window].append(doubled_by_a_kill(vhost, make(vhost, broker), window))
        fastest = max(map(median, paces.values()))
        for window in WINDOWS:
            pace, most = median(paces[window]), max(doubled[window])
            note = f"{pace:.0f}/s; sent twice at a kill: {doubled[window]}, the most {most}"
            say(f"{name}, {window} in flight, to the fastest", pace / fastest, note)


def a_journaled_one(vhost: Vhost, broker: Broker) -> ReplayBatch:
    declare(vhost, "twice", arguments=None)
    declare(vhost, "twice", arguments={"x-queue-type": "quorum"})
    return of_parked_messages(broker, "twice", SOME)


def doubled_by_a_kill(vhost: Vhost, batch: ReplayBatch, window: int) -> int:
    """How many more messages arrive than there are, when its worker is killed at some moment."""
    goal = random.randint(SOME // 10, SOME // 2)
    variables = {**environment(), "MESSAGES_IN_FLIGHT": str(window)}
    with processes.started("worker", "--only", "replay", variables=variables) as replayer:
        await_that(lambda: live_depths(address_of(vhost), ["twice"])["twice"] >= goal)
        kill(replayer)
    Work.objects.update(leased_until_at=Now())
    carry_out(batch.pk)
    return live_depths(address_of(vhost), ["twice"])["twice"] - SOME


def memory(vhost: Vhost, broker: Broker) -> None:
    """Of a process that replays very many messages, into a queue that keeps few."""
    declare(vhost, "few", arguments={"x-max-length": 1000})
    batch = of_parked_messages(broker, "few", VERY_MANY)
    command = [sys.executable, "-m", "tests.bench.replayed", str(batch.pk)]
    peak = float(subprocess.check_output(command, env=os.environ)) / 1024
    batch.refresh_from_db()
    assert batch.done == VERY_MANY
    say(f"peak memory of a replay of {VERY_MANY:,}, MB", peak, "less than 300 is wanted")


def declare(vhost: Vhost, *names: str, arguments: dict[str, Any] | None) -> None:
    """Or delete, without arguments."""
    with Management(address_of(vhost), seconds=PATIENCE_SECONDS) as management:
        for name in names:
            if arguments is None:
                management.delete_queue(name, only_if_empty=False)
            else:
                management.declare_queue(Queue(name, arguments=Arguments(arguments)))


def fill(vhost: Vhost, queue: str, messages: int = MESSAGES) -> None:
    publish = Publish("", queue, a_parked_message().properties, BODY)
    with pipeline(address_of(vhost), "bench") as channel:
        for number in range(messages):
            channel.publish(publish, number)
            while channel.in_flight > 2000:
                channel.answers(1.0)
        while channel.in_flight:
            channel.answers(1.0)


def a_parked_message() -> Message:
    headers = {"tenant": "a", "attempt": 3, **deaths_header(a_death())}
    stated = {"content_type": "application/json", "message_id": "m-1", "delivery_mode": 2}
    return Message("", "dead", build_properties(headers, **stated), BODY)


def shovelled(node: PrivateNode, vhost: Vhost, source: str, target: str) -> None:
    """All of a queue, as the management pages move messages."""
    value = {
        "src-protocol": "amqp091",
        "src-uri": "amqp:///%2F",
        "src-queue": source,
        "src-prefetch-count": 1000,
        "dest-protocol": "amqp091",
        "dest-uri": "amqp:///%2F",
        "dest-queue": target,
        "dest-add-forward-headers": False,
        "ack-mode": "on-confirm",
    }
    call_api(node, "PUT", "parameters/shovel/%2F/bench", {"value": value})
    await_that(lambda: live_depths(address_of(vhost), [target])[target] >= MESSAGES)
    call_api(node, "DELETE", "parameters/shovel/%2F/bench")


def await_that(look: Callable[[], bool]) -> None:
    """Raises TimeoutError."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not look():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.05)


def of_parked_messages(broker: Broker, target: str, number: int) -> ReplayBatch:
    """A replay of so many equal messages, waiting for a worker."""
    (parked_message,) = parked(broker, a_parked_message())
    multiply(parked_message, number, id=f"{parked_message.pk} + i")
    batch = frozen(None, broker, [parked_message], a_route("", target))
    item = batch.items.get()
    parked_message_of = f"{parked_message.pk} + i"
    multiply(
        item, number, id=f"{item.pk} + i", position="1 + i", parked_message_id=parked_message_of
    )
    MessageGroup.objects.filter(pk=parked_message.group_id).update(total=number, parked=number)
    batch.routes.update(items_number=number)
    ReplayBatch.objects.filter(pk=batch.pk).update(selected=number, parked_messages=None)
    batch.refresh_from_db()
    batch_state.start(None, batch, despite_verdict=True)
    return batch


def multiply(row: Model, number: int, **changes: str) -> None:
    """Make `number` rows of one; a change is a term of SQL in `i`, from 1."""
    fields = row._meta.concrete_fields
    names = ", ".join(connection.ops.quote_name(str(field.column)) for field in fields)
    terms = ", ".join(
        changes.get(str(field.column), connection.ops.quote_name(str(field.column)))
        for field in fields
    )
    table = connection.ops.quote_name(row._meta.db_table)
    with connection.cursor() as cursor:
        cursor.execute(
            f"{NUMBERS} INSERT INTO {table} ({names}) SELECT {terms} FROM {table}, n WHERE id = %s",
            [number - 1, row.pk],
        )
