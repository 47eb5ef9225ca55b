"""The levels that a real Celery worker declares, and what it publishes into them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from pytest_django import Settings

from analytics.models import ScheduledMessage
from analytics.recorder.copies import Place, event_of_copy
from analytics.recorder.follow import Follower
from delayboard.demo.node import PrivateNode
from tests import commands
from tests.brokers import Vhost, call_api, every_generation
from tests.builders import address_of, applied_levels, eventually
from tests.faults.processes import kill
from tests.real_broker.changing import all_closed, short_times, working
from tests.real_broker.holding import recording
from topology.broker.amqp.consumer import Consumer
from topology.broker.management.client import Management
from topology.broker.management.observe import observe
from topology.definitions import Arguments, Binding, Definitions, Queue
from topology.exports.permissions import DESTINATION, of_consumer, of_publisher
from topology.message import Message
from topology.patterns.delay_levels.params import Params
from topology.patterns.delay_levels.pattern import delay_levels
from topology.structure.copies import Copy

__all__ = ("short_times",)
ROOT = Path(__file__).resolve().parents[2]
BOUND = Binding("celery_delayed_delivery", "orders", "#.orders", destination_is_queue=False)
COPIES = Queue("copies", arguments=Arguments({"x-queue-type": "classic"}))
DELAY = timedelta(seconds=5)
CALL_SECONDS = 30.0


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "celery", "-A", "tests.real_broker.celery_app", *arguments]


def environment(vhost: Vhost, levels: str) -> dict[str, str]:
    return {**os.environ, "SHOP_BROKER": vhost.amqp_url, "SHOP_LEVELS": levels}


@contextmanager
def a_worker(vhost: Vhost, levels: str, folder: Path) -> Iterator[None]:
    """A worker that has bound its queue to its levels."""
    log = folder / "worker.log"
    process = subprocess.Popen(
        command("worker", "--pool=solo", "--loglevel=info", f"--logfile={log}"),
        env=environment(vhost, levels),
        cwd=ROOT,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        eventually(lambda: process.poll() is not None or is_ready(vhost), "the worker is ready")
        assert process.poll() is None, log.read_text()
        yield
    finally:
        kill(process)


def delay_a_note(vhost: Vhost, file: Path) -> None:
    subprocess.run(
        command("call", "note", f'--args=["{file}"]', f"--countdown={DELAY.total_seconds():g}"),
        env=environment(vhost, "quorum"),
        cwd=ROOT,
        check=True,
        timeout=CALL_SECONDS,
        stdout=subprocess.DEVNULL,
    )


def is_ready(vhost: Vhost) -> bool:
    found = declared(vhost)
    return BOUND in found.bindings and found.queue("orders") is not None


def declared(vhost: Vhost) -> Definitions:
    with Management(address_of(vhost)) as management:
        return observe(management).declared


# What Celery declares for itself (docs/guide/provision-a-topology.md).
CELERY_OWN = r"(.*\.)?celery\.pidbox|celeryev.*"


def limited(node: PrivateNode, vhost: Vhost) -> Vhost:
    """As an account with the exported permissions of a publisher and consumer that declares, on
    levels and the queue `orders`, none of which is there yet."""
    params = Params("celery", destinations="exchanges")
    found = delay_levels.definitions(params)
    permissions = of_publisher(delay_levels, params, found, declares=True)
    permissions.add(of_consumer(delay_levels, params, found, declares=True))
    rights = {
        kind: text.replace(DESTINATION, "orders").removesuffix(")$") + f"|{CELERY_OWN})$"
        for kind, text in zip(("configure", "write", "read"), permissions.patterns(), strict=True)
    }
    account = {"password": "a-long-enough-password", "tags": "management"}
    call_api(node, "PUT", "users/celery", account)
    call_api(node, "PUT", f"permissions/{vhost.name}/celery", rights)
    place = vhost.amqp_url.rpartition("@")[2]
    return replace(vhost, amqp_url=f"amqp://celery:{account['password']}@{place}")


@pytest.mark.parametrize("levels", ["quorum", "classic"])
def test_a_worker_s_levels_are_recognised_whole_with_their_destination(
    vhost: Vhost, tmp_path: Path, levels: str
) -> None:
    with a_worker(vhost, levels, tmp_path):
        found = declared(vhost)
    (use,) = delay_levels.recognize(found)
    assert use.params == Params("celery", queue_type=levels, destinations="exchanges")
    assert delay_levels.destinations(use.params, found) == [BOUND]
    wanted = {obj.identity for obj in delay_levels.definitions(use.params)}
    assert use.claims == wanted | {BOUND.identity}
    assert use.claims == {t.identity for t in found if "celery_delayed" in str(t.identity)}


@pytest.mark.usefixtures("accounts_go")
def test_delayboard_publishes_for_a_worker_s_queue_as_celery_does_with_least_permissions(
    broker_node: PrivateNode, vhost: Vhost, tmp_path: Path
) -> None:
    noted = tmp_path / "noted"
    as_celery = limited(broker_node, vhost)
    with a_worker(as_celery, "quorum", tmp_path), Management(address_of(vhost)) as management:
        found = observe(management).declared
        (use,) = delay_levels.recognize(found)
        management.declare_queue(COPIES)
        management.bind(Binding("celery_delayed_27", COPIES.name, "#"))
        with Consumer(address_of(vhost), COPIES.name) as consumer:
            delay_a_note(as_celery, noted)
            (copy,) = consumer.batch(limit=1, limit_bytes=10**6, wait=60, linger=0)
        route = delay_levels.route(use.params, DELAY, "orders")
        assert where(copy.message) == (route.exchange, route.routing_key)
        assert list(route.declares) == [BOUND]
        reading = delay_levels.read(use.params, Copy(*where(copy.message), copy.message.headers))
        assert reading is not None
        assert (reading.phase, reading.destination, reading.delay) == ("entry", "orders", DELAY)
        eventually(lambda: noted.exists() and noted.read_text(), "the task ran")
    # Celery writes it down right before it publishes; our copy comes later on a busy machine.
    due_at = datetime.fromisoformat(str(copy.message.headers["eta"]))
    late = float(noted.read_text()) - due_at.timestamp()
    assert 0 <= late < 3
    # A recorder that was not running reads it later, and lists it until the same moment.
    read_at = due_at + DELAY
    place = Place("main", vhost.name, "levels", delay_levels.KIND)
    event = event_of_copy(
        copy.message, reading, place, event_id="e", recorded_at=read_at, caught_up=False
    )
    assert event.due_at == due_at


@pytest.mark.long
@every_generation
@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("short_times")
def test_cancelled_tasks_do_not_run_and_all_others_do(
    vhost: Vhost, tmp_path: Path, settings: Settings
) -> None:
    """Cancelled by the ids of the tasks, in a shell; the others run once and on time."""
    settings.EVENT_LOG = tmp_path / "log"
    params = Params("celery", destinations="exchanges")
    with a_worker(vhost, "quorum", tmp_path):
        before = bindings_to_orders(vhost)
        topology = applied_levels(vhost, params)
        with recording(topology.broker, topology), working(1):
            tasks = delay_notes(vhost, tmp_path, number=30, seconds=45)
            log = tmp_path / "log"
            eventually(lambda: count_lines(log) == 30, "the tasks are recorded")
            follower = Follower(log)
            eventually(lambda: listed(follower) == 30, "the tasks are listed")
            given = [word for name in tasks[:10] for word in ("--id", name)]
            confirmed = ("--confirm", topology.broker.name)
            ended = commands.run("scheduled", "cancel", *given, *confirmed)
            assert ended.out.endswith("10 of 10 changes requested.\n"), ended
            eventually(all_closed, "the bindings are restored", seconds=120)
            eventually(lambda: len(list(tmp_path.glob("note-*"))) >= 20, "the others run")
        written = (tmp_path / "worker.log").read_text()
    succeeded = [name for name in tasks for _ in range(written.count(f"[{name}] succeeded"))]
    assert succeeded == tasks[10:]
    assert {path.name for path in tmp_path.glob("note-*")} == {f"note-{n}" for n in range(10, 30)}
    assert bindings_to_orders(vhost) == before
    assert len(before) == 3
    rows = ScheduledMessage.objects.exclude(due_at=None)
    due = {row.correlation_id: row.due_at for row in rows if row.due_at}
    late = [
        float((tmp_path / f"note-{number}").read_text()) - due[tasks[number]].timestamp()
        for number in range(10, 30)
    ]
    print(f"late by {min(late):.3f} to {max(late):.3f} s")
    assert -1 < min(late) <= max(late) < 3


def delay_notes(vhost: Vhost, folder: Path, *, number: int, seconds: int) -> list[str]:
    """The ids of so many tasks, of which each writes a file when it runs."""
    code = (
        "from tests.real_broker.celery_app import note\n"
        f"for number in range({number}):\n"
        f"    path = f'{folder}/note-{{number}}'\n"
        f"    print(note.apply_async(args=[path], countdown={seconds}).id)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(vhost, "quorum"),
        cwd=ROOT,
        check=True,
        timeout=CALL_SECONDS,
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.stdout.split()


def bindings_to_orders(vhost: Vhost) -> set[Binding]:
    """The bindings of the queue and of its exchange."""
    return {one for one in declared(vhost).bindings if one.destination == "orders"}


def count_lines(log: Path) -> int:
    return sum(path.read_text().count("\n") for path in log.rglob("*.jsonl"))


def listed(follower: Follower) -> int:
    """How many tasks wait, as far as the index has read."""
    while follower.step():
        pass
    return ScheduledMessage.objects.filter(entered_at__isnull=False).count()


def where(message: Message) -> tuple[str, str]:
    return message.exchange, message.routing_key
