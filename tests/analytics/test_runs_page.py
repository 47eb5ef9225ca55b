from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest
from django.test import Client
from django.urls import reverse

from analytics.models import Run
from analytics.models.run import GENERATED
from tests.analytics.test_reports_page import a_user, page
from topology.models import Broker, Role

DAY = date(2026, 11, 20)
STARTED = datetime(2026, 11, 21, 0, 10, tzinfo=UTC)


@pytest.fixture
def a_run(db: None) -> Run:
    return Run.objects.create(
        day=DAY,
        state="done",
        started_at=STARTED,
        finished_at=STARTED + timedelta(seconds=95),
        lines=2_000_011,
        excluded={"torn": 2, "repeat": 1500, "no_entry": 3},
        step_seconds=[["Starting Spark", 5.04], ["Computing the figures", 61.5]],
        peak_memory_bytes=2_500_000_000,
        spark_version="4.1.1",
        output="ERROR <script>alert(1)</script> \u202e\x1b[31mred",
    )


@pytest.fixture
def everywhere(db: None) -> Client:
    return a_user("vera", None, Role.VIEWER)


def run_page(client: Client, day: str = "2026-11-20") -> str:
    answer = client.get(reverse("analytics:nightly_run", args=[day]))
    assert answer.status_code == 200
    return answer.content.decode()


def test_the_list_has_what_each_run_read_and_took(everywhere: Client, a_run: Run) -> None:
    text = everywhere.get(reverse("analytics:runs")).content.decode()
    for words in ("1m 35s", "Computing the figures, 1m 2s", "2.5\u00a0GB", "4.1.1", ">1\u202f502<"):
        assert words in text
    assert reverse("analytics:nightly_run", args=["2026-11-20"]) in text
    assert reverse("analytics:runs") in page(everywhere)


def test_a_run_has_its_steps_and_the_reasons_of_what_is_excluded(
    everywhere: Client, a_run: Run
) -> None:
    text = run_page(everywhere)
    assert ">5s<" in text
    assert "Another line reports the same event." in text
    assert "3 deliveries" in text
    assert "does not contain the entry into the delay" in text


def test_what_a_job_printed_is_shown_as_hostile_text(everywhere: Client, a_run: Run) -> None:
    text = run_page(everywhere)
    assert "&lt;script&gt;" in text
    assert not set("\u202e\x1b") & set(text)


def test_a_run_of_the_demo_s_events_says_so(everywhere: Client) -> None:
    Run.objects.create(day=DAY, state="done", error=GENERATED)
    assert ">generated<" in everywhere.get(reverse("analytics:runs")).content.decode()


def test_a_run_without_figures_says_so(everywhere: Client) -> None:
    Run.objects.create(day=DAY, state="failed", error="The job failed with exit code 1: no room")
    text = run_page(everywhere)
    assert "no room" in text
    assert "The run reported no steps." in text
    assert "(not reported)" in text
    assert "The run excluded nothing." not in text


def test_the_pages_follow_a_run_at_work_and_load_nothing_without_one(everywhere: Client) -> None:
    Run.objects.create(day=DAY, state="running", started_at=STARTED, steps_done=2, steps=6)
    pages = [everywhere.get(reverse("analytics:runs")).content.decode(), run_page(everywhere)]
    for text in pages:
        assert 'data-live-url="/ws/runs/2026-11-20/" data-live-version="' in text
        assert "<span>2</span> of" in text
        assert "live.js" in text
    Run.objects.update(state="done", finished_at=STARTED)
    for text in (everywhere.get(reverse("analytics:runs")).content.decode(), run_page(everywhere)):
        assert "data-live-url" not in text
        assert "live.js" not in text


def test_runs_read_all_brokers_and_so_need_a_role_on_all(broker: Broker, a_run: Run) -> None:
    client = a_user("oskar", broker, Role.OPERATOR)
    for address in (reverse("analytics:runs"), reverse("analytics:nightly_run", args=[DAY])):
        assert client.get(address).status_code == 403
    assert reverse("analytics:runs") not in page(client)


@pytest.mark.parametrize("day", ["2026-11-19", "2026-13-40", "x"])
def test_a_day_without_a_run_is_not_found(everywhere: Client, day: str) -> None:
    assert everywhere.get(reverse("analytics:nightly_run", args=[day])).status_code == 404
