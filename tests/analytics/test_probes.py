"""Which delay a probe has, what an arrival records, and when a probe is overdue."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from analytics.events import decode
from analytics.launch import TABLES
from analytics.models import Fact, Probe
from analytics.probes.keep_probing import mark_late, take
from analytics.probes.send_probe import LONGEST, USUAL, probe_delays
from analytics.results.load import Cut, figures_by_cut
from tests.builders import make_broker, make_pair
from tests.topology.builders import delivered
from topology.broker.amqp.frames import Delivery
from topology.broker.properties.read import build_properties
from topology.message import PROBE_SENT_HEADER, Message
from topology.models import Topology
from topology.patterns.delay_levels.params import Params as Levels
from topology.patterns.delay_levels.pattern import delay_levels
from topology.patterns.hold_queues.params import Params as Hold
from topology.patterns.hold_queues.pattern import hold_queues

pytestmark = pytest.mark.both_databases
SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)


def test_the_delay_is_one_of_those_seen_as_the_pattern_gives_them() -> None:
    levels = Levels("own", "shop", 20)
    seen = [SECOND / 2, 90 * SECOND, 2 * HOUR, timedelta(days=400)]
    assert probe_delays(delay_levels, levels, seen) == [SECOND, 90 * SECOND]


def test_without_seen_ones_it_is_one_on_offer_or_a_usual_one() -> None:
    hold = Hold("orders", ("created",), (60 * SECOND, 300 * SECOND, 2 * HOUR))
    assert probe_delays(hold_queues, hold, []) == [60 * SECOND, 300 * SECOND]
    assert probe_delays(hold_queues, hold, [7 * SECOND]) == [60 * SECOND, 300 * SECOND]
    assert probe_delays(hold_queues, hold, [300 * SECOND]) == [300 * SECOND]
    long = Hold("orders", ("created",), (2 * HOUR, 3 * HOUR))
    assert probe_delays(hold_queues, long, []) == [2 * HOUR] > [LONGEST]
    small = Levels("own", "shop", 3)
    assert probe_delays(delay_levels, small, []) == [one for one in USUAL if one < 8 * SECOND]


def test_figures_of_probes_are_no_figures_of_messages() -> None:
    of = {"broker": "b", "topology": "shop", "delay_bucket": 2}
    tables: dict[str, list[Any]] = {name: [] for name in TABLES}
    tables["probes"] = [
        of | {"bucket": 5, "has_left": True, "messages": 7},
        of | {"bucket": None, "has_left": True, "messages": 2},
        of | {"bucket": None, "has_left": False, "messages": 1},
    ]
    figures = figures_by_cut(tables, {}, ())[Cut("b", topology="shop")]
    assert figures.within_group("probes_late", 2) == {5: 7}
    assert [figures.total(f"probes_{fate}") for fate in ("unmeasured", "missing")] == [2, 1]
    assert (figures.measured, figures.messages, figures.total("ledger")) == (0, 0, 0)


@pytest.fixture
def pair(db: None) -> Topology:
    return make_pair(make_broker(), delay="5s")


def sent(topology: Topology, ago: timedelta, *, is_confirmed: bool = True) -> Probe:
    at = datetime.now(UTC) - ago
    return Probe.objects.create(
        topology=topology,
        message_id=f"probe-{Probe.objects.count()}",
        delay=5 * SECOND,
        created_at=at,
        sent_at=at if is_confirmed else None,
    )


def arrival(
    probe: Probe, at: datetime, *, redelivered: bool = False, stamp: object = ""
) -> Delivery:
    headers = {PROBE_SENT_HEADER: stamp} if stamp else {}
    properties = build_properties(headers, message_id=probe.message_id)
    return delivered(Message("orders", "key", properties, b"", redelivered), 1, at)


def test_an_arrival_counts_once_however_often_it_is_delivered(pair: Topology) -> None:
    probe = sent(pair, 6 * SECOND)
    at = probe.due_at + SECOND / 10
    assert take(pair, arrival(probe, at), is_in_time=True)
    assert take(pair, arrival(probe, at + SECOND, redelivered=True), is_in_time=True)
    probe.refresh_from_db()
    assert probe.lateness == SECOND / 10
    (event,) = [decode(row.line.encode()) for row in Fact.objects.all()]
    assert (event.kind, event.source, event.caught_up) == ("delivered", "probe", True)
    assert (event.message_id, event.requested_delay_ms) == (probe.message_id, 5000)


@pytest.mark.parametrize(("is_in_time", "redelivered"), [(False, False), (True, True)])
def test_an_arrival_that_waited_for_a_worker_has_no_lateness(
    pair: Topology, is_in_time: bool, redelivered: bool
) -> None:
    probe = sent(pair, HOUR)
    late = arrival(probe, datetime.now(UTC), redelivered=redelivered)
    assert take(pair, late, is_in_time=is_in_time)
    probe.refresh_from_db()
    assert (probe.status, probe.lateness) == ("arrived, not measured", None)


def test_what_nobody_sent_is_no_arrival(pair: Topology) -> None:
    stranger = Probe(topology=pair, message_id="made up", delay=SECOND)
    assert not take(pair, arrival(stranger, datetime.now(UTC)), is_in_time=True)
    assert not Fact.objects.exists()


@pytest.mark.parametrize("stamp", ["soon", -(2**62), 2**62])
def test_an_unconfirmed_probe_that_arrives_was_sent(pair: Topology, stamp: object) -> None:
    probe = sent(pair, 6 * SECOND, is_confirmed=False)
    at = datetime.now(UTC)
    assert take(pair, arrival(probe, at, redelivered=True, stamp=stamp), is_in_time=True)
    probe.refresh_from_db()
    assert probe.sent_at is not None
    assert probe.created_at <= probe.sent_at <= at
    events = [decode(row.line.encode()) for row in Fact.objects.order_by("pk")]
    assert [(one.kind, one.caught_up) for one in events] == [
        ("scheduled", True),
        ("delivered", False),
    ]


def test_only_what_was_sent_is_overdue_and_given_up(pair: Topology) -> None:
    fresh, late = sent(pair, 30 * SECOND), sent(pair, 90 * SECOND)
    lost = sent(pair, 2 * HOUR)
    unknown = [sent(pair, ago, is_confirmed=False) for ago in (90 * SECOND, 2 * HOUR)]
    mark_late(pair)
    rows = {row.pk: row for row in Probe.objects.all()}
    assert [rows[one.pk].status for one in (fresh, late, lost)] == [
        "on its way",
        "overdue",
        "not arrived within an hour of due",
    ]
    assert rows[unknown[0].pk].status == "not confirmed"
    assert unknown[1].pk not in rows
    assert take(pair, arrival(lost, datetime.now(UTC)), is_in_time=True)
    lost.refresh_from_db()
    assert lost.status == "arrived"
