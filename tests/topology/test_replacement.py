"""Which queues can be replaced, and the sentence for each that cannot."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.topology.builders import ALL_OURS, NOON, PAIR, a_queue, a_snapshot
from topology.definitions import Arguments, Binding, BrokerObject, Definitions, Identity, Queue
from topology.patterns.delay_queues import params as delay_queues
from topology.provisioning.plan import make_plan
from topology.provisioning.replacement import Replacement, plan_replacements
from topology.snapshot import QueueNumbers

THREE = QueueNumbers(messages=3, consumers=0)
OLD = a_queue("orders-retry", ttl=9000, dlx="orders")


def replacement(
    *old: BrokerObject,
    wanted: Definitions = PAIR,
    owned: Iterable[Identity] = ALL_OURS,
    numbers: QueueNumbers | None = THREE,
    excluded: Iterable[Identity] = (),
) -> Replacement:
    """Of a vhost in which these things are in place of those that should be there."""
    there = wanted.without([*(obj.identity for obj in old), *excluded]) | Definitions.of(old)
    name = next(obj.name for obj in old if isinstance(obj, Queue))
    snapshot = a_snapshot(there, {name: numbers} if numbers else {})
    (found,) = plan_replacements(make_plan(wanted, snapshot), list(owned), snapshot)
    return found


def test_what_waits_is_counted_and_its_end_is_known() -> None:
    found = replacement(OLD)
    assert found.refusal == ""
    assert (found.messages, found.last_due_at) == (3, NOON + timedelta(seconds=9))
    assert found.steps[2] == (
        "Wait until “orders-retry” is empty. RabbitMQ dead-letters 3 messages, the last at "
        "2026-11-20 12:00:09 UTC."
    )
    assert found.steps[-1].endswith(
        "“orders-retry.replacement” is empty, at most 5s, and delete it."
    )


def test_a_topology_in_sync_has_nothing_to_replace() -> None:
    snapshot = a_snapshot(PAIR)
    assert plan_replacements(make_plan(PAIR, snapshot), ALL_OURS, snapshot) == ()


@pytest.mark.parametrize(
    ("old", "why"),
    [
        (a_queue("orders-retry", dlx="orders"), "has no message TTL, so it does not become empty"),
        (
            a_queue("orders-retry", ttl=9000, dlx="orders", key="k"),
            "to the exchange “orders” with key “k” instead of the exchange “orders”",
        ),
        (a_queue("orders-retry", ttl=9000), "to no exchange instead of"),
        (a_queue("orders-retry", ttl=9000, dlx=""), "to the default exchange instead of"),
        (a_queue("orders-retry", ttl=9000, dlx="orders", x_expires=9), "when its x-expires ends"),
    ],
)
def test_what_waits_is_neither_lost_nor_sent_elsewhere(old: Queue, why: str) -> None:
    assert why in replacement(old).refusal
    assert why in replacement(old, numbers=None).refusal
    assert replacement(old, numbers=QueueNumbers(messages=0, consumers=0)).refusal == ""


def test_queues_of_others_work_queues_and_consumers_are_reasons() -> None:
    assert "did not create “orders-retry”" in replacement(OLD, owned=()).refusal
    work = a_queue("orders", dlx="elsewhere")
    assert "The planned “orders” has no message TTL" in replacement(work).refusal
    read = QueueNumbers(messages=0, consumers=2)
    assert "Consumers of “orders-retry” take" in replacement(OLD, numbers=read).refusal


def test_a_queue_that_is_reached_by_its_name_stays() -> None:
    params = delay_queues.Params("work", (timedelta(seconds=10),))
    wanted = delay_queues.definitions(params)
    (queue,) = wanted.queues
    old = replace(queue, arguments=Arguments({**queue.arguments, "x-message-ttl": 1}))
    found = replacement(old, wanted=wanted, owned=[queue.identity])
    assert "Messages reach “work_dlq_10” by its name" in found.refusal
    by_key = a_queue("other", dlx="", key="orders-retry")
    assert "by its name" in replacement(OLD, by_key).refusal


def test_without_the_dead_letter_exchange_nothing_is_begun() -> None:
    gone = [("exchange", "orders"), Binding("orders", "orders", "orders").identity]
    assert "The exchange “orders” does not exist" in replacement(OLD, excluded=gone).refusal


def test_a_name_that_leaves_no_room_for_a_temporary_queue_is_a_reason() -> None:
    wanted = replace(
        OLD, name="q" * 240, arguments=Arguments({**OLD.arguments, "x-message-ttl": 1})
    )
    objects = Definitions.of([wanted, Binding("in", wanted.name, ""), *PAIR.exchanges])
    found = replacement(
        replace(OLD, name=wanted.name), wanted=objects, owned=[wanted.identity], excluded=()
    )
    assert "is too long for a temporary queue" in found.refusal
