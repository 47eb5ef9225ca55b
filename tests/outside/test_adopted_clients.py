"""Delays that client libraries declared: found, adopted, and listed as the clients log them."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User

from analytics.models import ScheduledMessage
from analytics.recorder.firehose import switch as firehose
from tests.analytics.builders import follow_log
from tests.brokers import Vhost
from tests.builders import address_of, eventually, make_broker
from tests.outside.client_programs import CLIENTS, Line, running
from tests.real_broker.holding import recording
from topology.broker.management.client import Management
from topology.broker.management.observe import observe
from topology.delays import milliseconds
from topology.models import Broker, Topology
from topology.operations import adopt, provision
from topology.provisioning.recognition import describe_chains, recognize

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.sqlite]

TABLE = (Path(__file__).parents[2] / "docs" / "clients.md").read_text(encoding="utf-8")
# A client states a delay, and publishes some time before or after it logs the due time.
NEAR_MS = 1000


@pytest.fixture
def broker(vhost: Vhost, tmp_path: Path) -> Broker:
    settings.EVENT_LOG = tmp_path / "log"
    return make_broker(vhost)


@pytest.mark.generations("4.3")
@pytest.mark.parametrize("name", CLIENTS)
def test_what_a_client_delays_is_adopted_and_listed_as_it_logs_it(
    vhost: Vhost, broker: Broker, name: str
) -> None:
    client = CLIENTS[name]
    delays = [1000] if name == "rascal" else [1000, 2000]
    orders: dict[str, Any] = {"delays_ms": delays, "rounds": 2, "wait_ms": 1000}
    with running(client, vhost, **orders) as written:
        written.await_ends(len(delays))
        with Management(address_of(vhost)) as management:
            snapshot = eventually(
                lambda: found if client.queue in (found := observe(management)).consumed else None,
                "the consumer is reported",
            )
    chains = describe_chains(snapshot)
    (row,) = [line for line in TABLE.splitlines() if line.startswith(f"| {name}")]
    assert chains
    assert [one["phrase"] for one in chains if str(one["phrase"]) not in row] == []
    assert all(one["adoptable"] for one in chains)
    topologies = adopt_all(broker, snapshot)
    with ExitStack() as stack:
        for topology in topologies:
            if topology.is_recordable:
                provision.start_recording(None, topology)
                stack.enter_context(recording(broker, topology))
        admin = User.objects.create_superuser("ada", password="a long enough password")
        firehose.switch_on(admin, broker)
        stack.enter_context(recording(broker))
        written = stack.enter_context(running(client, vhost, **orders, failing=1))
        written.await_ends(len(delays) + 1)
        lines = written.of("published", "retrying")
        due = [line for line in lines if line.due_at_ms is not None]
        rows = eventually(lambda: listed(len(due)), "all are listed")
    assert_equal(rows, due)


def adopt_all(broker: Broker, snapshot: Any) -> list[Topology]:
    return [
        adopt.adopt(None, broker, one.use.kind, one.use.name)[0]
        for one in recognize(snapshot).found
    ]


def listed(number: int) -> list[ScheduledMessage]:
    follow_log(settings.EVENT_LOG)
    rows = ScheduledMessage.objects.filter(entered_at__isnull=False, left_at__isnull=False)
    return list(rows) if len(rows) >= number else []


def assert_equal(rows: list[ScheduledMessage], due: list[Line]) -> None:
    """As many as the client logged, each at its time and in its round."""
    assert len(rows) == len(due)
    # The first wait of a new message is its first trip, or 0 where retries are numbered. Two may be
    # due at nearly one time.
    logged = sorted((max(1, line.attempt), line.due_at_ms or 0) for line in due)
    seen = sorted(
        (max(1, row.attempt), int(row.due_at.timestamp() * 1000)) for row in rows if row.due_at
    )
    assert [attempt for attempt, _ in seen] == [attempt for attempt, _ in logged]
    apart = [abs(one[1] - other[1]) for one, other in zip(logged, seen, strict=True)]
    assert max(apart) <= NEAR_MS, (logged, seen)
    assert all(milliseconds(row.requested_delay) for row in rows)
