"""Rows of the state before a migration, and what it makes of them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.utils import timezone

from analytics.scheduled.summaries import counts
from tests.builders import make_broker, make_pair
from topology.models import Broker, Work

# These migrations do not change any more; test_earlier_release runs all of them for each change.
pytestmark = pytest.mark.long
BEFORE = [("delayboard", "0001_initial"), ("analytics", "0002_no_exact_delays")]


def migrate(target: list[tuple[str, str]] | None = None) -> Any:
    """To these migrations, or to the newest ones, which all other tests need; the models then."""
    executor = MigrationExecutor(connection)
    target = target or executor.loader.graph.leaf_nodes()
    executor.migrate(target)
    return MigrationExecutor(connection).loader.project_state(target).apps


@pytest.mark.django_db(transaction=True)
def test_an_interception_keeps_its_binding_a_moved_queue_ends_and_rows_are_counted() -> None:
    broker = make_broker()
    held = Work.objects.create(kind="intercept", broker=broker, subject=0)
    try:
        old = migrate(BEFORE)
        values = {"broker_id": broker.pk, "work_id": held.pk, "queue_type": "classic"}
        old.get_model("delayboard", "Interception").objects.create(
            name="i", source="x", queue="q", routing_key="#.q", arguments={"a": 1}, **values
        )
        topology, now = make_pair(broker), timezone.now()
        of_pair = {"topology_id": topology.pk, "due_at": now}
        delay = {"attempt": 0, "requested_delay": timedelta(0), "entered_at": now}
        old.get_model("analytics", "ScheduledMessage").objects.create(
            broker_id=broker.pk, key="k", **of_pair, **delay
        )
        old.get_model("analytics", "DueCount").objects.create(width=60, waiting=1, **of_pair)
        for source, state in (("queue", "running"), ("queue", "done"), ("parked", "running")):
            old.get_model("delayboard", "ReplayBatch").objects.create(
                broker_id=broker.pk,
                source=source,
                state=state,
                description="d",
                state_at=timezone.now(),
            )
    finally:
        new = migrate()
    (row,) = new.get_model("delayboard", "Interception").objects.all()
    assert row.bindings == [["#.q", {"a": 1}]]
    states = new.get_model("delayboard", "ReplayBatch").objects.order_by("pk")
    assert list(states.values_list("state", flat=True)) == ["cancelled", "done", "running"]
    assert counts.count(counts.scope([broker], timezone.now()).rows()) == 1
    assert Broker.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_planned_stream_tap_is_chosen_again_and_one_that_exists_is_left_to_the_recorder() -> None:
    broker = make_broker()
    try:
        old = migrate([("topology", "0001_initial")])
        for state in ("planned", "deleted", "applying", "applied"):
            old.get_model("topology", "Topology").objects.create(
                broker_id=broker.pk,
                slug=state,
                kind="retry_pair",
                name=state,
                params={},
                state=state,
                tap_type="stream",
            )
    finally:
        new = migrate()
    rows = new.get_model("topology", "Topology").objects.filter(tap_type="stream")
    assert set(rows.values_list("slug", flat=True)) == {"applying", "applied"}


@pytest.mark.django_db(transaction=True)
def test_subscribers_get_no_report_again_and_miss_none_that_waited() -> None:
    stored, now = [], timezone.now()
    try:
        old = migrate(
            [("analytics", "0005_lease_of_work"), ("delayboard", "0004_publish_from_file")]
        )
        for days in (3, 2, 1):
            at = now - timedelta(days=days)
            report = old.get_model("analytics", "NightlyReport").objects.create(
                day=at.date(), made_at=at, html="A report."
            )
            stored.append(report)
        of_receiver = {"channel": "email", "name": "a@example.org", "encrypted_address": "x"}
        old.get_model("delayboard", "AlertReceiver").objects.create(**of_receiver)
        for name, channel in (("a@example.org", "email"), ("hooks", "webhook")):
            subscriber = old.get_model("analytics", "Subscriber").objects.create(
                channel=channel, name=name, encrypted_address="x"
            )
            is_sent = name != "hooks"
            old.get_model("analytics", "Delivery").objects.create(
                report=stored[1],
                subscriber=subscriber,
                sent_at=now if is_sent else None,
                next_at=None if is_sent else now,
            )
    finally:
        new = migrate()
    mail, hook = new.get_model("delayboard", "AlertReceiver").objects.order_by("channel")
    assert mail.sends_alerts
    assert mail.reports_from >= now
    assert not hook.sends_alerts
    assert stored[0].made_at < hook.reports_from < stored[1].made_at


@pytest.mark.django_db(transaction=True)
def test_a_broker_keeps_its_address_among_several_and_the_first_one_on_the_way_back() -> None:
    broker = make_broker()
    several = make_broker(name="Cluster")
    Broker.objects.filter(pk=several.pk).update(
        amqp_addresses="[::1]:5673, two:5672", management_urls="http://[::1]:1, http://two:2"
    )
    try:
        old = migrate([("topology", "0005_pause_work")]).get_model("topology", "Broker")
        fields = ("host", "port", "management_url")
        assert old.objects.values_list(*fields).get(pk=broker.pk) == (
            *("127.0.0.1", 9),
            "http://127.0.0.1:9",
        )
        assert old.objects.values_list(*fields).get(pk=several.pk) == (
            "::1",
            5673,
            "http://[::1]:1",
        )
    finally:
        migrate()
    rows = Broker.objects.order_by("pk").values_list("amqp_addresses", "management_urls")
    assert list(rows) == [
        ("127.0.0.1:9", "http://127.0.0.1:9"),
        ("[::1]:5673", "http://[::1]:1"),
    ]
