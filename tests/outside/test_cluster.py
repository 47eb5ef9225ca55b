"""Clusters of three nodes, of which one dies, pauses or is cut off."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path

import pika
import pytest
from django.utils import timezone
from pika.exceptions import NackError
from pytest_django import Settings

from analytics.models import Gap
from delayboard.models import BatchState, DeadLetterQueue, ParkedMessage
from delayboard.now.board import overview
from delayboard.now.problems import Problem
from delayboard.worker.supervise import keep_running
from delayboard.worker.tasks import parker_of, recorder_of
from tests.analytics.builders import logged
from tests.brokers import NEWEST, SUITES, Vhost
from tests.builders import address_of, applied_topology, eventually, make_broker, running
from tests.clusters import NAMES, Cluster
from tests.faults import replays
from tests.faults.freezing import frozen
from topology.broker.amqp.pipeline import CONFIRMED, pipeline
from topology.broker.amqp.publisher import publisher
from topology.broker.management.client import Management
from topology.broker.properties.read import build_properties
from topology.definitions import Arguments, Queue
from topology.message import Publish
from topology.models import Broker, Topology
from topology.operations.replace_tap import read_taps, replace_tap
from topology.operations.topology_rows import create_topology
from topology.patterns.delay_levels import params as delay_levels_params
from topology.patterns.delay_levels.pattern import delay_levels
from topology.provisioning.taps import TapType

pytestmark = pytest.mark.django_db(transaction=True)
PATIENCE = 120.0
MESSAGES = 3000
# The number of the first message that only tries whether RabbitMQ confirms.
TRIALS = 1000
SECOND = timedelta(seconds=1)


@pytest.fixture(autouse=True)
def event_log(settings: Settings, tmp_path: Path) -> None:
    settings.EVENT_LOG = tmp_path / "log"


@pytest.mark.long
@pytest.mark.parametrize("generation", SUITES)
def test_a_node_goes_and_comes_back(tmp_path: Path, generation: str) -> None:
    def left() -> bool:
        return cluster.running("one") == {"one", "three"}

    with Cluster(tmp_path / "cluster", generation) as cluster:
        cluster["two"].kill()
        eventually(left, "the others miss it")
        cluster.heal()
        with frozen(cluster["two"]):
            eventually(left, "the others take it for dead")
        cluster.heal()
        with cluster.cut_off("two"):
            eventually(left, "the others cannot reach it")
        cluster.heal()


def levels(broker: Broker, prefix: str, tap_type: TapType | None = None) -> Topology:
    """Applied quorum delay levels, of a few seconds at most."""
    params = delay_levels_params.Params(preset="own", prefix=prefix, levels=2, unit=SECOND)
    row = create_topology(None, broker, delay_levels.KIND, params, tap_type=tap_type or "")
    return applied_topology(row)


def reach_by(broker: Broker, vhost: Vhost) -> None:
    """From now on Delayboard connects to the node whose address this is."""
    parts = pika.URLParameters(vhost.amqp_url)
    Broker.objects.filter(pk=broker.pk).update(
        host=parts.host, port=parts.port, management_url=vhost.management_url
    )


def publish(vhost: Vhost, topology: Topology, number: int) -> Counter[str]:
    """Publish by way of the shortest delay; how often RabbitMQ confirmed or refused it."""
    route = topology.pattern.route(topology.parsed, SECOND, "work")
    answers: Counter[str] = Counter()
    with pika.BlockingConnection(pika.URLParameters(vhost.amqp_url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for _ in range(number):
            try:
                channel.basic_publish(route.exchange, route.routing_key, b"{}")
            except NackError:
                answers["refused"] += 1
            else:
                answers["confirmed"] += 1
    return answers


def problem_of(topology: Topology) -> Problem | None:
    """What Now says of the tap of a topology."""
    broker = Broker.objects.get(pk=topology.broker_id)
    found = overview([broker], timezone.now(), timedelta(seconds=2)).troubles
    return next((one for one in found if one.key == f"tap/{topology.pk}"), None)


def test_a_dead_node_changes_no_answer_where_the_tap_is_on_several(tmp_path: Path) -> None:
    """And a tap on the dead node alone does, until it is replaced."""
    with Cluster(tmp_path / "cluster", NEWEST) as cluster:
        vhost = cluster.vhost_at("one")
        broker = make_broker(cluster.vhost_at("two"))
        chosen, classic = levels(broker, "chosen"), levels(broker, "classic", "classic")
        assert (chosen.tap_type, classic.tap_type) == ("quorum", "classic")
        reach_by(broker, vhost)
        cluster["two"].kill()
        assert publish(vhost, chosen, 20) == {"confirmed": 20}
        assert publish(vhost, classic, 20) == {"refused": 20}
        problem = eventually(lambda: problem_of(classic), "Now reports it", seconds=10)
        assert problem.sentence == (
            f"Publishers of {classic.name} are refused although their messages arrive: the node of "
            f"the tap “{classic.tap_queue}” is down. Replace the tap or start the node."
        )
        assert problem_of(chosen) is None
        replaced = Topology.objects.get(pk=classic.pk)
        replace_tap(None, replaced)
        assert replaced.tap_type == "quorum"
        assert publish(vhost, replaced, 20) == {"confirmed": 20}
        eventually(lambda: problem_of(classic) is None, "Now no longer reports it", seconds=10)


@contextmanager
def killed(cluster: Cluster) -> Iterator[None]:
    cluster["two"].kill()
    yield


FAULTS: dict[str, Callable[[Cluster], AbstractContextManager[None]]] = {
    "killed": killed,
    "paused": lambda cluster: frozen(cluster["two"]),
    "cut off": lambda cluster: cluster.cut_off("two"),
}


@contextmanager
def struck(cluster: Cluster, fault: str) -> Iterator[None]:
    """The others have missed the second node when the block begins; it is back at its end."""
    with FAULTS[fault](cluster):
        yield
        eventually(lambda: cluster.running("one") == set(NAMES) - {"two"}, "the others miss it")
    cluster.heal()


def send(vhost: Vhost, topology: Topology, first: int, number: int) -> Counter[str]:
    """Publish numbered messages by way of the shortest delay to the dead letters; the answers."""
    route = topology.pattern.route(topology.parsed, SECOND, "dead")
    answers: Counter[str] = Counter()
    with pipeline(address_of(vhost), "test") as channel:
        for each in range(first, first + number):
            stated = build_properties(message_id=f"m{each}", delivery_mode=2)
            body = b"%04d" % each
            channel.publish(Publish(route.exchange, route.routing_key, stated, body), each)
        while channel.in_flight:
            answers.update(answer.kind for _, answer in channel.answers(1.0))
    return answers


def prepared(cluster: Cluster) -> tuple[Topology, DeadLetterQueue]:
    """Delays into a queue that is parked, led by the second node and reached by the first."""
    broker = make_broker(cluster.vhost_at("two"))
    topology = levels(broker, "work")
    with Management(broker.address) as management:
        for name in ("dead", replays.TARGET):
            management.declare_queue(Queue(name, arguments=Arguments({"x-queue-type": "quorum"})))
        for binding in topology.pattern.route(topology.parsed, SECOND, "dead").declares.bindings:
            management.bind(binding)
    reach_by(broker, cluster.vhost_at("one"))
    now = timezone.now()
    watched = DeadLetterQueue.objects.create(
        broker=broker,
        queue="dead",
        is_confirmed=True,
        decided_at=now,
        parks_automatically=True,
        watched_at=now,
    )
    return Topology.objects.get(pk=topology.pk), watched


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("generation", [NEWEST])
def test_a_node_that_goes_loses_no_message_and_changes_no_answer(
    tmp_path: Path, settings: Settings, generation: str, fault: str
) -> None:
    """While messages are recorded and parked, and while they are replayed."""
    with Cluster(tmp_path / "cluster", generation) as cluster:
        vhost = cluster.vhost_at("one")
        topology, watched = prepared(cluster)
        assert topology.tap_type == "quorum"
        everything = {f"m{number}" for number in range(MESSAGES)}
        third = MESSAGES // 3
        with (
            running(partial(keep_running, recorder_of(topology))),
            running(partial(keep_running, parker_of(watched))),
        ):
            answers = send(vhost, topology, 0, third)
            with struck(cluster, fault):
                answers += send(vhost, topology, third, third)
            answers += send(vhost, topology, 2 * third, third)
            assert answers == {CONFIRMED.kind: MESSAGES}
            rows = ParkedMessage.objects.values("message_id").distinct()
            eventually(lambda: rows.count() == MESSAGES, "all are parked", seconds=PATIENCE)

            def recorded() -> Counter[str]:
                events = logged(settings.EVENT_LOG)
                return Counter(e.message_id for e in events if e.kind == "scheduled")

            eventually(lambda: set(recorded()) == everything, "all are recorded", seconds=PATIENCE)
        unmarked = Counter(
            event.message_id
            for event in logged(settings.EVENT_LOG)
            if event.kind == "scheduled" and not event.redelivered
        )
        assert set(unmarked.values()) == {1}
        assert not Gap.objects.exists()
        parked = list(ParkedMessage.objects.filter(repeat_of=None))
        assert Counter(one.message_id for one in parked) == Counter(everything)

        batch = replays.a_replay(vhost, 0, of=parked)
        with replays.replaying():
            eventually(partial(replays.has_done, batch, third), "it is at work", seconds=PATIENCE)
            with struck(cluster, fault):
                pass
            eventually(partial(replays.has, batch, BatchState.DONE), "it ends", seconds=PATIENCE)
        replays.lost_nothing(batch, replays.arrived(vhost))
        replays.adds_up(batch)


@pytest.mark.long
@pytest.mark.parametrize("generation", SUITES)
def test_a_replaced_tap_is_read_when_its_node_is_back(
    tmp_path: Path, settings: Settings, generation: str
) -> None:
    """What the recorder had not read is in it, and what it missed meanwhile is a gap."""

    def recorded() -> set[str]:
        found = {one.message_id for one in logged(settings.EVENT_LOG) if one.kind == "scheduled"}
        return found - names(TRIALS, 2 * TRIALS)

    trials = count(TRIALS)

    def confirms() -> bool:
        return send(vhost, topology, next(trials), 1) == {CONFIRMED.kind: 1}

    def names(first: int, last: int) -> set[str]:
        return {f"m{number}" for number in range(first, last)}

    def is_deleted() -> bool:
        now = Topology.objects.get(pk=topology.pk)
        return not now.retired_tap and not read_taps(now)

    with Cluster(tmp_path / "cluster", generation) as cluster:
        vhost = cluster.vhost_at("one")
        broker = make_broker(cluster.vhost_at("two"))
        topology = levels(broker, "work", "classic")
        with Management(broker.address) as management:
            management.declare_queue(Queue("dead"))
        with publisher(broker.address, "test") as channel:
            channel.declare(topology.pattern.route(topology.parsed, SECOND, "dead").declares)
        reach_by(broker, vhost)
        topology = Topology.objects.get(pk=topology.pk)
        task = partial(keep_running, recorder_of(topology))
        with running(task):
            send(vhost, topology, 0, 50)
            eventually(lambda: recorded() == names(0, 50), "the tap is read")
        send(vhost, topology, 50, 50)
        cluster["two"].kill()
        with running(task):
            send(vhost, topology, 100, 50)
            replace_tap(None, topology)
            # 3.10 refuses for some seconds after a node was lost, whatever is bound.
            eventually(confirms, "publishes are confirmed again", seconds=10)
            assert send(vhost, topology, 150, 50) == {CONFIRMED.kind: 50}
            eventually(
                lambda: recorded() == names(0, 50) | names(150, 200),
                "the new tap is read",
                seconds=PATIENCE,
            )
            cluster.heal()
            send(vhost, topology, 200, 50)
            eventually(is_deleted, "the old tap is read and deleted", seconds=PATIENCE)
            assert recorded() == names(0, 100) | names(150, 250)
            send(vhost, topology, 250, 50)
            wanted = names(0, 100) | names(150, 300)
            eventually(lambda: recorded() == wanted, "the new tap is read again")
    events = [one for one in logged(settings.EVENT_LOG) if one.kind == "scheduled"]
    unmarked = Counter(one.message_id for one in events if not one.redelivered)
    assert set(unmarked.values()) == {1}
    (gap,) = Gap.objects.all()
    assert "did not exist, or its node was down" in gap.why
