"""Messages are recorded, parked and replayed through a network with faults.

No message is lost, what may be double is marked, and nothing is reported that did not happen.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import pytest
from pytest_django import Settings

from analytics.models import ScheduledMessage
from delayboard.dead_letters.parked.consume import limits_of
from delayboard.models import BatchState, ParkedMessage, ParkSession
from delayboard.models.background_task import task_key
from tests.brokers import Vhost
from tests.builders import applied_pair, eventually
from tests.faults.forking import forked
from tests.faults.nodes import KINDS
from tests.faults.replays import (
    a_replay,
    adds_up,
    arrived,
    declare,
    fresh,
    has_done,
    lost_nothing,
    replaying,
)
from tests.faults.replays import has as is_in
from tests.faults.test_kills import delay_all, logged
from tests.faults.test_parking import (
    PATIENCE,
    all_is_there_and_adds_up,
    distinct,
    has,
    is_empty,
    send,
    watched,
)
from tests.outside.proxy import Direction, Fault, Proxy
from topology.models import Broker

pytestmark = pytest.mark.django_db(transaction=True)
MESSAGES = 3000
# Longer than both sides wait for a sign of life.
SILENCE = 25.0
SLOW = Fault(rate=100_000)
LATE = Fault(latency=0.5)
HALF_OPEN = Fault(swallows=True)
# An acknowledgement has 21 bytes: in the middle of a frame, whatever is sent.
SILENT = Fault(silent_after=31)


@pytest.fixture(autouse=True)
def event_log(settings: Settings, tmp_path: Path) -> None:
    settings.EVENT_LOG = tmp_path / "log"


@pytest.fixture
def proxy(vhost: Vhost) -> Iterator[Proxy]:
    """Between Delayboard and the broker; tests reach the broker itself."""
    with Proxy(urlsplit(vhost.amqp_url).port or 0).running() as proxy:
        yield proxy


def lead_through(proxy: Proxy, broker: Broker) -> None:
    broker.amqp_addresses = f"127.0.0.1:{proxy.port}"
    broker.save()


def reset(proxy: Proxy) -> None:
    """Three times, each when it has connected again."""
    for _ in range(3):
        eventually(proxy.reset, "there is a connection", seconds=PATIENCE)


def both(fault: Fault, proxy: Proxy) -> None:
    proxy.set("to broker", fault)
    proxy.set("to client", fault)


def half_open(direction: Direction, proxy: Proxy) -> None:
    proxy.set(direction, HALF_OPEN)
    time.sleep(SILENCE)
    proxy.heal()


def cut_off(proxy: Proxy) -> None:
    both(HALF_OPEN, proxy)
    time.sleep(SILENCE)
    proxy.heal()


def fall_silent(direction: Direction, proxy: Proxy) -> None:
    proxy.set(direction, SILENT, also_new=False)


FAULTS: dict[str, Callable[[Proxy], object]] = {
    "reset": reset,
    "half-open, acks swallowed": partial(half_open, "to broker"),
    "half-open, messages swallowed": partial(half_open, "to client"),
    "both ways swallowed": cut_off,
    "silence in a frame of the broker": partial(fall_silent, "to client"),
    "silence in a frame of ours": partial(fall_silent, "to broker"),
    "half a second of latency": partial(both, LATE),
    "slow reader": partial(both, SLOW),
}
of_each_fault = pytest.mark.parametrize("fault", FAULTS)
of_each_kind = pytest.mark.parametrize("kind", KINDS)


def park(
    vhost: Vhost, proxy: Proxy, kind: str, number: int, fault: Callable[[Proxy], object]
) -> None:
    """Park so many while there is the fault; each lost connection repeats what it may at most."""
    row = watched(vhost, kind)
    lead_through(proxy, row.broker)
    send(vhost, number)
    with forked("worker", "--only", task_key("park", row.pk)):
        eventually(partial(has, number // 20), "it is at work", seconds=PATIENCE)
        fault(proxy)
        eventually(lambda: distinct() == number, "all are parked", seconds=PATIENCE)
        eventually(lambda: is_empty(vhost), "the queue is empty", seconds=PATIENCE)
    all_is_there_and_adds_up(number)
    # A session that stored nothing has no row.
    lost = ParkSession.objects.count() - 1
    most = limits_of(row.broker, row.queue).prefetch
    assert ParkedMessage.objects.count() - number <= lost * most


def replay(vhost: Vhost, proxy: Proxy, number: int, fault: Callable[[Proxy], object]) -> None:
    """Replay so many, which are parked, while there is the fault."""
    batch = a_replay(vhost, number, rate=number / 6)
    lead_through(proxy, batch.broker)
    with replaying():
        eventually(lambda: has_done(batch, number // 20), "it is at work", seconds=PATIENCE)
        fault(proxy)
        eventually(lambda: is_in(batch, BatchState.DONE), "it is done", seconds=PATIENCE)
    adds_up(batch)
    names = arrived(vhost)
    lost_nothing(batch, names)
    assert len(names) == fresh(batch).done == number
    assert names.total() - number <= fresh(batch).doubled


def test_a_connection_that_is_reset_in_the_middle_of_a_frame_loses_nothing(
    vhost: Vhost, proxy: Proxy
) -> None:
    """The matrix is below."""
    park(vhost, proxy, "classic", 1500, Proxy.reset)


@pytest.mark.long
@of_each_fault
@of_each_kind
def test_parking_loses_nothing_and_marks_what_is_double(
    vhost: Vhost, proxy: Proxy, fault: str, kind: str
) -> None:
    park(vhost, proxy, kind, MESSAGES, FAULTS[fault])


@pytest.mark.long
@of_each_fault
@of_each_kind
def test_replays_lose_nothing_and_mark_what_may_be_double(
    vhost: Vhost, proxy: Proxy, fault: str, kind: str
) -> None:
    declare(vhost, kind)
    replay(vhost, proxy, MESSAGES, FAULTS[fault])


@pytest.mark.long
@of_each_fault
def test_a_recorder_loses_no_copy_and_marks_what_is_double(
    vhost: Vhost, proxy: Proxy, settings: Settings, fault: str
) -> None:
    topology = applied_pair(vhost, delay="1h")
    lead_through(proxy, topology.broker)
    names = [f"m{number}" for number in range(MESSAGES)]
    publishing = Thread(target=delay_all, args=(vhost, names))

    def recorded() -> Counter[str]:
        return Counter(one.message_id for one in logged(settings))

    with forked("worker", "--only", "recorder"):
        publishing.start()
        eventually(lambda: len(recorded()) > MESSAGES // 20, "it is at work", seconds=PATIENCE)
        FAULTS[fault](proxy)
        publishing.join()
        eventually(lambda: len(recorded()) == MESSAGES, "all are recorded", seconds=PATIENCE)
        rows = ScheduledMessage.objects.filter(topology=topology).values_list("message_id")
        eventually(lambda: rows.count() == MESSAGES, "all are listed", seconds=PATIENCE)
    assert recorded().keys() == set(names)
    # One whose first copy was lost on its way has only the marked one.
    unmarked = Counter(one.message_id for one in logged(settings) if not one.redelivered)
    assert set(unmarked.values()) <= {1}
    assert Counter(name for (name,) in rows) == dict.fromkeys(names, 1)
