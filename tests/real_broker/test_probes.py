"""Probes on real brokers: they take the real route, reach only their queue, and leave nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from threading import Event

import pytest

from analytics.facts import write_facts
from analytics.models import Fact, Probe, ScheduledMessage
from analytics.probes import keep_probing
from analytics.probes import send_probe as sending
from analytics.probes.send_probe import send_probe
from analytics.recorder.record import record
from analytics.scheduled.summaries.destinations import update_missing_bindings
from delayboard.worker.tasks import probes_of
from tests.analytics.builders import follow_log, logged
from tests.brokers import NEWEST, Vhost, every_generation
from tests.builders import (
    address_of,
    applied_levels,
    applied_pair,
    applied_topology,
    declare_in,
    eventually,
    make_broker,
    running,
)
from topology.broker.amqp.depths import live_depths
from topology.broker.management.client import Management
from topology.broker.management.observe import observe
from topology.definitions import Arguments, Binding, Definitions, Exchange, Queue
from topology.findings.find import find
from topology.models import AuditEntry, Probing, Topology
from topology.operations import adopt
from topology.operations.ownership import Refusal
from topology.operations.probes import start_probes, stop_probes
from topology.operations.provision import DriftCheck, apply, preview_removal, remove
from topology.operations.topology_rows import create_topology
from topology.patterns.delay_levels.params import Params as Levels
from topology.patterns.hold_queues.params import Params as Hold
from topology.provisioning.destinations import count_stuck
from topology.provisioning.recognition import recognize
from topology.snapshot import Snapshot

pytestmark = pytest.mark.django_db(transaction=True)
newest_only = pytest.mark.generations(NEWEST, only=True)
DELAY = timedelta(milliseconds=500)


@pytest.fixture(autouse=True)
def _short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "USUAL", (DELAY,))
    monkeypatch.setattr(keep_probing, "BACKLOG", DELAY / 5)


def pair(vhost: Vhost) -> tuple[Topology, str]:
    return applied_pair(vhost, delay="500ms"), "orders"


def levels(vhost: Vhost) -> tuple[Topology, str]:
    made = applied_levels(vhost, Levels("own", "shop", 4, DELAY))
    declare_in(vhost, Queue("shop"), Binding("shop.delay-delivery", "shop", "#.shop"))
    return made, "shop"


def hold(vhost: Vhost) -> tuple[Topology, str]:
    declare_in(
        vhost, Exchange("orders", "topic"), Queue("work"), Binding("orders", "work", "made.#")
    )
    broker = make_broker(vhost)
    params = Hold("orders", ("made",), (DELAY,))
    return applied_topology(create_topology(None, broker, "hold_queues", params)), "work"


def chain(vhost: Vhost) -> tuple[Topology, str]:
    """As rascal declares it."""
    wait = Arguments({"x-message-ttl": 500, "x-dead-letter-exchange": "retry"})
    declare_in(
        vhost,
        *(Exchange(name, "topic") for name in ("delay", "retry")),
        Queue("delay:500ms", arguments=wait),
        Queue("save"),
        Binding("delay", "delay:500ms", "delay.500ms"),
        Binding("retry", "save", "save.#"),
    )
    broker = make_broker(vhost)
    made, _ = adopt.adopt(None, broker, "retry_chain", "save")
    return made, "save"


def probing(topology: Topology) -> Callable[[Event], None]:
    """The worker's task."""

    def run(stop: Event) -> None:
        probes_of(topology, "test").run(stop=stop, beat=lambda details: None)

    return run


def arrived(topology: Topology) -> Probe:
    rows = Probe.objects.filter(topology=topology, arrived_at__isnull=False)
    return eventually(rows.first, "a probe has arrived")


def seen(vhost: Vhost) -> Definitions:
    with Management(address_of(vhost)) as management:
        return observe(management).declared


def check_way(vhost: Vhost, made: Topology, real: str, log: Path) -> None:
    """Probes on, one arrives, in sync and without finding; off again, and all is as before."""
    before = seen(vhost)
    start_probes(None, made)
    with running(probing(made)):
        probe = arrived(made)
        assert timedelta(0) <= (probe.lateness or -DELAY) < timedelta(seconds=5)
        assert live_depths(made.broker.address, [real, made.probe_queue]) == {
            real: 0,
            made.probe_queue: 0,
        }
        with Management(made.broker.address) as management:
            snapshot = observe(management)
        made.refresh_from_db()
        assert DriftCheck().update_rows(made.broker, snapshot) == 0
        named = [one for one in find(snapshot) if "delayboard-probe" in str(one)]
        assert named == []
        found = recognize(snapshot)
        assert not [one for one in found.foreign if "delayboard-probe" in str(one)]
        stop_probes(None, made)

        def is_off() -> bool:
            made.refresh_from_db()
            return made.probing == Probing.OFF

        eventually(is_off, "the probe queue is removed")
    held = {q.identity for q in seen(vhost).queues if q.arguments.number("x-expires")}
    assert list(seen(vhost).without(held)) == list(before)
    stop = Event()
    stop.set()
    write_facts(stop=stop, beat=lambda details: None)
    events = [event for event in logged(log) if event.source == "probe"]
    assert [event.kind for event in events] == ["scheduled", "delivered"]
    follow_log(log)
    assert not ScheduledMessage.objects.exists()


@pytest.mark.long
@newest_only
def test_a_probe_that_a_level_keeps_is_not_reported_as_a_stuck_message(
    vhost: Vhost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a restart of RabbitMQ, which tries what it could not route again after minutes."""
    monkeypatch.setattr(sending, "USUAL", (4 * DELAY,))
    made, _ = levels(vhost)
    start_probes(None, made)
    made.refresh_from_db()
    send_probe(made)
    with Management(made.broker.address) as management:
        for bound in made.probe_definitions.bindings:
            management.unbind(bound)

        def look() -> Snapshot | None:
            snapshot = observe(management)
            return snapshot if count_stuck(made.definitions.queues, snapshot) else None

        kept = eventually(look, "the level keeps the probe")
    assert update_missing_bindings(made, kept, kept) == []
    Probe.objects.all().delete()
    (row,) = update_missing_bindings(made, kept, kept)
    assert (row.destination, row.stuck) == ("", 1)


@pytest.mark.usefixtures("least_account")
@pytest.mark.parametrize("make", [levels, hold])
@newest_only
def test_a_probe_takes_the_way_of_messages(
    vhost: Vhost, event_log: Path, make: Callable[[Vhost], tuple[Topology, str]]
) -> None:
    check_way(vhost, *make(vhost), event_log)


@pytest.mark.usefixtures("least_account")
@every_generation
def test_a_probe_of_a_retry_pair_comes_past_its_work(vhost: Vhost, event_log: Path) -> None:
    check_way(vhost, *pair(vhost), event_log)
    actions = AuditEntry.objects.filter(action__startswith="probes ").order_by("pk")
    assert [row.action for row in actions] == ["probes enabled", "probes disabled"]


@pytest.mark.usefixtures("least_account")
@every_generation
def test_a_probe_of_an_adopted_chain_comes_past_its_work(vhost: Vhost, event_log: Path) -> None:
    check_way(vhost, *chain(vhost), event_log)


@newest_only
def test_taps_record_no_probes(vhost: Vhost, event_log: Path) -> None:
    made, _ = levels(vhost)
    start_probes(None, made)
    with running(partial(lambda stop: record(made.pk, stop=stop, beat=lambda counters: None))):
        with running(probing(made)):
            arrived(made)
        eventually(
            lambda: live_depths(made.broker.address, [made.tap_queue])[made.tap_queue] == 0,
            "the tap is read",
        )
    assert [event for event in logged(event_log) if event.source == "tap"] == []


@pytest.mark.usefixtures("least_account")
@newest_only
def test_a_topology_with_probes_is_deleted_with_their_queue(vhost: Vhost, event_log: Path) -> None:
    made, _ = pair(vhost)
    start_probes(None, made)
    send_probe(made)
    made.refresh_from_db()
    assert ("queue", made.probe_queue) in {t.identity for t in preview_removal(made).deletes}
    remove(None, made, typed_name=made.name)
    assert [obj for obj in seen(vhost) if "orders" in str(obj)] == []
    assert not Probe.overdue().exists()


@newest_only
def test_probes_are_refused_where_a_consumer_would_get_them(vhost: Vhost, event_log: Path) -> None:
    made, _ = hold(vhost)
    declare_in(vhost, Queue("all"), Binding("orders", "all", "#"))
    with pytest.raises(Refusal, match="the queue all would receive them too"):
        start_probes(None, made)
    assert seen(vhost).queue(made.probe_queue) is None
    assert apply(None, made).created == 0
    assert not Fact.objects.exists()
