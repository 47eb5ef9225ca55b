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
from topology.findings.find import LIVE_RULES, Finder, find
from topology.findings.finding import Finding, Rule
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


SAFE: dict[str, Any] = {
    "type": "quorum",
    "ttl": 5,
    "dlx": "",
    "key": "work",
    "x_dead_letter_strategy": "at-least-once",
    "x_overflow": "reject-publish",
}


@pytest.mark.parametrize(
    ("limits", "policies", "sentence", "remedy"),
    [
        (
            {"x_max_length": 2},
            {},
            "3 messages are stuck in “wait”: “work” is full (2 messages, x-max-length is 2) and "
            "refuses them.",
            "Consume or move messages of “work”, or declare the queue again with a higher "
            "x-max-length. RabbitMQ then sends the stuck messages within three minutes.",
        ),
        (
            {"x_max_length": 2},
            {"work": "limits"},
            "3 messages are stuck in “wait”: “work” is full (2 messages, x-max-length is 2) and "
            "refuses them.",
            "Consume or move messages of “work”, or raise max-length in the policy limits. "
            "RabbitMQ then sends the stuck messages within three minutes.",
        ),
        (
            {"x_max_length_bytes": 9},
            {},
            "3 messages are stuck in “wait”: “work” holds at most 9 bytes and refuses messages "
            "when it is full.",
            "Consume or move messages of “work”, or declare the queue again with a higher "
            "x-max-length-bytes. RabbitMQ then sends the stuck messages within three minutes.",
        ),
    ],
)
def test_a_full_queue_that_refuses_stuck_messages_is_named_with_its_limit(
    limits: dict[str, int], policies: dict[str, str], sentence: str, remedy: str
) -> None:
    work = a_queue("work", x_overflow="reject-publish", **limits)
    objects = Definitions.of([a_queue("wait", **SAFE), work])
    stuck = QueueNumbers(messages=3, ready=0, unacked=0)
    numbers = {"wait": stuck, "work": QueueNumbers(messages=2, ready=2, unacked=0)}
    seen = a_snapshot(objects, numbers)
    earlier_at = seen.taken_at - timedelta(minutes=1)
    seen = replace(seen, earlier=numbers, earlier_at=earlier_at, policies=policies)
    if policies:
        plain = Definitions.of([a_queue("wait", **SAFE), a_queue("work")])
        seen = replace(seen, declared=plain, policy_arguments={"work": work.arguments})
    (found,) = find(seen, LIVE_RULES)
    assert (found.rule.id, found.cause, found.commands) == ("L02", "work", ())
    assert (found.evidence[0].sentence, found.remedy) == (sentence, remedy)


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
