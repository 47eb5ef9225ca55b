"""The four classic mistakes among 200 healthy queues, and one mistake in 500 queues."""

from __future__ import annotations

import time

from tests.bench.multitude import multitude
from tests.topology.builders import a_queue, a_snapshot
from topology.definitions import Binding, BrokerObject, Definitions, Exchange
from topology.findings.find import find
from topology.findings.hit import Severity
from topology.patterns.retry_pair import params as retry_pair_params
from topology.patterns.retry_pair.pattern import retry_pair

CPU_SECONDS = 5.0


def healthy(number: int) -> list[BrokerObject]:
    """Half of the queues are work, the other half their retries."""
    return [
        obj
        for n in range(number // 2)
        for obj in retry_pair.definitions(retry_pair_params.Params(f"work-{n}"))
    ]


MISTAKES: tuple[BrokerObject, ...] = (
    a_queue("no-exchange", dlx="not-there"),
    a_queue("no-way-out", ttl=60_000),
    Exchange("returns"),
    a_queue("unbound-key", ttl=60_000, dlx="returns", key="work-one"),
    Binding("returns", "work-1", "work-1"),
    Exchange("delays"),
    a_queue("five-seconds", ttl=5_000, dlx="", key="work-2"),
    a_queue("one-minute", ttl=60_000, dlx="", key="work-2"),
    Binding("delays", "five-seconds", "work-2"),
    Binding("delays", "one-minute", "work-2"),
)


def test_four_classic_mistakes_come_first_among_two_hundred_healthy_queues() -> None:
    found = find(a_snapshot(Definitions.of([*healthy(200), *MISTAKES])))
    assert [one.rule.id for one in found[:4]] == ["F01", "F02", "F03", "F17"]
    named = [{obj[-1] if obj[0] == "queue" else obj[3] for obj in one.objects} for one in found]
    assert named[:4] == [
        {"no-exchange"},
        {"unbound-key"},
        {"no-way-out"},
        {"five-seconds", "one-minute"},
    ]
    assert {one.severity for one in found[4:]} == {Severity.STYLE}


def test_one_mistake_in_five_hundred_queues_is_one_finding() -> None:
    queues = [a_queue(f"work-{n}", dlx="not-there") for n in range(500)]
    (finding,) = find(a_snapshot(Definitions.of(queues)))
    assert finding.title == "Dead-letter exchange missing: not-there"
    assert len(finding.objects) == 500
    assert len(finding.commands) == 3


def test_ten_thousand_queues_take_less_than_five_seconds_of_a_processor() -> None:
    snapshot = a_snapshot(multitude())
    began = time.thread_time()
    find(snapshot)
    assert time.thread_time() - began < CPU_SECONDS
