from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from analytics.models import Firehose
from analytics.models import ScheduledMessage as Row
from analytics.scheduled.pages import lines as scheduled_desk
from analytics.scheduled.queries.listing import parse
from delayboard.dead_letters import retrying
from delayboard.dead_letters.retrying import RetryList
from tests.builders import make_broker
from tests.topology.builders import a_queue, a_snapshot
from topology.definitions import Definitions
from topology.models import Broker, State, Topology
from topology.operations.topology_rows import create_topology, take_over
from topology.patterns.chain.params import claim
from topology.patterns.chain.pattern import retry_chain
from topology.patterns.table import PATTERNS
from topology.redaction import NOTHING
from topology.snapshot import QueueNumbers, Snapshot
from topology.structure.find_chains import find_chains

pytestmark = pytest.mark.django_db
NOW = datetime.now(UTC)
REJECTED = {"x-death": [{"queue": "a", "reason": "rejected", "count": 2, "time": None}]}
EXPIRED = {"x-death": [{"queue": "a", "reason": "expired", "count": 2}]}


@pytest.fixture
def broker() -> Broker:
    return make_broker()


def a_topology(broker: Broker, kind: str = "retry_pair", **values: Any) -> Topology:
    topology = create_topology(None, broker, kind, PATTERNS[kind].EXAMPLE)
    for name, value in ({"state": State.APPLIED, "applied_at": NOW} | values).items():
        setattr(topology, name, value)
    topology.save()
    return topology


def waits(topology: Topology, due: int = 60, headers: Any = None, **values: Any) -> Row:
    """A message that is due in so many seconds, as the follower writes it."""
    due_at = NOW + timedelta(seconds=due)
    reported = {
        "key": f"m{due}",
        "message_id": f"m{due}",
        "content_id": "c",
        "attempt": 1,
        "requested_delay": timedelta(minutes=5),
        "entered_at": NOW - timedelta(minutes=1),
        "due_at": due_at,
        "destination": "orders",
        "headers_json": json.dumps(headers or {}),
    }
    return Row.objects.create(broker=topology.broker, topology=topology, **(reported | values))


def desk(
    broker: Broker, snapshot: Snapshot | None = None, after: int | None = None, **query: str
) -> RetryList:
    wanted = parse(query, NOW)
    read = {broker: snapshot} if snapshot else {}
    hidden = {broker.pk: NOTHING}
    return retrying.retrying([broker], wanted, read, NOW, hidden=hidden, after=after)


def listed(shown: RetryList) -> list[str]:
    return [retry.line.row.message_id for retry in shown.retries]


def test_only_what_is_in_retries_of_this_broker_is_listed(broker: Broker) -> None:
    waits(a_topology(broker), 60)
    waits(a_topology(broker, "delay_levels"), 61)
    waits(a_topology(make_broker(name="Other")), 62)
    assert listed(desk(broker)) == ["m60"]


def test_a_message_says_its_round_and_why_it_is_here(broker: Broker) -> None:
    pair, ladder = a_topology(broker), a_topology(broker, "retry_ladder")
    queues = a_topology(broker, "delay_queues")
    waits(pair, 1, REJECTED, attempt=2)
    waits(pair, 2)
    waits(pair, 3, EXPIRED)
    waits(ladder, 4, REJECTED, attempt=1)
    waits(queues, 5, attempt=1)
    waits(pair, 6, {"x-death": "nonsense"}, attempt=3)
    rungs = len(ladder.pattern.delays(ladder.parsed))
    assert [(one.round, one.of, one.failed) for one in desk(broker).retries] == [
        (2, None, "rejected 2 times in a"),
        (0, None, ""),
        (0, None, ""),
        (1, rungs, "rejected 2 times in a"),
        (1, None, ""),
        (3, None, ""),
    ]


def test_a_first_retry_that_its_client_counts_is_no_first_attempt(broker: Broker) -> None:
    waits(a_topology(broker), 1, {"x-retry-count": 1})
    queues = [a_queue(name, dlx="", key="orders.XQ") for name in ("orders", "orders.DQ")]
    (chain,) = find_chains(Definitions.of(queues))
    held = claim(chain, Definitions.of(queues))
    topology = create_topology(None, broker, retry_chain.KIND, held)
    Topology.objects.filter(pk=topology.pk).update(state=State.APPLIED, applied_at=NOW)
    for attempt in (0, 1):
        waits(topology, 2 + attempt, attempt=attempt)
    assert [one.round for one in desk(broker).retries] == [1, 0, 1]


def test_pages_of_several_topologies_follow_each_other_in_due_order(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduled_desk, "PAGE", 3)
    topologies = [a_topology(broker), a_topology(broker, "retry_ladder")]
    for due in range(10, 20):
        waits(topologies[due % 2], due)
    shown = desk(broker)
    seen = listed(shown)
    while after := shown.found.edge:
        shown = desk(broker, after=after)
        seen += listed(shown)
    assert seen == [f"m{due}" for due in range(10, 20)]


def test_the_filter_narrows_by_topology_queue_and_text(broker: Broker) -> None:
    pair, ladder = a_topology(broker), a_topology(broker, "retry_ladder")
    waits(pair, 1)
    waits(ladder, 2, destination="invoices")
    waits(pair, 3, {"tenant": "acme"})
    assert listed(desk(broker, topology=ladder.slug)) == ["m2"]
    assert listed(desk(broker, destination="invoices")) == ["m2"]
    assert listed(desk(broker, text="ACME")) == ["m3"]
    assert listed(desk(broker, text="acme", topology=ladder.slug)) == []
    assert listed(desk(broker, topology="x" * 300)) == []


def test_of_what_no_tap_sees_the_depth_is_said(broker: Broker) -> None:
    topology = a_topology(broker, "delay_queues")
    numbers = {
        queue.name: QueueNumbers(messages=2)
        for queue in topology.definitions.queues
        if queue.message_ttl_ms is not None
    }
    snapshot = a_snapshot(topology.definitions, numbers)
    shown = desk(broker, snapshot)
    (depth,) = shown.depths
    assert (depth.sees_entries, depth.queued) == (False, 2 * len(numbers))
    assert "Depth only" in depth.description
    assert shown.has_no_entry_tap
    assert desk(broker).depths[0].queued is None
    Firehose.objects.create(broker=broker, switched_on_at=NOW)
    assert desk(broker, snapshot).depths[0].sees_entries


def test_a_depth_of_which_a_part_is_unknown_is_unknown(broker: Broker) -> None:
    topology = a_topology(broker)
    assert desk(broker, a_snapshot(topology.definitions)).depths[0].queued is None


def test_a_quorum_retry_waits_inside_its_queue(broker: Broker) -> None:
    topology = a_topology(broker, "quorum_retry")
    numbers = {name: QueueNumbers(messages=4) for name in topology.pattern.targets(topology.parsed)}
    (depth,) = desk(broker, a_snapshot(topology.definitions, numbers)).depths
    assert (depth.queued, depth.sees_entries) == (4, False)
    assert "inside the queue" in depth.description


def test_a_delayed_retry_of_others_waits_inside_its_queue_too(broker: Broker) -> None:
    found = Definitions.of([a_queue("jobs", type="quorum", x_delayed_retry_type="all")])
    (chain,) = find_chains(found)
    take_over(None, broker, "retry_chain", claim(chain, found))
    (depth,) = desk(broker, a_snapshot(found, {"jobs": QueueNumbers(messages=4)})).depths
    assert (depth.queued, depth.sees_entries, depth.is_inside) == (4, False, True)


def test_what_was_torn_down_is_left_out(broker: Broker) -> None:
    waits(a_topology(broker, state=State.DELETED))
    shown = desk(broker)
    assert (listed(shown), list(shown.topologies)) == ([], [])
