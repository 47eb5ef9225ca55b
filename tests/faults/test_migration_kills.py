"""A migration that is killed, and started again: each message arrives once or is marked."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from django.db.models.functions import Now
from pytest_django import Settings

from delayboard.delay_migration.move_messages import WINDOW
from delayboard.demo.node import PrivateNode
from delayboard.models import MovedMessage
from tests.brokers import Vhost, every_generation
from tests.builders import address_of, applied_levels, eventually
from tests.faults.forking import forked
from tests.faults.nodes import vhost_of
from tests.real_broker.changing import consuming
from tests.real_broker.test_migrate_delays import NEW, OLD, delay_all, levels
from topology.broker.amqp.consumer import getter
from topology.broker.management.client import Management
from topology.definitions import Queue
from topology.message import DOUBLED_HEADER
from topology.models import Topology, Work
from topology.patterns.delay_levels.params import level_name

pytestmark = pytest.mark.django_db(transaction=True)
SECOND = timedelta(seconds=1)


@pytest.fixture(autouse=True)
def event_log(settings: Settings, tmp_path: Path) -> None:
    settings.EVENT_LOG = tmp_path / "log"


def prepare(vhost: Vhost) -> tuple[Topology, Topology]:
    with Management(address_of(vhost)) as management:
        management.declare_queue(Queue("work"))
    source = applied_levels(vhost, OLD)
    return source, levels(source.broker, NEW)


def random_waits(messages: int) -> dict[str, timedelta]:
    """Long enough for all to wait until the migration is done."""
    return {f"m{n}": random.uniform(150, 200) * SECOND for n in range(messages)}


def test_kills_of_the_command(vhost: Vhost) -> None:
    dues, died = migrate_during_kills(vhost, messages=600, kills=3)
    got = waiting_in_target(vhost)
    assert_each_once_or_marked(got, dues)
    assert len(got) - len(dues) <= died * WINDOW


@pytest.mark.long
@every_generation
def test_many_kills_of_the_command(vhost: Vhost) -> None:
    """With random delays: many are due while it runs, and are delivered by source or target.

    Some others, which nobody migrates, say how late this machine is by itself.
    """
    messages, control = 20_000, replace(NEW, prefix="control")
    source, target = prepare(vhost)
    levels(source.broker, control)
    with Management(address_of(vhost)) as management:
        management.declare_queue(Queue("control"))
    with consuming(vhost, ["work", "control"]) as found:
        alone = {f"c{n}": random.uniform(5, 200) * SECOND for n in range(500)}
        own = delay_all(vhost, alone, control, "control")
        waits = {f"m{n}": random.uniform(5, 200) * SECOND for n in range(messages)}
        dues = delay_all(vhost, waits)
        died = kill_the_command(source, target, kills=10, longest=3)
        eventually(lambda: set(found.ids("work")) == set(dues), "all arrive", seconds=300)
        eventually(lambda: len(found.ids("control")) == len(own), "these too")
        time.sleep(2)
    assert died == 10
    assert found.doubled("work").total() <= died * WINDOW
    late = [at - dues[name] for name, at in found.by_queue["work"]]
    usual = max(at - own[name] for name, at in found.by_queue["control"])
    print(f"late {min(late)} to {max(late)}, not migrated {usual}, {len(late) - messages} doubled")
    assert min(late) >= timedelta(0)
    assert max(late) <= SECOND + usual


def migrate_during_kills(
    vhost: Vhost, *, messages: int, kills: int
) -> tuple[dict[str, datetime], int]:
    """When each message is due, and how many commands were killed in the middle."""
    source, target = prepare(vhost)
    dues = delay_all(vhost, random_waits(messages))
    died = kill_the_command(source, target, kills=kills, longest=messages / 1500)
    assert died
    return dues, died


def kill_the_command(source: Topology, target: Topology, *, kills: int, longest: float) -> int:
    """Start and kill it so often, and let it end; how many were killed in the middle."""
    command = ("migrate_delays", source.slug, target.slug)
    died = 0
    for _ in range(kills):
        with forked(*command) as migration:
            # One that comes after all were moved begins none, and ends.
            eventually(
                lambda: MovedMessage.objects.exists() or migration.process.exitcode is not None,
                "a message is begun, or none is left",
            )
            time.sleep(random.uniform(0, longest))
            died += migration.process.exitcode is None
        Work.objects.update(leased_until_at=Now())
    with forked(*command) as migration:
        assert migration.wait(120) == 0, migration.said
    return died


def assert_each_once_or_marked(got: list[tuple[str, bool]], names: Collection[str]) -> None:
    often = Counter(name for name, _ in got)
    assert set(often) == set(names)
    doubled = {name for name, number in often.items() if number > 1}
    assert doubled <= {name for name, is_marked in got if is_marked}


@pytest.mark.parametrize("node", ["4.3"], indirect=True)
def test_a_kill_of_the_broker(node: PrivateNode) -> None:
    """It forgets some acks of a classic queue, whose messages come again."""
    vhost = vhost_of(node, "quorum")
    source, target = prepare(vhost)
    names = delay_all(vhost, {f"m{n}": random.uniform(150, 200) * SECOND for n in range(1500)})
    command = ("migrate_delays", source.slug, target.slug)
    with forked(*command) as migration:
        eventually(MovedMessage.objects.exists, "a message is begun")
        time.sleep(random.uniform(0, 0.5))
        node.kill()
        migration.wait(60)
    node.start()
    Work.objects.update(leased_until_at=Now())
    with forked(*command) as migration:
        assert migration.wait(120) == 0, migration.said
    got = waiting_in_target(vhost)
    assert_each_once_or_marked(got, names)


def waiting_in_target(vhost: Vhost) -> list[tuple[str, bool]]:
    """The ids of the messages, and whether each is marked: from the top down each comes once."""
    got = []
    for level in reversed(range(NEW.levels)):
        with getter(address_of(vhost), level_name(NEW, level)) as source:
            while delivery := source.get():
                source.ack([delivery.tag])
                message = delivery.message
                is_marked = DOUBLED_HEADER in message.headers
                got.append((message.properties.message_id or "", is_marked))
    return got
