"""A migration that is killed, and started again: each message arrives once or is marked."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pytest_django import Settings

from delayboard.delay_migration.journal import WINDOW
from delayboard.demo.node import PrivateNode
from delayboard.models import MovedMessage
from tests.brokers import Vhost, every_generation
from tests.builders import address_of, applied_levels, eventually
from tests.faults.forking import forked
from tests.faults.nodes import vhost_of
from tests.real_broker.test_migrate_delays import NEW, OLD, arrived, delay_all, levels
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
    dues, died = migrate_during_kills(vhost, messages=20_000, kills=10)
    got = arrived(vhost, len(dues))
    assert_each_once_or_marked([(name, is_marked) for name, _, is_marked in got], dues)
    assert len(got) - len(dues) <= died * WINDOW
    late = [at - dues[name] for name, at, _ in got]
    assert min(late) >= timedelta(0)
    assert max(late) <= SECOND


def migrate_during_kills(
    vhost: Vhost, *, messages: int, kills: int
) -> tuple[dict[str, datetime], int]:
    """When each message is due, and how many commands were killed in the middle."""
    source, target = prepare(vhost)
    dues = delay_all(vhost, random_waits(messages))
    command = ("migrate_delays", source.slug, target.slug)
    died = 0
    for _ in range(kills):
        with forked(*command) as migration:
            eventually(MovedMessage.objects.exists, "a message is begun")
            time.sleep(random.uniform(0, messages / 1500))
            died += migration.process.exitcode is None
        Work.objects.update(leased_until_at=datetime.now(UTC))
    with forked(*command) as migration:
        assert migration.wait(120) == 0, migration.said
    assert died
    return dues, died


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
    Work.objects.update(leased_until_at=datetime.now(UTC))
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
                source.ack(delivery)
                message = delivery.message
                is_marked = DOUBLED_HEADER in message.headers
                got.append((message.properties.message_id or "", is_marked))
    return got
