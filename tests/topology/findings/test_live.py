"""Rules of live numbers on patterns that work, and what the finder keeps."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.topology.builders import a_queue, a_snapshot
from topology.definitions import Definitions
from topology.findings import find as find_module
from topology.findings.context import Context
from topology.findings.find import Finder, find
from topology.findings.finding import Finding, Rule
from topology.findings.table import LIVE_RULES
from topology.patterns.pattern import Pattern
from topology.patterns.table import PATTERNS
from topology.snapshot import QueueNumbers

LOOP = Definitions.of(
    [a_queue("work", dlx="", key="wait"), a_queue("wait", ttl=5, dlx="", key="work")]
)
BUSY = QueueNumbers(1000, 900, 100, 5, 100.0, 100.0, 99.0, 3.0)


def ids(found: tuple[Finding, ...]) -> list[str]:
    return [one.rule.id for one in found]


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=list(PATTERNS))
def test_a_busy_topology_with_its_consumers_has_no_live_finding(pattern: Pattern) -> None:
    params = pattern.EXAMPLE
    objects = pattern.definitions(params)
    read = {
        *pattern.targets(params),
        *(forwarder.queue for forwarder in pattern.forwarders(params)),
    }
    idle = replace(BUSY, consumers=0, deliver_rate=0.0, ack_rate=0.0, redeliver_rate=0.0)
    empty = replace(idle, messages=0, ready=0, unacked=0, publish_rate=0.0)
    delays = {queue.name for queue in objects.queues if queue.message_ttl_ms is not None}
    numbers = {
        queue.name: BUSY if queue.name in read else idle if queue.name in delays else empty
        for queue in objects.queues
    }
    assert ids(find(a_snapshot(objects, numbers), LIVE_RULES)) == []


def test_a_work_queue_with_a_ttl_is_no_delay_queue() -> None:
    objects = Definitions.of(
        [a_queue("work", ttl=9, dlx="", key="wait"), a_queue("wait", ttl=5, dlx="", key="work")]
    )
    numbers = {"work": QueueNumbers(consumers=1)}
    assert ids(find(a_snapshot(objects, numbers), LIVE_RULES)) == []


def test_numbers_of_less_than_a_minute_ago_are_no_trend() -> None:
    objects = Definitions.of([a_queue("work", dlx="", key="dead"), a_queue("dead")])
    dead = QueueNumbers(messages=9, consumers=0)
    snapshot = a_snapshot(objects, {"dead": dead})
    for seconds, wanted in ((59, ["L11"]), (60, ["L09", "L11"])):
        seen = replace(
            snapshot,
            earlier={"dead": replace(dead, messages=1)},
            earlier_at=snapshot.taken_at - timedelta(seconds=seconds),
        )
        assert ids(find(seen, LIVE_RULES)) == wanted


def test_the_finder_checks_definitions_once_and_numbers_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked: list[Any] = []
    check_all = find_module._find

    def counted(context: Context, rules: tuple[Rule, ...]) -> tuple[Finding, ...]:
        checked.append(rules)
        return check_all(context, rules)

    monkeypatch.setattr(find_module, "_find", counted)
    finder = Finder()

    def found(objects: Definitions = LOOP, **numbers: QueueNumbers) -> list[str]:
        return ids(finder.find(1, a_snapshot(objects, numbers)))

    loop = QueueNumbers(consumers=0, deliver_rate=9.0, redeliver_rate=9.0, ack_rate=0.0)
    assert found() == ["F27"]
    assert found(work=loop) == ["L07", "F27"]
    assert found() == ["F27"]
    assert [rules is LIVE_RULES for rules in checked] == [False, True, True, True]
    assert found(LOOP | Definitions.of([a_queue("lost", dlx="gone")])) == ["F01", "F27"]
    assert [rules is LIVE_RULES for rules in checked[4:]] == [False, True]
