"""Three hosts with an event log each, on one PostgreSQL: one is killed again and again."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pika
import pytest
from django.conf import settings as current
from django.db.models import Sum
from pytest_django import Settings

from analytics import nightly, shared_log
from analytics.log import name_of
from analytics.models import DayFigures, Gap, LogHost, Minute, ScheduledMessage, SentPart
from delayboard.models import BackgroundTask, BatchState, ChangeState, ItemState
from tests.analytics.day_lines import days, read_day
from tests.brokers import Vhost, newest_generation
from tests.builders import address_of, applied_topology, eventually, make_broker, make_pair
from tests.faults.processes import ROOT, database_url, kill
from tests.faults.replays import a_replay, arrived, declare, fresh, parked_messages
from tests.faults.test_change_kills import LEVELS, Changed, bind
from tests.publishing import publisher
from tests.real_broker.changing import Arrivals, all_closed, consuming, states
from topology.broker.management.client import Management
from topology.broker.properties.read import build_properties
from topology.message import Publish
from topology.models import Topology, Work, WorkState
from topology.models.work import TASK
from topology.operations.topology_rows import create_topology
from topology.patterns.delay_levels import params as delay_levels

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgres]
SECONDS = float(os.environ.get("SEVERAL_HOSTS_SECONDS", "120"))
RATE = int(os.environ.get("SEVERAL_HOSTS_RATE", "2000"))
KILL_SECONDS = 30.0
TOPOLOGIES = 6
BURSTS_A_SECOND = 20
# Of messages that wait, and that are changed by each kind of change.
WAITING, CHANGES = 600, 60
CHANGED_QUEUES = ("bills", "letters")


@dataclass
class Host:
    """A worker with files of its own: its log, its keys' folder, what it prints."""

    folder: Path
    log_url: str
    process: subprocess.Popen[bytes] | None = None
    kills: int = 0

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def name(self) -> str:
        return name_of(self.log)

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        self.folder.mkdir(parents=True, exist_ok=True)
        variables = {
            **os.environ,
            "DATABASE_URL": database_url(),
            "DELAYBOARD_VAR": str(self.folder),
            "EVENT_LOG": "",
            "LOG_URL": self.log_url,
            "SECRET_KEY": current.SECRET_KEY,
            "CREDENTIAL_KEYS": " ".join(current.CREDENTIAL_KEYS),
        }
        with (self.folder / "output").open("ab") as output:
            return subprocess.Popen(
                [sys.executable, str(ROOT / "manage.py"), *(arguments or ("worker",))],
                env=variables,
                cwd=ROOT,
                start_new_session=True,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def run(self) -> None:
        self.process = self.start()

    def kill(self) -> None:
        assert self.process is not None
        kill(self.process)
        self.kills += 1

    def stop(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0, (self.folder / "output").read_text()[-3000:]

    def leave(self) -> None:
        done = self.start("log_hosts", "--leave")
        assert done.wait(600) == 0, (self.folder / "output").read_text()[-3000:]


@contextmanager
def running_hosts(folder: Path, log_url: str, number: int = 3) -> Iterator[list[Host]]:
    hosts = [Host(folder / f"host{count}", log_url) for count in range(number)]
    try:
        for host in hosts:
            host.run()
        yield hosts
    finally:
        for host in hosts:
            if host.process is not None:
                kill(host.process)


class Publisher(threading.Thread):
    """Publishes numbered messages into the delays of topologies in turn, at a rate."""

    def __init__(self, vhost: Vhost, pairs: Sequence[Topology], rate: int) -> None:
        super().__init__(name="publisher", daemon=True)
        self.vhost, self.rate, self.sent = vhost, rate, 0
        self.names = [pair.name for pair in pairs]
        self.ends = threading.Event()

    def run(self) -> None:
        connection = pika.BlockingConnection(pika.URLParameters(self.vhost.amqp_url))
        channel, began = connection.channel(), time.monotonic()
        while not self.ends.wait(1 / BURSTS_A_SECOND):
            due = int((time.monotonic() - began) * self.rate)
            for number in range(self.sent, min(due, self.sent + self.rate)):
                name = self.names[number % len(self.names)]
                properties = pika.BasicProperties(message_id=f"m{number}", delivery_mode=2)
                channel.basic_publish(f"{name}-retry", name, b"{}", properties)
                self.sent = number + 1
            connection.process_data_events(0)
        connection.close()

    def end(self) -> int:
        self.ends.set()
        self.join()
        return self.sent


def recorders() -> dict[str, str]:
    """Which process has which recorder."""
    keys = dict(BackgroundTask.objects.filter(key__startswith="record:").values_list("pk", "key"))
    rows = Work.objects.filter(kind=TASK, subject__in=keys, state=WorkState.RUNNING)
    return {keys[pk]: owner for pk, owner in rows.values_list("subject", "owner")}


def have_shared(hosts: list[Host], number: int) -> bool:
    owners = recorders()
    return len(owners) == number and len({*owners.values()}) == len(hosts)


def read_all(hosts: list[Host]) -> Iterator[tuple[date, str, str, str, bool]]:
    """Day, topology, message, kind and whether it was redelivered, of each line of each log."""
    for host in hosts:
        for day in days(host.log):
            for event in read_day(host.log, day):
                if event.source == "tap":
                    yield day, event.topology, event.message_id, event.kind, event.redelivered


def applied_pairs(vhost: Vhost, number: int) -> list[Topology]:
    broker = make_broker(vhost)
    return [
        applied_topology(make_pair(broker, name=f"flow{count}", delay="5s"))
        for count in range(number)
    ]


def delay_some(vhost: Vhost, levels: Topology) -> None:
    """Messages c0, c1 and so on, due while hosts are killed. Whoever has the tap records them."""
    params = levels.parsed
    with publisher(address_of(vhost), "test") as channel:
        for number in range(WAITING):
            wait = timedelta(seconds=random.uniform(45, 45 + min(SECONDS, 120)))
            route = levels.pattern.route(params, wait, CHANGED_QUEUES[number % 2])
            properties = build_properties({}, message_id=f"c{number}", delivery_mode=2)
            publish = Publish(route.exchange, route.routing_key, properties, b"{}")
            channel.publish_by(route, publish)


def change_some(levels: Topology) -> Changed:
    waiting = ScheduledMessage.objects.filter(topology=levels)
    eventually(lambda: waiting.count() == WAITING, "all that wait are listed")
    changed = Changed({row.key: row for row in waiting})
    changed.choose(CHANGES)
    changed.request(max(changed.dues.values()) + timedelta(seconds=5))
    return changed


def assert_changed_once(changed: Changed, came: Arrivals) -> dict[str, int]:
    """What each change says that it did is what happened, once; how many ended in which state.

    A change whose message was due while nobody intercepted fails, and the message comes as it was.
    """
    ended = states()
    done = {key for key, state in ended.items() if state == ChangeState.DONE}
    gone = {row.key for row in changed.cancelled} & done
    for queue in CHANGED_QUEUES:
        own = {row.key for row in changed.rows.values() if row.destination == queue}
        assert set(came.ids(queue)) == own - gone
        # All but the first of each say that they may be duplicates.
        came.doubled(queue)
    for row in changed.moved:
        at = came.at(row.destination, row.key)
        assert row.due_at is not None
        assert (at > max(changed.dues.values())) == (row.key in done), (row.key, at)
    assert len(done) > len(ended) // 2
    return Counter(ended.values())


@pytest.mark.long
@newest_generation
def test_hosts_that_are_killed_in_turn_record_replay_and_change_each_message_once(
    vhost: Vhost, settings: Settings, tmp_path: Path
) -> None:
    settings.SHARED_LOG_URL = f"file://{tmp_path / 'shared'}"
    settings.PARQUET_URL = settings.LOG_URL = settings.SHARED_LOG_URL
    settings.RESULTS_URL = f"file://{tmp_path / 'results'}"
    settings.EVENT_LOG = tmp_path / "reader" / "log"
    pairs = applied_pairs(vhost, TOPOLOGIES)
    declare(vhost, "classic")
    row = create_topology(None, pairs[0].broker, delay_levels.KIND, LEVELS)
    levels = applied_topology(row)
    Topology.objects.filter(pk=levels.pk).update(keep_bodies=True)
    with Management(address_of(vhost)) as management:
        bind(management, *CHANGED_QUEUES)
    own = {pair.slug for pair in pairs}
    messages = int(50 * SECONDS)
    with (
        running_hosts(tmp_path, settings.SHARED_LOG_URL) as hosts,
        consuming(vhost, CHANGED_QUEUES) as came,
    ):
        number = TOPOLOGIES + 1
        eventually(lambda: have_shared(hosts, number), "each host records some", seconds=120)
        delay_some(vhost, levels)
        changed = change_some(levels)
        replay = a_replay(
            vhost, messages, of=parked_messages(pairs[0].broker, messages), rate=messages / SECONDS
        )
        publisher = Publisher(vhost, pairs, RATE)
        publisher.start()
        began = time.monotonic()
        count = 0
        while time.monotonic() - began < SECONDS:
            due = began + (count + 1) * KILL_SECONDS
            publisher.ends.wait(max(0.0, min(due, began + SECONDS) - time.monotonic()))
            victim = hosts[count % len(hosts)]
            victim.kill()
            # In turn at once, so that it goes on, and after its leases have ended.
            publisher.ends.wait(1.0 if count % 2 else 24.0)
            victim.run()
            count += 1
        sent = publisher.end()
        seconds = time.monotonic() - began
        listed = ScheduledMessage.objects.filter(topology__in=pairs)
        rows = listed.filter(entered_at__isnull=False, left_at__isnull=False)
        eventually(lambda: rows.count() >= sent, "every trip is in the list", seconds=900)
        eventually(all_closed, "the changes are over", seconds=300)
        eventually(
            lambda: fresh(replay).state == BatchState.DONE, "the replay is over", seconds=300
        )
        for host in hosts:
            host.stop()
    # What each said of itself is true before it leaves.
    assert set(LogHost.objects.filter(has_ended=True).values_list("name", flat=True)) == {
        host.name for host in hosts
    }
    changes = assert_changed_once(changed, came)
    assert listed.count() == sent
    minutes = Minute.objects.filter(topology__in=pairs)
    sums = minutes.aggregate(entered=Sum("entered"), left=Sum("left"))
    assert (sums["entered"], sums["left"]) == (sent, sent)
    first: Counter[tuple[str, str, str]] = Counter()
    repeated, lines = Counter[tuple[str, str, str]](), Counter[date]()
    for day, topology, message, kind, is_redelivered in read_all(hosts):
        lines[day] += 1
        if topology not in own:
            continue
        (repeated if is_redelivered else first)[topology, message, kind] += 1
    assert len({*first, *repeated}) == 2 * sent
    assert set(first.values()) <= {1}
    assert not Gap.objects.exists()

    items = replay.items.all()
    doubtful = set(items.filter(may_be_duplicated=True).values_list("parked_message__message_id"))
    copies = arrived(vhost)
    assert len(copies) == messages
    assert {(name,) for name, times in copies.items() if times > 1} <= doubtful
    assert set(items.values_list("state", flat=True)) == {ItemState.DONE}

    for host in hosts:
        host.leave()
    assert not LogHost.objects.exists()
    sent_hosts = SentPart.objects.values_list("host", flat=True).distinct()
    assert set(sent_hosts) == {host.name for host in hosts}
    entered = 0
    for day in sorted(lines):
        nightly.run_day(day)
        of_topologies = DayFigures.objects.filter(day=day, destination="", topology__in=own)
        entered += sum(of_topologies.values_list("entered", flat=True))
    assert entered == sent
    kills, twice = sum(host.kills for host in hosts), sum(copies.values()) - messages
    print(
        f"\n{sent:,} messages in {seconds:.0f} s ({sent / seconds:,.0f} a second), {kills} kills, "
        f"{lines.total():,} lines, {sum(repeated.values()):,} of them redelivered; a replay of "
        f"{messages:,} messages, {len(doubtful):,} marked, {twice:,} duplicated; changes: {changes}"
    )


@newest_generation
def test_another_host_records_what_one_leaves_and_neither_misses_a_copy(
    vhost: Vhost, settings: Settings, tmp_path: Path
) -> None:
    settings.SHARED_LOG_URL = f"file://{tmp_path / 'shared'}"
    settings.EVENT_LOG = tmp_path / "reader" / "log"
    (pair,) = applied_pairs(vhost, 1)
    with running_hosts(tmp_path, settings.SHARED_LOG_URL, number=2) as hosts:
        eventually(recorders, "one records")
        publisher = Publisher(vhost, [pair], 50)
        publisher.start()
        eventually(lambda: ScheduledMessage.objects.filter(left_at=None).exists(), "some wait")
        (owner,) = recorders().values()
        (first,) = [host for host in hosts if host.name == owner]
        (second,) = [host for host in hosts if host.name != owner]
        first.stop()
        eventually(lambda: [*recorders().values()] == [second.name], "the other one records")
        recorded = ScheduledMessage.objects.count()
        eventually(lambda: ScheduledMessage.objects.count() > recorded, "and it goes on")
        sent = publisher.end()
        rows = ScheduledMessage.objects.filter(entered_at__isnull=False, left_at__isnull=False)
        eventually(lambda: rows.count() == sent, "every trip is in the list, whoever saw its ends")
        second.stop()
    assert ScheduledMessage.objects.count() == sent
    for host in hosts:
        host.leave()
    shared_log.fetch((datetime.now(UTC) - timedelta(days=1)).date())
    mirror = shared_log.log_for_runs()
    copies = [event for day in days(mirror) for event in read_day(mirror, day)]
    assert Counter((event.message_id, event.kind) for event in copies if event.source == "tap") == {
        (f"m{number}", kind): 1 for number in range(sent) for kind in ("scheduled", "delivered")
    }
