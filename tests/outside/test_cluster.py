"""Clusters of three nodes, of which one dies, pauses or is cut off."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path

import pika
import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pika.exceptions import NackError
from pytest_django import Settings

from analytics.models import Gap
from delayboard.dead_letters.replay import batch_state
from delayboard.models import BatchState, DeadLetterQueue, ParkedMessage, ReplayBatch, TargetMode
from delayboard.now.board import overview
from delayboard.now.problems import Problem
from delayboard.worker.supervise import keep_one_running
from delayboard.worker.tasks import parker_of, recorder_of
from tests.analytics.builders import logged
from tests.brokers import NEWEST, SUITES, Vhost
from tests.builders import (
    address_of,
    applied_topology,
    eventually,
    make_broker,
    make_tapped,
    make_user,
    running,
)
from tests.clusters import NAMES, Cluster
from tests.delayboard.builders import a_route
from tests.faults import replays
from tests.faults import test_parking as parking
from tests.faults.freezing import frozen
from tests.publishing import publisher
from topology import work
from topology.broker.amqp.consumer import Consumer
from topology.broker.amqp.pipeline import CONFIRMED, pipeline
from topology.broker.management.client import Management
from topology.broker.properties.read import build_properties, read_properties
from topology.definitions import Arguments, Queue
from topology.message import DOUBLED_HEADER, REPLAY_HEADER, Publish
from topology.models import Broker, Role, Topology
from topology.operations.replace_tap import read_taps, replace_tap
from topology.operations.topology_rows import create_topology
from topology.patterns.delay_levels import params as delay_levels_params
from topology.patterns.delay_levels.pattern import delay_levels
from topology.structure.taps import TapType

pytestmark = pytest.mark.django_db(transaction=True)
PATIENCE = 120.0
MESSAGES = 3000
# The number of the first message that only tries whether RabbitMQ confirms.
TRIALS = 1000
SECOND = timedelta(seconds=1)
# A publisher of the tests waits so many seconds for answers, longer than any that came.
LONGEST_ANSWER = 40.0
# So many seconds a partition lasts: longer than nodes and connections wait for a sign of life.
PARTITION = 28.0
# Its mark of what may have arrived before.
AGAIN = "published-again"
MARKS = {AGAIN, DOUBLED_HEADER}


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
    if tap_type is not None:
        return applied_topology(make_tapped(broker, delay_levels.KIND, params, tap_type))
    row = create_topology(None, broker, delay_levels.KIND, params)
    return applied_topology(row)


def reach_by(broker: Broker, vhost: Vhost) -> None:
    """From now on Delayboard connects to the node whose address this is."""
    parts = pika.URLParameters(vhost.amqp_url)
    Broker.objects.filter(pk=broker.pk).update(
        amqp_addresses=f"{parts.host}:{parts.port}", management_urls=vhost.management_url
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
    """Publish numbered messages by way of the shortest delay to the dead letters; the answers.

    As a careful application does: what is refused or has no answer may have arrived, and is
    published again with a mark, over a new connection, until everything is confirmed.
    """
    route = topology.pattern.route(topology.parsed, SECOND, "dead")
    answers: Counter[str] = Counter()
    unconfirmed = set(range(first, first + number))
    headers: dict[str, bool] = {}
    until = time.monotonic() + PATIENCE
    while unconfirmed:
        assert time.monotonic() < until, f"{len(unconfirmed)} were never confirmed: {answers}"
        with pipeline(address_of(vhost), "test") as channel:
            for each in sorted(unconfirmed):
                stated = build_properties(headers, message_id=f"m{each}", delivery_mode=2)
                body = b"%04d" % each
                channel.publish(Publish(route.exchange, route.routing_key, stated, body), each)
            waits_until = time.monotonic() + LONGEST_ANSWER
            while channel.in_flight and time.monotonic() < waits_until:
                answered = channel.answers(1.0)
                answers.update(answer.kind for _, answer in answered)
                unconfirmed -= {each for each, answer in answered if answer == CONFIRMED}
            answers.update(answer.kind for _, answer in channel.abandon())
        headers = {AGAIN: True}
    return answers


def unmarked_lines(folder: Path) -> Counter[str]:
    """How often the log has a message that neither RabbitMQ nor its publisher marked.

    A pipeline marks too what it publishes again after RabbitMQ closed its channel.
    """
    return Counter(
        event.message_id
        for event in logged(folder)
        if event.kind == "scheduled"
        and not event.redelivered
        and not any(mark in event.headers_json for mark in MARKS)
    )


def unmarked_rows(parked: Iterable[ParkedMessage]) -> Counter[str]:
    """The same of what is parked."""
    return Counter(
        one.message_id
        for one in parked
        if one.repeat_of_id is None
        and not MARKS & read_properties(bytes(one.properties)).headers.keys()
    )


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
    watched = parking.confirmed(broker)
    return Topology.objects.get(pk=topology.pk), watched


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("generation", ["3.10", NEWEST])
def test_a_node_that_goes_loses_no_message_and_changes_no_answer(
    tmp_path: Path, settings: Settings, generation: str, fault: str
) -> None:
    """While messages are recorded and parked, and while they are replayed.

    3.10 itself refuses what a new channel publishes just after its queue's node was killed, and
    never answers some of what is published while that is paused, with and without a tap.
    """
    with Cluster(tmp_path / "cluster", generation) as cluster:
        vhost = cluster.vhost_at("one")
        topology, watched = prepared(cluster)
        assert topology.tap_type == "quorum"
        everything = {f"m{number}" for number in range(MESSAGES)}
        third = MESSAGES // 3
        with (
            running(partial(keep_one_running, recorder_of(topology))),
            running(partial(keep_one_running, parker_of(watched))),
        ):
            answers = send(vhost, topology, 0, third)
            with struck(cluster, fault):
                answers += send(vhost, topology, third, third)
            answers += send(vhost, topology, 2 * third, third)
            assert answers[CONFIRMED.kind] == MESSAGES
            if generation == NEWEST:
                assert answers == {CONFIRMED.kind: MESSAGES}
            rows = ParkedMessage.objects.values("message_id").distinct()
            eventually(lambda: rows.count() == MESSAGES, "all are parked", seconds=PATIENCE)

            def recorded() -> set[str]:
                events = logged(settings.EVENT_LOG)
                return {one.message_id for one in events if one.kind == "scheduled"}

            eventually(lambda: recorded() == everything, "all are recorded", seconds=PATIENCE)
        assert not Gap.objects.exists()
        parked = {one.message_id: one for one in ParkedMessage.objects.filter(repeat_of=None)}
        assert parked.keys() == everything
        # One of which the first copy was lost on its way has only a marked one.
        again = answers.total() - MESSAGES
        for unmarked in (
            unmarked_lines(settings.EVENT_LOG),
            unmarked_rows(ParkedMessage.objects.all()),
        ):
            assert set(unmarked.values()) == {1}
            assert len(unmarked) >= MESSAGES - again

        batch = replays.a_replay(vhost, 0, of=list(parked.values()))
        with replays.replaying():
            eventually(partial(replays.has_done, batch, third), "it is at work", seconds=PATIENCE)
            with struck(cluster, fault):
                pass
            eventually(partial(replays.has, batch, BatchState.DONE), "it ends", seconds=PATIENCE)
        arrived = replays.arrived(vhost)
        replays.lost_nothing(batch, arrived)
        replays.adds_up(batch)
        assert arrived.keys() <= everything
        assert replays.fresh(batch).failed == replays.fresh(batch).returned == 0


def ends(batch: ReplayBatch) -> None:
    """Within a lease, or another worker would publish the same messages again."""
    ended = partial(replays.has, batch, BatchState.DONE)
    with replays.replaying():
        eventually(ended, "it ends", seconds=work.LEASE.total_seconds())


def outcomes(batch: ReplayBatch) -> dict[str, int]:
    """How many messages ended how; the page says nothing else."""
    replays.adds_up(batch)
    return {state: number for state, number in replays.fresh(batch).counts().items() if number}


def taken_out(vhost: Vhost, queue: str) -> list[tuple[str, str]]:
    """The message id and the replay id of all that comes from a queue until nothing comes."""
    came = []
    with Consumer(address_of(vhost), queue) as consumer:
        while found := consumer.batch(limit=1000, limit_bytes=10**8, wait=5.0):
            for one in found:
                properties = one.message.properties
                name = one.message.headers.get(REPLAY_HEADER)
                came.append((properties.message_id or "", str(name)))
            consumer.ack(through=found[-1].tag)
    return came


@pytest.mark.long
def test_a_replay_that_a_dead_tap_has_refused_is_neither_denied_nor_repeated_unmarked(
    tmp_path: Path,
) -> None:
    """RabbitMQ nacks every message for the classic tap alone, and the real queue has them all."""
    number = 50
    with Cluster(tmp_path / "cluster", NEWEST) as cluster:
        vhost = cluster.vhost_at("one")
        broker = make_broker(cluster.vhost_at("two"))
        topology = levels(broker, "classic", "classic")
        with Management(broker.address) as management:
            quorum = Arguments({"x-queue-type": "quorum"})
            management.declare_queue(Queue(replays.TARGET, arguments=quorum))
            route = topology.pattern.route(topology.parsed, SECOND, replays.TARGET)
            for binding in route.declares.bindings:
                management.bind(binding)
        reach_by(broker, vhost)
        broker = Broker.objects.get(pk=broker.pk)
        cluster["two"].kill()
        messages = replays.parked_messages(broker, number)

        first = replays.a_replay(
            vhost,
            0,
            a_route(route.exchange, route.routing_key),
            of=messages,
            exchange=route.exchange,
            key=route.routing_key,
            mode=TargetMode.TYPED,
        )
        ends(first)
        assert outcomes(first) == {"unknown": number}
        assert {"It may have arrived" in one.error for one in first.items.all()} == {True}
        client = Client()
        client.force_login(make_user("ada", Role.ADMIN))
        client.post(reverse("replay_rest", args=[first.pk]))
        second = ReplayBatch.objects.latest("pk")
        assert (second.state, second.selected) == (BatchState.DRAFT, number), second.state_why
        batch_state.start(None, second, despite_verdict=True)
        ends(second)
        assert outcomes(second) == {"unknown": number}
        assert replays.fresh(second).doubled == number
        came = taken_out(vhost, replays.TARGET)
        assert Counter(name for name, _ in came) == {f"m{each}": 2 for each in range(number)}
        assert len(set(came)) == number


@pytest.mark.long
@pytest.mark.parametrize("generation", SUITES)
def test_what_a_partition_has_parked_twice_is_marked(tmp_path: Path, generation: str) -> None:
    """The queue's leader takes back what it had given to the node that it lost."""
    number = 10_000
    with Cluster(tmp_path / "cluster", generation) as cluster:
        broker = make_broker(cluster.vhost_at("one"))
        with Management(broker.address) as management:
            quorum = Arguments({"x-queue-type": "quorum"})
            management.declare_queue(Queue("dead", arguments=quorum))
        reach_by(broker, cluster.vhost_at("two"))
        watched = parking.confirmed(Broker.objects.get(pk=broker.pk))
        parking.send(cluster.vhost_at("one"), number)
        with running(partial(keep_one_running, parker_of(watched))):
            eventually(lambda: ParkedMessage.objects.count() > number // 20, "it is at work")
            with cluster.cut_off("two"):
                time.sleep(PARTITION)
            cluster.heal()
            eventually(lambda: parking.distinct() == number, "all are parked", seconds=PATIENCE)
            eventually(
                lambda: parking.is_empty(cluster.vhost_at("one")), "it is empty", seconds=PATIENCE
            )
        parking.all_is_there_and_adds_up(number)


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
        task = partial(keep_one_running, recorder_of(topology))
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
