from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import requests
import responses

from tests.builders import eventually, make_broker
from tests.topology.builders import MANAGEMENT, NOON, an_address
from topology import snapshots
from topology.broker.management.client import Management
from topology.broker.management.list_queues import LARGE
from topology.broker.management.observe import observe
from topology.broker.management.policies import put_in_force
from topology.content.text import count_text
from topology.definitions import Definitions
from topology.models import Broker
from topology.snapshot import Snapshot
from topology.snapshots import Latest

API = f"{MANAGEMENT}/api"
NUMBER = LARGE + 507
ROWS = [{"name": f"q{n}", "type": "classic", "messages": n} for n in range(NUMBER)]


class Answers:
    """A broker with NUMBER queues; `policies` of its vhost, None where they may not be read."""

    def __init__(self, policies: list[dict[str, Any]] | None) -> None:
        self.asked: list[str] = []
        self._policies = policies
        overview = {"rabbitmq_version": "4.3.6", "object_totals": {"queues": NUMBER}}
        responses.get(f"{API}/overview", json=overview)
        responses.add_callback("GET", re.compile(f"{API}/queues/.*"), self._queues)
        consumers = [{"queue": {"name": "q5"}}, {"queue": {"name": "q5"}}, {}]
        responses.get(re.compile(f"{API}/consumers/.*"), json=consumers)
        for kind in ("exchanges", "bindings", "operator-policies"):
            responses.get(re.compile(f"{API}/{kind}/.*"), json=[])
        responses.get(f"{API}/health/checks/alarms", json={"status": "ok"})
        if policies is None:
            responses.get(re.compile(f"{API}/policies/.*"), status=401, json={"reason": "no"})
        else:
            responses.get(re.compile(f"{API}/policies/.*"), json=policies)

    def _queues(self, request: requests.PreparedRequest) -> tuple[int, dict[str, str], str]:
        query = parse_qs(urlsplit(str(request.url)).query)
        self.asked.append("totals" if "enable_queue_totals" in query else "number")
        page = {"items": ROWS[:1], "total_count": NUMBER}
        return 200, {}, json.dumps(page if "page" in query else ROWS)


def seen() -> Snapshot:
    with Management(an_address()) as management:
        return observe(management)


@responses.activate
def test_of_a_large_vhost_totals_are_asked_for_and_who_consumes() -> None:
    answers = Answers([])
    snapshot = seen()
    assert answers.asked == ["number", "totals"]
    assert len(snapshot.definitions.queues) == NUMBER
    assert snapshot.numbers["q7"].messages == 7
    assert [snapshot.numbers[name].consumers for name in ("q5", "q6")] == [2, 0]
    (doubt,) = snapshot.doubts
    assert f"has {count_text(NUMBER)} queues, so Delayboard does not request their rates" in doubt


@responses.activate
def test_what_policies_give_is_worked_out_in_a_large_vhost() -> None:
    Answers(
        [
            {"name": "wide", "pattern": "", "definition": {"message-ttl": 9}},
            {"name": "narrow", "pattern": "^q7$", "priority": 1, "definition": {"expires": 8}},
        ]
    )
    snapshot = seen()
    ttl = {queue.name: queue.message_ttl_ms for queue in snapshot.definitions.queues}
    assert (ttl["q6"], ttl["q7"]) == (9, None)
    assert (snapshot.policies["q6"], snapshot.policies["q7"]) == ("wide", "narrow")
    assert len(snapshot.doubts) == 1


@responses.activate
def test_a_policy_whose_pattern_is_not_understood_is_a_doubt() -> None:
    Answers([{"name": "odd", "pattern": "(?<a", "definition": {"message-ttl": 9}}])
    assert any("the pattern of the policy “odd”" in doubt for doubt in seen().doubts)


@pytest.mark.parametrize(
    ("applies", "kind", "found"),
    [
        ("all", "quorum", True),
        ("queues", "classic", True),
        ("quorum_queues", "classic", False),
        ("streams", "stream", True),
        ("exchanges", "classic", False),
    ],
)
def test_a_policy_applies_to_the_types_that_it_names(applies: str, kind: str, found: bool) -> None:
    row = {"name": "q", "type": kind}
    put_in_force([row], [{"name": "p", "apply-to": applies, "definition": {"expires": 5}}], [])
    assert (row["policy"] == "p") is found


def test_of_an_operators_policy_the_smaller_number_holds_and_anything_else() -> None:
    row: dict[str, Any] = {"name": "q", "type": "classic"}
    own = {"message-ttl": 5, "max-length": 9, "overflow": "drop-head", "expires": 3}
    limit = {"message-ttl": 7, "max-length": 2, "overflow": "reject-publish"}
    put_in_force([row], [{"name": "p", "definition": own}], [{"name": "o", "definition": limit}])
    assert row["effective_policy_definition"] == {
        "message-ttl": 5,
        "max-length": 2,
        "overflow": "reject-publish",
        "expires": 3,
    }


@responses.activate
def test_policies_that_may_not_be_read_are_a_doubt_of_a_large_vhost() -> None:
    Answers(None)
    assert any(
        "dead-letter exchanges set by policies are missing here" in doubt for doubt in seen().doubts
    )


@pytest.fixture
def broker(db: None) -> Iterator[Broker]:
    row = make_broker()
    yield row
    snapshots.forget(row.pk)


class Slow:
    """In place of `observe`: counts who asked, and answers when it is let."""

    def __init__(self) -> None:
        self.asked = 0
        self.let = threading.Event()

    def __call__(self, management: Management) -> Snapshot:
        self.asked += 1
        assert self.let.wait(60)
        return Snapshot("4.3.6", NOON, Definitions(), Definitions(), poll_seconds=6.0)


def known(broker: Broker, *, age: timedelta, took: float) -> Latest:
    snapshot = Snapshot("4.3.6", NOON, Definitions(), Definitions(), poll_seconds=took)
    kept = snapshots._latest[broker.pk] = Latest(snapshot, datetime.now(UTC) - age)
    return kept


def test_a_slow_broker_rests_four_times_as_long_as_its_poll_took(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow()
    monkeypatch.setattr(snapshots, "observe", slow)
    kept = known(broker, age=timedelta(seconds=15), took=6)
    assert [snapshots.fresh(broker) for _ in range(20)] == [kept] * 20
    assert slow.asked == 0


def test_during_the_poll_of_a_slow_broker_the_last_known_is_shown_at_once_and_without_an_error(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow()
    monkeypatch.setattr(snapshots, "observe", slow)
    kept = known(broker, age=timedelta(seconds=30), took=6)
    assert [snapshots.fresh(broker) for _ in range(20)] == [kept] * 20
    eventually(lambda: slow.asked == 1, "the poll began")
    assert snapshots.silent([broker]) == []
    slow.let.set()
    eventually(lambda: snapshots.latest(broker.pk) is not kept, "the poll ended")
    assert slow.asked == 1


def test_a_slow_broker_that_failed_is_asked_as_often_as_any(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow()
    slow.let.set()
    monkeypatch.setattr(snapshots, "observe", slow)
    kept = known(broker, age=timedelta(seconds=15), took=6)
    snapshots._latest[broker.pk] = replace(kept, error="gone")
    assert snapshots.fresh(broker).is_reachable
    assert slow.asked == 1


@pytest.mark.parametrize("pattern", ["^(a+)+$", "(a|a)*b", "a*a*a*a*a*b", "(a*)*", "a" * 1001])
def test_a_pattern_that_could_be_searched_for_hours_is_not_searched(pattern: str) -> None:
    slow = {"name": "slow", "pattern": pattern, "definition": {"max-length": 1}}
    row: dict[str, Any] = {"name": "a" * 40}
    assert put_in_force([row], [slow], []) == ["slow"]
    assert row["policy"] is None


@pytest.mark.parametrize(
    "pattern", ["", ".*", "^orders\\.", "^(a|b)-.+-dlq$", "^(?!amq\\.).*", "x{2,3}"]
)
def test_usual_patterns_are_searched(pattern: str) -> None:
    usual = {"name": "usual", "pattern": pattern, "definition": {"max-length": 1}}
    assert put_in_force([], [usual], []) == []
