"""A real Celery worker whose queue is unbound: its tasks are stuck, reported, and arrive late."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from pytest_django import Settings

from analytics.models import Minute, ScheduledMessage
from analytics.models.scheduled_message import measure_lateness
from analytics.recorder import firehose_switch as firehose
from analytics.recorder.follow import Follower
from analytics.recorder.record import record
from analytics.scheduled.summaries import counts
from delayboard.demo.node import PrivateNode
from delayboard.now import board
from delayboard.worker.check_brokers import BindingWatch
from tests.brokers import Vhost
from tests.builders import address_of, eventually, make_broker, running
from tests.real_broker.holding import recording
from tests.real_broker.retrying_soon import retrying_soon
from tests.real_broker.test_celery import BOUND, DELAY, a_worker, delay_a_note
from topology import snapshots
from topology.broker.management.client import Management
from topology.broker.management.observe import observe
from topology.models import AuditEntry, Topology
from topology.operations import provision
from topology.operations.topology_rows import take_over
from topology.patterns.delay_levels.params import Params
from topology.patterns.delay_levels.pattern import delay_levels

pytestmark = pytest.mark.django_db(transaction=True)
FRESH = timedelta(milliseconds=200)
STUCK = "Destination “orders” has no binding since"


@pytest.fixture
def event_log(tmp_path: Path, settings: Settings) -> Path:
    settings.EVENT_LOG = tmp_path / "log"
    return tmp_path / "log"


@pytest.fixture(autouse=True)
def _nothing_known(newest_node: PrivateNode) -> Iterator[None]:
    snapshots._latest.clear()
    with retrying_soon(newest_node):
        yield
    snapshots._latest.clear()


def test_tasks_without_a_binding_are_reported_and_arrive_late_when_it_is_restored(
    vhost: Vhost, tmp_path: Path, event_log: Path
) -> None:
    admin = User.objects.create_superuser("ada", password="a long enough password")
    client = Client()
    client.force_login(admin)
    noted = tmp_path / "noted"
    counters: dict[str, object] = {}
    with a_worker(vhost, "quorum", tmp_path), Management(address_of(vhost)) as management:
        topology = adopted(admin, vhost)
        broker = topology.broker
        firehose.switch_on(admin, broker)
        with (
            recording(broker),
            running(lambda stop: record(topology.pk, stop=stop, beat=counters.update)),
        ):
            eventually(lambda: counters.get("caught_up"), "the entry tap is read")
            delay_a_note(vhost, noted)
            management.unbind(BOUND)
            watch, follower = BindingWatch(), Follower(event_log)

            def stuck() -> str:
                """What Now reports first, once a message is known to be stuck."""
                follower.step()
                snapshots._latest.clear()
                if not watch.check()["stuck"]:
                    return ""
                first, *_ = board.overview([broker], datetime.now(UTC), FRESH).troubles
                return first.sentence

            sentence = eventually(stuck, "the task is reported as stuck")
            assert STUCK in sentence
            assert sentence.endswith("1 message is stuck.")
            page = client.get(reverse("topology:topology_destinations", args=[topology.slug]))
            assert "Restore binding" in page.content.decode()
            scheduled = client.get(reverse("analytics:scheduled"), {"stuck": "1"})
            assert "Stuck <strong>1</strong>" in scheduled.content.decode()
            failed = [c.sentence for c in provision.check(None, topology).checks if not c.holds]
            assert any(one.startswith(STUCK) for one in failed)
            assert not noted.exists()
            # However fast it was reported.
            due_at = ScheduledMessage.objects.values_list("due_at", flat=True).get()
            assert due_at is not None
            is_late = due_at + timedelta(seconds=1)
            eventually(lambda: datetime.now(UTC) > is_late, "it is more than a second late")

            answer = client.post(
                reverse("topology:topology_restore", args=[topology.slug]),
                {"destination": "orders"},
            )
            assert answer.status_code == 302
            assert BOUND in observe(management).declared.bindings
            assert AuditEntry.objects.filter(action="binding restored", outcome="done").exists()
            eventually(lambda: noted.exists() and noted.read_text(), "the task runs")

            def left() -> ScheduledMessage | None:
                follower.step()
                return ScheduledMessage.objects.filter(left_at__isnull=False).first()

            row = eventually(left, "its arrival is recorded")
            eventually(lambda: watch.check()["missing"] == 0, "nothing is stuck any more")
    late = measure_lateness(row)
    assert late is not None
    assert late > timedelta(seconds=1)
    assert row.requested_delay == DELAY
    # On a busy machine a recorder is behind; then how late a message was is known to nobody.
    late_minutes = Minute.objects.filter(late__gt=0).values_list("topology", "late")
    assert list(late_minutes) == ([(topology.pk, 1)] if row.caught_up else [])
    assert not counts.scope([broker], datetime.now(UTC)).stuck_rows().exists()


def adopted(admin: User, vhost: Vhost) -> Topology:
    """The levels of the worker, adopted and recorded where messages enter."""
    params = Params("celery", destinations="exchanges")
    topology = take_over(admin, make_broker(vhost), delay_levels.KIND, params)
    provision.start_recording(admin, topology)
    topology.refresh_from_db()
    return topology
