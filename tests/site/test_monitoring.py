"""Probes and Prometheus: who may read what, and what is said when something fails."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.db.migrations.recorder import MigrationRecorder
from django.test import Client
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families
from pytest_django import Settings

from analytics.models import Gap, Minute, Recording, Slo
from delayboard.metrics import BoardCollector
from delayboard.models import BackgroundTask, CounterSample, MessageGroup
from delayboard.views import monitoring
from tests.builders import make_broker, make_pair
from topology import snapshots
from topology.models import Broker, State
from topology.snapshots import Latest

pytestmark = pytest.mark.django_db
# As a probe asks: by an address that no setting allows.
PROBE = Client(SERVER_NAME="10.1.2.3")
DOCS = Path(__file__).parents[2] / "docs"
TOKEN = {"Authorization": "Bearer a-token"}


@pytest.fixture(autouse=True)
def a_broker_that_answers(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "silent", lambda brokers: [])
    monkeypatch.setattr(monitoring, "_migrated", set[str]())


@pytest.fixture
def token(settings: Settings) -> None:
    settings.METRICS_TOKEN = "a-token"


def a_task(key: str, *, error: str = "", age: float = 0) -> None:
    at = timezone.now() - timedelta(seconds=age)
    BackgroundTask.objects.create(
        key=key, name=key, beat_at=at, last_error=error, details={"behind_seconds": age}
    )


def ready(headers: Mapping[str, str] | None = None) -> tuple[int, Any]:
    answer = PROBE.get("/readyz", headers=headers)
    return answer.status_code, answer.json()


def read_metrics() -> dict[tuple[str, ...], float]:
    """Name and labels' values -> value."""
    answer = PROBE.get("/metrics", headers=TOKEN)
    assert answer.status_code == 200
    return {
        (sample.name.removeprefix("delayboard_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(answer.content.decode())
        for sample in family.samples
    }


def test_a_probe_needs_no_account_no_allowed_host_and_no_tls(settings: Settings) -> None:
    settings.SECURE_SSL_REDIRECT = True
    a_task("record:mail")
    assert PROBE.get("/livez").json() == {"status": "ok"}
    assert ready() == (
        200,
        {
            "status": "ok",
            "checks": dict.fromkeys(
                ("database", "migrations", "clock", "worker", "tasks", "event_log", "brokers"), "ok"
            ),
        },
    )
    assert PROBE.post("/readyz").status_code == 405
    assert PROBE.get("/now/").status_code == 400


def test_what_fails_is_named_to_those_who_may_read_metrics(
    broker: Broker, token: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_task("index", error="The disk is full.")
    a_task("alerts")
    monkeypatch.setattr(snapshots, "silent", lambda brokers: brokers)
    refused = Latest(None, timezone.now(), "No connection to rabbit:5672.")
    monkeypatch.setattr(snapshots, "latest", lambda pk: refused)
    code, document = ready()
    assert (code, document["status"]) == (200, "degraded")
    assert document["checks"]["tasks"] == document["checks"]["brokers"] == "failing"
    assert document["checks"]["worker"] == "ok"
    checks = ready(TOKEN)[1]["checks"]
    assert checks["tasks"] == {"index": "The disk is full.", "alerts": "ok"}
    assert checks["brokers"] == {broker.slug: "No connection to rabbit:5672."}
    BackgroundTask.objects.update(beat_at=timezone.now() - timedelta(minutes=1))
    assert ready(TOKEN)[1]["checks"]["worker"] == "The worker is not running."


def test_a_clock_that_is_wrong_is_named(token: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitoring, "measure_skew", lambda: timedelta(seconds=-61))
    found = ready(TOKEN)[1]["checks"]["clock"]
    assert found.startswith("The clock of this host is 61.0 s behind the database's.")


def test_a_database_that_does_not_answer_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    def cursor() -> None:
        raise OperationalError("no connection to db.internal as delayboard")

    monkeypatch.setattr(connection, "cursor", cursor)
    answer = PROBE.get("/readyz")
    assert (answer.status_code, answer.json()["status"]) == (503, "unavailable")
    assert b"internal" not in answer.content
    assert PROBE.get("/livez").status_code == 200


def test_missing_migrations_are_unavailable(token: None) -> None:
    MigrationRecorder.Migration.objects.filter(app="delayboard").latest("pk").delete()
    code, document = ready(TOKEN)
    assert (code, document["status"]) == (503, "unavailable")
    said = "The database is not migrated. Run manage.py migrate first."
    assert document["checks"] == {"database": "ok", "migrations": said}


@pytest.mark.parametrize(
    ("address", "headers", "code"),
    [
        ("10.0.0.9", {}, 200),
        ("::ffff:10.0.0.9", {}, 200),
        ("::1", {}, 200),
        ("10.0.1.9", {}, 403),
        ("10.0.1.9", {"X-Forwarded-For": "10.0.0.9"}, 403),
        ("10.0.1.9", TOKEN, 200),
        ("10.0.1.9", {"Authorization": "Bearer a-tokem"}, 403),
        ("10.0.1.9", {"Authorization": "Bearer é"}, 403),
        ("", {}, 403),
    ],
)
def test_metrics_are_for_a_token_or_an_address(
    token: None, settings: Settings, address: str, headers: Mapping[str, str], code: int
) -> None:
    settings.METRICS_ALLOW_IPS = [ip_network("10.0.0.0/24"), ip_network("::1")]
    assert PROBE.get("/metrics", REMOTE_ADDR=address, headers=headers).status_code == code


def test_nobody_reads_metrics_by_default() -> None:
    for headers in ({}, {"Authorization": "Bearer "}):
        answer = PROBE.get("/metrics", headers=headers)
        assert answer.status_code == 403
        assert b"METRICS_TOKEN" in answer.content


def test_metrics_count_what_the_worker_counted(
    broker: Broker, token: None, settings: Settings
) -> None:
    other, now = make_broker(name="Other"), timezone.now()
    for at, of, numbers in (
        (now - timedelta(minutes=2), broker, {"scheduled": 9, "dead": 4}),
        (now - timedelta(minutes=1), broker, {"scheduled": 7, "stuck": 1}),
        (now - timedelta(minutes=9), other, {"scheduled": 5}),
    ):
        CounterSample.objects.create(broker=of, at=at, numbers=numbers)
    found = read_metrics()
    assert found["scheduled", broker.slug] == 7
    assert found["stuck", broker.slug] == 1
    assert ("dead_letters", broker.slug) not in found
    assert not any(other.slug in key for key in found)


def test_metrics_measure_lateness_burn_gaps_and_tasks(
    broker: Broker, token: None, settings: Settings
) -> None:
    now = timezone.now()
    topology = make_pair(broker)
    topology.state, topology.applied_at = State.APPLIED, now - timedelta(hours=2)
    topology.save()
    Recording.objects.create(topology=topology, read_at=now)
    Slo.objects.create(topology=topology, percent=90, within_ms=1000)
    # Buckets: 8 to 10 ms, and 2 to 2.5 s.
    Minute.objects.create(
        topology=topology, minute_at=now - timedelta(minutes=1), entered=4, left=4, late=2,
        lateness_json='{"11": 2, "35": 2}',
    )  # fmt: skip
    Gap.objects.create(topology=topology, from_at=now, until_at=now, why="stopped")
    a_task("record:mail", age=3)
    a_task("record:other", age=1, error="refused")
    MessageGroup.objects.create(
        broker=broker, fingerprint="f", died_in="mail", parked=3, first_at=now, last_at=now
    )
    found = read_metrics()
    of = broker.slug
    assert found["lateness_1h_seconds_gcount", of] == 4
    assert found["lateness_1h_seconds_bucket", of, "0.01"] == 2
    assert found["lateness_1h_seconds_bucket", of, "1"] == 2
    assert found["lateness_1h_seconds_bucket", of, "2.5"] == 4
    assert found["late_5m", of] == 2
    assert found["slo_burn_rate_1h", of] == pytest.approx(5)
    assert found["gaps_1d", of] == 1
    assert found["tasks_failing", "record"] == 1
    assert found["task_behind_seconds", "record"] == 3
    assert 3 <= found["task_heartbeat_age_seconds", "record"] < 60
    assert not any("mail" in key for key in found)
    settings.METRICS_DETAILS = True
    found = read_metrics()
    assert found["slo_burn_rate_1h", of, topology.slug] == pytest.approx(5)
    assert found["tasks_failing", "record:other"] == 1
    assert found["parked", of, "mail"] == 3
    assert found["group_parked", of, str(MessageGroup.objects.get().pk)] == 3


def test_documents_alerts_and_dashboard_name_the_metrics_that_exist(
    broker: Broker, settings: Settings
) -> None:
    families = {one.name for one in BoardCollector(timezone.now(), details=True).collect()}
    pattern = re.compile(r"\bdelayboard_[a-z_0-9]+")
    for name in ("monitoring.md", "monitoring/alerts.yml", "monitoring/dashboard.json"):
        named = set(pattern.findall((DOCS / name).read_text()))
        assert {one.removesuffix("_bucket") for one in named} <= families, name
    assert families == {
        one.removesuffix("_bucket") for one in pattern.findall((DOCS / "monitoring.md").read_text())
    }
