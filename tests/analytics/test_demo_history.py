"""The demo's four weeks: what the job and the page show of them is what was generated."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from analytics import launch
from analytics.events import PROBE
from analytics.models import Run
from analytics.models.run import RunState
from analytics.observation import unobserved
from analytics.results.contents import NARROW, PAGE_TABLES, WIDE
from analytics.results.figures import ENTERED, UNEXPLAINED
from analytics.results.period import Period
from analytics.results.read import report
from analytics.results.sections import sections
from analytics.results.summary import summarize
from delayboard.demo import history
from delayboard.demo.script import DAYS, LATE_NIGHT, LEVELS
from tests.analytics.warm_spark import RunModule
from topology.models import Broker, State, Topology
from topology.operations.topology_rows import create_topology


@pytest.fixture
def days() -> list[date]:
    yesterday = datetime.now(UTC).date() - timedelta(days=1)
    return [yesterday - timedelta(days=back) for back in reversed(range(DAYS))]


def test_the_history_is_computed_from_generated_events_and_says_so(
    broker: Broker,
    days: list[date],
    warm: RunModule,
    monkeypatch: pytest.MonkeyPatch,
    settings: Any,
    tmp_path: Path,
    admin_client: Client,
) -> None:
    monkeypatch.setattr(launch, "run_module", warm)
    settings.VAR = tmp_path
    levels = create_topology(None, broker, LEVELS.kind, LEVELS.params)
    Topology.objects.filter(pk=levels.pk).update(state=State.APPLIED)
    # It observes no deliveries, but the generated events have them.
    assert unobserved() == [levels]
    assert levels.slug == history.slug_of(LEVELS)
    history.load_history(broker, lambda *_: None)

    assert list(tmp_path.iterdir()) == []
    assert Run.objects.filter(state=RunState.DONE, lines=0).count() == DAYS
    found = report(Period("28", days[0], days[-1]), [broker])
    assert found.generated_days == days

    entered: Counter[str] = Counter()
    ended: Counter[str] = Counter()
    probes = 0
    retried: defaultdict[str, set[str]] = defaultdict(set)
    for event in history.generated(broker, days):
        if event.source == PROBE:
            probes += event.kind == "delivered"
            continue
        entered[event.broker] += event.kind == "scheduled"
        ended[event.broker] += event.kind == "delivered" and event.attempt > 0
        if event.death_reason and event.kind == "scheduled":
            retried[event.broker].add(event.message_id)
    for day, figures in found.days.items():
        name = history.label(broker.slug, day)
        assert figures.fate(ENTERED) == entered[name]
        assert figures.fate(UNEXPLAINED) == entered[name] - ended[name]
        assert figures.retried == len(retried[name])
    assert found.total.total("probes_late") == probes
    assert found.total.measured == ended.total()
    assert found.unexplained
    for message in found.unexplained:
        assert message.due_at.date() == message.day

    made = sections(found)
    # No message is parked of what was generated.
    assert not any(search for one in made.values() for search in one.searches)
    assert [key for key in (*WIDE, *NARROW, *PAGE_TABLES) if not made[key].rows] == ["error"]
    sentences = summarize(found.period, found.total, found.days, found.suspects, 100)
    reported = {sentence.headline: sentence for sentence in sentences}
    assert "between 02:00 and 04:00 (UTC)" in reported["Late deliveries."].text
    assert reported["Late deliveries."].first == days[LATE_NIGHT]
    assert "orders" in reported["More failures."].text
    assert "Missing days." not in reported

    page = admin_client.get(reverse("analytics:reports"), {"range": "28"}).content.decode()
    assert "computed from events that the demo generated" in page
    yesterday = admin_client.get(
        reverse("analytics:reports"), {"range": "yesterday"}
    ).content.decode()
    assert "lines of the event log" not in yesterday
    table = admin_client.get(reverse("analytics:report_table", args=["lateness"]), {"range": "28"})
    assert "generated-lateness" in table["Content-Disposition"]


def test_every_day_has_its_own_events_within_the_times_of_the_last_one(
    broker: Broker, days: list[date]
) -> None:
    events = list(history.generated(broker, days))
    assert {event.broker for event in events} == {history.label("main", day) for day in days}
    assert {event.recorded_at.date() for event in events} == {days[-1]}
    assert len({event.event_id for event in events}) == len(events)
    assert events == list(history.generated(broker, days))
