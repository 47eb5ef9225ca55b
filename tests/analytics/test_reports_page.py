from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from analytics import results
from analytics.launch import Result
from analytics.models import Run
from tests.analytics.test_nightly import GROUP, RESULT
from topology.models import AuditEntry, Broker, Grant, Role

DAY = date(2026, 11, 20)


def a_user(name: str, broker: Broker | None = None, role: Role | None = None) -> Client:
    user = User.objects.create_user(name)
    if role is not None:
        Grant.objects.create(user=user, broker=broker, role=role)
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def viewer(broker: Broker) -> Client:
    return a_user("vera", broker, Role.VIEWER)


@pytest.fixture
def operator(broker: Broker) -> Client:
    return a_user("oskar", broker, Role.OPERATOR)


def a_computed_day(tables: dict[str, Any] = RESULT) -> Run:
    results.replace_day(DAY, Result(7, 1, tables))
    now = datetime.now(UTC)
    return Run.objects.create(
        day=DAY, state="done", started_at=now, finished_at=now, lines=7, malformed=1
    )


def page(client: Client, **query: str) -> str:
    answer = client.get(reverse("analytics:reports"), query)
    assert answer.status_code == 200
    return answer.content.decode()


def test_an_anonymous_visitor_is_sent_to_the_login(client: Client, broker: Broker) -> None:
    assert client.get(reverse("analytics:reports")).status_code == 302


def test_without_any_run_the_page_says_how_to_get_one(viewer: Client) -> None:
    text = page(viewer, day="2026-11-20")
    assert "No figures for this day" in text
    assert "manage.py run_nightly --date 2026-11-20" in text
    assert "plotly" not in text


def test_the_newest_computed_day_is_shown_with_charts_and_the_same_numbers(
    viewer: Client,
) -> None:
    a_computed_day()
    text = page(viewer)
    assert "2026-11-20" in text
    assert set(re.findall(r'data-figure="(\w+)"', text)) == {
        "percentiles",
        "spread",
        "shares",
        "survival",
        "deaths",
    }
    scripts = re.findall(r'<script id="(\w+)" type="application/json">(.*?)</script>', text)
    figures = {name: json.loads(body) for name, body in scripts}
    assert figures["percentiles"]["data"][2]["customdata"] == [2.5]
    assert '<td class="number">2.5</td>' in text
    assert figures["spread"]["data"][0]["y"] == [4]
    assert "1–2 ms" in text
    assert "25.0 %" in text
    assert "7 lines" in text


def test_nothing_on_the_page_is_inline(viewer: Client) -> None:
    a_computed_day()
    text = page(viewer)
    assert not re.search(r"<script(?![^>]*(src=|application/json))", text)
    assert " style=" not in text
    assert not re.search(r"\son\w+=", text)


def test_a_user_without_a_grant_sees_no_figures(broker: Broker) -> None:
    a_computed_day()
    text = page(a_user("nobody"))
    assert "orders" not in text
    assert "have no recorded message" in text


def test_the_broker_filter_narrows_to_one(broker: Broker) -> None:
    other = Broker.objects.create(slug="other", name="Other")
    seen_by_all = a_user("vera", None, Role.VIEWER)
    elsewhere = GROUP | {"broker": "other", "topology": "mails"}
    retries = [*RESULT["retries"], elsewhere | {"messages": 1, "retried": 0, "retried_share": 0.0}]
    a_computed_day(RESULT | {"retries": retries})
    assert "mails" in page(seen_by_all)
    assert "mails" not in page(seen_by_all, broker="main")
    assert "mails" in page(seen_by_all, broker=other.slug)


def test_a_delay_without_a_measured_message_shows_no_percentiles(viewer: Client) -> None:
    figures = ("p50_ms", "p95_ms", "p99_ms", "max_ms", "early_share")
    row = RESULT["accuracy"][0] | dict.fromkeys(figures) | {"measured": 0}
    a_computed_day(RESULT | {"accuracy": [row], "histogram": []})
    text = page(viewer)
    assert "no measurements" in text
    assert 'data-figure="percentiles"' not in text


def test_each_uncounted_delivery_has_one_reason_and_a_traced_queue_its_name(
    viewer: Client,
) -> None:
    queue = {"broker": "main", "topology": "", "queue": "wait-<5s>"}
    accuracy = RESULT["accuracy"][0] | queue | {"taken": 3}
    unknown = queue | {"requested_delay_ms": 0, "reason": "no_delay", "messages": 4}
    uncounted = [*RESULT["uncounted"], unknown]
    a_computed_day(RESULT | {"accuracy": [accuracy], "uncounted": uncounted})
    text = page(viewer)
    assert "The recorder read the entry or the delivery from a backlog." in text
    assert "Nothing states the requested delay of the queue." in text
    assert '<td class="number">unknown</td>' in text
    assert 'Queue <span class="name">wait-&lt;5s&gt;</span>' in text
    assert "3 measured deliveries come from a firehose or a trace" in text


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("running", 'of <span data-live="run/steps">7</span> steps done'),
        ("wanted", "computes this day next"),
        ("failed", "the disk is full"),
        ("no_data", "the disk is full"),
    ],
)
def test_the_state_of_the_run_is_told(viewer: Client, state: str, words: str) -> None:
    Run.objects.create(
        day=DAY,
        state=state,
        started_at=datetime.now(UTC),
        finished_at=datetime.now(UTC),
        steps_done=2,
        steps=7,
        error="the disk is full",
    )
    assert words in page(viewer, day="2026-11-20")


def test_a_bad_day_is_refused_with_a_sentence(viewer: Client) -> None:
    assert "“soon” is not a date" in page(viewer, day="soon")
    assert page(viewer, day="0001-01-01")


def test_an_operator_asks_for_a_day_and_it_is_audited(operator: Client) -> None:
    assert "Compute day" in page(operator, day="2026-11-20")
    answer = operator.post(reverse("analytics:run"), {"day": "2026-11-20"}, follow=True)
    assert "computes this day next" in answer.content.decode()
    assert Run.objects.get().state == "wanted"
    entry = AuditEntry.objects.get(action="nightly run requested")
    assert (entry.username, entry.what, entry.outcome) == ("oskar", "2026-11-20", "done")


def test_a_viewer_has_no_button_and_may_not_ask(viewer: Client) -> None:
    assert "Compute day" not in page(viewer)
    assert viewer.post(reverse("analytics:run"), {"day": "2026-11-20"}).status_code == 403
    assert not Run.objects.exists()


def test_asking_by_a_link_is_not_possible(operator: Client) -> None:
    assert operator.get(reverse("analytics:run")).status_code == 405


@pytest.mark.parametrize("day", ["", "soon", "2999-01-01"])
def test_asking_for_no_day_or_a_future_one_runs_nothing_of_the_kind(
    operator: Client, day: str
) -> None:
    answer = operator.post(reverse("analytics:run"), {"day": day}, follow=True)
    assert answer.status_code == 200
    yesterday = datetime.now(UTC).date() - timedelta(days=1)
    assert list(Run.objects.values_list("day", flat=True)) == ([] if day else [yesterday])
