"""Delays that client libraries declared: found, adopted, and listed as the clients log them.

The table of docs/clients.md has a row for each library, which this test holds. With WRITE_CLIENTS=1
in its environment it writes the rows.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User

from analytics.models import ScheduledMessage
from analytics.recorder import firehose_switch as firehose
from delayboard.changes.check import is_only_cancelled
from delayboard.dead_letters.queues.candidates import candidates
from tests.analytics.builders import follow_log
from tests.brokers import Vhost
from tests.builders import address_of, eventually, make_broker
from tests.outside.client_programs import (
    CLIENTS,
    FROM_SOURCES,
    WITHOUT_DELAYS,
    Client,
    Line,
    running,
)
from tests.real_broker.holding import recording
from topology.broker.management.client import Management
from topology.broker.management.observe import observe
from topology.delays import milliseconds
from topology.models import Broker, Topology
from topology.operations import adopt, provision
from topology.provisioning.recognition import describe_chains, recognize
from topology.snapshot import Snapshot

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.sqlite]

DOCUMENT = Path(__file__).parents[2] / "docs" / "clients.md"
# A client states a delay, and publishes some time before or after it logs the due time.
NEAR_MS = 1000
EACH = CLIENTS | FROM_SOURCES
# The others declare nothing of another kind.
BY_DEFAULT = CLIENTS.keys() - {"amqplib"}
ROUNDS = 2


@pytest.fixture
def broker(vhost: Vhost, tmp_path: Path) -> Broker:
    settings.EVENT_LOG = tmp_path / "log"
    return make_broker(vhost)


@pytest.mark.generations("4.3")
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in BY_DEFAULT else [pytest.mark.long]) for name in EACH],
)
def test_what_a_client_delays_is_adopted_and_listed_as_it_logs_it(
    vhost: Vhost, broker: Broker, name: str
) -> None:
    client = EACH[name]
    orders: dict[str, Any] = {
        "delays_ms": client.delays_ms,
        "rounds": ROUNDS,
        "wait_ms": client.retry_ms,
    }
    failing = int(client.retries)
    with running(client, vhost, **orders, failing=failing) as written:
        eventually(lambda: len(written.of("retrying")) >= failing, "its retry is declared")
        snapshot = eventually(lambda: consumed(vhost, client), "the consumer is reported")
        written.await_ends(len(client.delays_ms) + failing)
    chains = describe_chains(snapshot)
    assert chains
    assert all(one["adoptable"] for one in chains)
    topologies = adopt_all(broker, snapshot)
    phrases = [str(one["phrase"]) for one in chains]
    compare_row(client, phrases, list_means(topologies), list_changes(topologies))
    with ExitStack() as stack:
        for topology in topologies:
            if topology.is_recordable:
                provision.start_recording(None, topology)
                stack.enter_context(recording(broker, topology))
        admin = User.objects.create_superuser("ada", password="a long enough password")
        firehose.switch_on(admin, broker)
        stack.enter_context(recording(broker))
        orders["delays_ms"] = delays = (*client.delays_ms, *client.new_delays_ms)
        written = stack.enter_context(running(client, vhost, **orders, failing=failing))
        written.await_ends(len(delays) + failing)
        lines = written.of("published", "retrying")
        due = [line for line in lines if line.due_at_ms is not None]
        assert len(due) == len(delays) + failing * ROUNDS
        rows = eventually(lambda: listed(len(due)), "all are listed")
    assert_equal(rows, due)


def consumed(vhost: Vhost, client: Client) -> Snapshot | None:
    with Management(address_of(vhost)) as management:
        snapshot = observe(management)
    return snapshot if client.queue in snapshot.consumed else None


def adopt_all(broker: Broker, snapshot: Snapshot) -> list[Topology]:
    return [
        adopt.adopt(None, broker, one.use.kind, one.use.name)[0]
        for one in recognize(snapshot).found
    ]


def list_means(topologies: Sequence[Topology]) -> str:
    """By what their entries and their deliveries are seen."""
    not_observed = {
        phase
        for topology in topologies
        for phase in ("entry", "exit")
        if all(tap.phase != phase for tap in topology.pattern.taps(topology.parsed))
    }
    names = {"entry": "waiting messages", "exit": "deliveries"}
    by_firehose = " and ".join(word for phase, word in names.items() if phase in not_observed)
    return f"firehose for {by_firehose}" if by_firehose else "taps"


def list_changes(topologies: Sequence[Topology]) -> str:
    """Which changes of single messages their patterns allow."""
    if all(topology.pattern.change_obstacle(topology.parsed) for topology in topologies):
        return "no"
    retries = [is_only_cancelled(topology.pattern) for topology in topologies]
    return "cancel only" if all(retries) else "yes, retries cancel only" if any(retries) else "yes"


def compare_row(client: Client, phrases: Sequence[str], means: str, changes: str) -> None:
    """The row of the table, which is written or must be there."""
    found = " ".join(phrases)
    cells = (client.title, client.version, client.declares, found, means, client.counts, changes)
    row = f"| {' | '.join(cells)} |"
    text = DOCUMENT.read_text(encoding="utf-8")
    if os.environ.get("WRITE_CLIENTS"):
        lines = [line for line in text.splitlines() if not line.startswith(f"| {client.title} |")]
        head = next(n for n, line in enumerate(lines) if line.startswith("|---|")) + 1
        end = next(n for n in range(head, len(lines)) if not lines[n].startswith("|"))
        lines[head:end] = sorted([*lines[head:end], row], key=str.lower)
        DOCUMENT.write_text("\n".join(lines) + "\n", encoding="utf-8")
    else:
        assert row in text.splitlines()


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


@pytest.mark.generations("4.3")
@pytest.mark.long
@pytest.mark.parametrize("name", WITHOUT_DELAYS)
def test_a_library_without_delays_in_queues_has_no_chain_and_its_failures_are_proposed(
    vhost: Vhost, name: str
) -> None:
    client = WITHOUT_DELAYS[name]
    with running(client, vhost, hopeless=1, rounds=0) as written:
        written.await_ends(1)
        snapshot = eventually(lambda: consumed(vhost, client), "the consumer is reported")
    assert describe_chains(snapshot) == []
    compare_row(client, ["No chain."], "–", "–")
    assert recognize(snapshot).found == ()
    first = candidates(snapshot, ())[0]
    assert (first.queue, first.has_telling_name) == (client.dead, True)
