"""A broker with the addresses of all nodes of its cluster, of which some do not answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pytest_django import Settings

from delayboard.models import BatchState, DeadLetterQueue, ParkedMessage
from delayboard.now.board import BROKER_AGE, overview
from delayboard.worker import check_brokers
from delayboard.worker.supervise import keep_one_running
from delayboard.worker.tasks import Task, parker_of, recorder_of, repeat
from tests.analytics.builders import logged
from tests.brokers import NEWEST, SUITES
from tests.builders import eventually, make_broker, make_user, running
from tests.clusters import NAMES, Cluster
from tests.faults import replays
from tests.faults import test_parking as parking
from tests.faults.alarms import control
from tests.faults.freezing import frozen
from tests.outside.test_cluster import (
    AGAIN,
    PATIENCE,
    SECOND,
    levels,
    unmarked_lines,
    unmarked_rows,
)
from tests.stopwatch import stopwatch
from topology import snapshots
from topology.broker.amqp.pipeline import CONFIRMED, Pipeline, pipeline
from topology.broker.errors import BrokerError
from topology.broker.management.client import Management
from topology.broker.properties.read import build_properties
from topology.definitions import Arguments, Queue
from topology.message import Publish
from topology.models import Broker, Role, Topology

pytestmark = pytest.mark.django_db(transaction=True)
# Seconds until an operator sees what happened, and until the work goes on after the cluster does.
SEEN_WITHIN, GOES_ON_WITHIN = 10.0, 15.0
# Delayboard tries the second node first: it is the one that goes.
ORDER = ("two", "one", "three")
REPLAYED = 3000
# What they take without a fault, much rounded up.
REPLAY_SECONDS = 10.0


@pytest.fixture(autouse=True)
def event_log(settings: Settings, tmp_path: Path) -> None:
    settings.EVENT_LOG = tmp_path / "log"


@dataclass
class Installation:
    """A broker with three addresses, whose delays end in a queue that is parked."""

    cluster: Cluster
    broker: Broker
    topology: Topology
    watched: DeadLetterQueue
    folder: Path
    published: int = 0
    # Numbers without a confirm.
    unconfirmed: set[int] = field(default_factory=set)

    def publish(self, stop: Event) -> None:
        """Numbered messages until `stop`, by way of all addresses, as a careful application does:
        each is published again with a mark until RabbitMQ confirms it."""
        while not stop.is_set():
            try:
                with pipeline(self.broker.address, "load") as channel:
                    while not stop.wait(0.05):
                        self._publish_some(channel, 5)
            except BrokerError:
                stop.wait(0.2)

    def publish_now(self, number: int) -> None:
        """So many more, and all that have no confirm."""

        def confirms() -> bool:
            nonlocal number
            with suppress(BrokerError), pipeline(self.broker.address, "load") as channel:
                self._publish_some(channel, number)
            number = 0
            return not self.unconfirmed

        eventually(confirms, "RabbitMQ confirms", seconds=PATIENCE)

    def _publish_some(self, channel: Pipeline[int], number: int) -> None:
        again = sorted(self.unconfirmed)
        fresh = range(self.published, self.published + number)
        self.published += number
        self.unconfirmed |= set(fresh)
        route = self.topology.pattern.route(self.topology.parsed, SECOND, "dead")
        for one in (*again, *fresh):
            headers = {AGAIN: True} if one in again else {}
            stated = build_properties(headers, message_id=f"n{one}", delivery_mode=2)
            channel.publish(Publish(route.exchange, route.routing_key, stated, b"x"), one)
        while channel.in_flight:
            for one, answer in channel.answers(1.0):
                self.unconfirmed -= {one} if answer == CONFIRMED else set()

    @property
    def names(self) -> set[str]:
        return {f"n{number}" for number in set(range(self.published)) - self.unconfirmed}

    def recorded(self) -> set[str]:
        return {one.message_id for one in logged(self.folder) if one.kind == "scheduled"}

    def parked(self) -> set[str]:
        return set(ParkedMessage.objects.values_list("message_id", flat=True))

    def has_all(self) -> bool:
        return self.names <= self.parked() and self.names <= self.recorded()

    def finds(self, words: str) -> str:
        """The first sentence of Now with these words."""
        broker = Broker.objects.get(pk=self.broker.pk)
        found = overview([broker], timezone.now(), BROKER_AGE)
        sentences = [one.sentence for one in (*found.troubles, *found.warnings)]
        return next((one for one in sentences if words in one), "")

    @contextmanager
    def at_work(self) -> Iterator[None]:
        addresses = partial(
            repeat, check_brokers.watch_addresses, check_brokers.ADDRESSES_EVERY_SECONDS
        )
        watch = Task("addresses", "Check of cluster addresses", addresses)
        with (
            running(partial(keep_one_running, recorder_of(self.topology))),
            running(partial(keep_one_running, parker_of(self.watched))),
            running(partial(keep_one_running, watch)),
        ):
            yield

    def goes_on(self) -> None:
        """What is published now is recorded and parked, and changes and pages work."""
        self.publish_now(20)
        with stopwatch() as watch:
            eventually(self.has_all, "all is recorded and parked", seconds=PATIENCE)
        assert watch.seconds < GOES_ON_WITHIN
        with stopwatch() as watch:
            eventually(self._changes, "a change is made", seconds=PATIENCE)
            client = Client()
            client.force_login(make_user(f"ada{self.published}", Role.ADMIN))
            page = reverse("topology:broker", args=[self.broker.slug])
            assert client.get(page).status_code == 200
            eventually(self._answers, "the pages have new numbers", seconds=PATIENCE)
        assert watch.seconds < GOES_ON_WITHIN

    def _answers(self) -> bool:
        return snapshots.fresh(Broker.objects.get(pk=self.broker.pk)).is_reachable

    def _changes(self) -> bool:
        broker = Broker.objects.get(pk=self.broker.pk)
        try:
            with Management(broker.address) as management:
                quorum = Arguments({"x-queue-type": "quorum"})
                management.declare_queue(Queue(f"made-{self.published}", arguments=quorum))
        except BrokerError:
            return False
        return True

    def sees(self, words: str) -> str:
        """The sentence of Now with these words, that comes within SEEN_WITHIN."""
        with stopwatch() as watch:
            find = partial(self.finds, words)
            sentence = eventually(find, f"Now reports {words}", seconds=PATIENCE)
        assert watch.seconds < SEEN_WITHIN
        return sentence

    def all_is_there(self) -> None:
        """Nothing is lost, and what is double is marked."""
        eventually(self.has_all, "all is recorded and parked", seconds=PATIENCE)
        for unmarked in (unmarked_lines(self.folder), unmarked_rows(ParkedMessage.objects.all())):
            assert set(unmarked.values()) == {1}


def install(cluster: Cluster, folder: Path) -> Installation:
    vhosts = [cluster.vhost_at(name) for name in ORDER]
    broker = make_broker(vhosts[0])
    broker.amqp_addresses = ", ".join(f"127.0.0.1:{cluster[name].amqp_port}" for name in ORDER)
    broker.management_urls = ", ".join(one.management_url for one in vhosts)
    broker.save()
    topology = levels(broker, "work")
    quorum = Arguments({"x-queue-type": "quorum"})
    with Management(broker.address) as management:
        for name in ("dead", replays.TARGET):
            management.declare_queue(Queue(name, arguments=quorum))
        for binding in topology.pattern.route(topology.parsed, SECOND, "dead").declares.bindings:
            management.bind(binding)
    return Installation(cluster, broker, topology, parking.confirmed(broker), folder)


def test_a_lost_node_and_a_lost_plugin_stop_nothing(tmp_path: Path, settings: Settings) -> None:
    """The node that Delayboard is connected to is killed; then another one loses its plugin."""
    with Cluster(tmp_path / "cluster", NEWEST) as cluster:
        here = install(cluster, settings.EVENT_LOG)
        with here.at_work():
            here.goes_on()
            cluster["two"].kill()
            sentence = here.sees("1 of 3 AMQP addresses")
            port = cluster["two"].amqp_port
            assert sentence.startswith(
                f"1 of 3 AMQP addresses of Test broker does not answer (127.0.0.1:{port}: Nothing "
                "listens, since "
            )
            assert "1 of 3 nodes is down (two@localhost)" in here.sees("is down")
            here.goes_on()
            stop = "application:stop(rabbitmq_management)."
            control(cluster["one"], "eval", stop)
            here.sees("2 of 3 management addresses")
            here.goes_on()
            control(cluster["one"], "eval", stop.replace("stop", "start"))
            cluster.heal()
            eventually(lambda: not here.finds("of 3"), "all answer again")
        here.all_is_there()


FAULTS = ("killed", "paused", "cut off")


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("generation", SUITES)
def test_the_work_goes_on_under_load_at_the_other_nodes(
    tmp_path: Path, settings: Settings, generation: str, fault: str
) -> None:
    """Also where the smaller side of a partition pauses. A replay goes on too."""
    folder = tmp_path / "cluster"
    with Cluster(folder, generation, pauses_minority=True) as cluster:
        here = install(cluster, settings.EVENT_LOG)
        messages = replays.parked_messages(here.broker, REPLAYED)
        with here.at_work(), running(here.publish):
            batch = replays.a_replay(cluster.vhost_at("one"), 0, of=messages)
            with replays.replaying(), struck(cluster, fault):
                here.sees("of 3")
                eventually(lambda: cluster.running("one") == {"one", "three"}, "it is missed")
                before = here.published
                with stopwatch() as watch:
                    eventually(lambda: here.published > before + 50, "the load goes on")
                    done = partial(replays.has, batch, BatchState.DONE)
                    eventually(done, "the replay ends", seconds=PATIENCE)
                assert watch.seconds < GOES_ON_WITHIN + REPLAY_SECONDS
            cluster.heal()
        with here.at_work():
            here.goes_on()
            here.all_is_there()
        replays.lost_nothing(batch, replays.arrived(cluster.vhost_at("one")))


@contextmanager
def struck(cluster: Cluster, fault: str) -> Iterator[None]:
    if fault == "killed":
        cluster["two"].kill()
        yield
        return
    with frozen(cluster["two"]) if fault == "paused" else cluster.cut_off("two"):
        yield


@pytest.mark.long
@pytest.mark.parametrize("generation", ["4.0", NEWEST])
def test_a_rolling_restart_under_load_loses_nothing(
    tmp_path: Path, settings: Settings, generation: str
) -> None:
    """Each node in turn, as an upgrade does it. RabbitMQ 4.3 refuses to join 4.0 (the feature flag
    amqp_filter_set_bug), so that the versions stay."""
    with Cluster(tmp_path / "cluster", generation) as cluster:
        here = install(cluster, settings.EVENT_LOG)
        with here.at_work(), running(here.publish):
            for name in NAMES:
                cluster[name].stop()
                here.sees("1 of 3 AMQP addresses")
                before = here.published
                eventually(lambda: here.published > before + 50, "the load goes on")  # noqa: B023
                cluster.heal()
        with here.at_work():
            here.goes_on()
            here.all_is_there()
