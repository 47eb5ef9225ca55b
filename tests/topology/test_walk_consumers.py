"""Consumers that reject, put back or crash: retry rings walked to their end."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.topology.builders import a_queue
from tests.topology.walks import MIDDLE, NEW, OLD, RETRY, ms, of, only
from topology.definitions import Queue
from topology.routing.context import Consumer, Does, delivery_limit, failures_until_death
from topology.routing.walk import walk


@pytest.mark.parametrize(("times", "after"), [(0, 0), (1, 100), (3, 300)])
def test_a_retry_ring_is_walked_to_its_end(times: int, after: int) -> None:
    outcome = only(walk(RETRY, "", "work", consumers={"work": Consumer("rejects", times)}))
    assert (outcome.ending, outcome.queue, outcome.after) == ("delivered", "work", ms(after))
    assert [hop.queue for hop in outcome.hops] == ["work", *["wait", "work"] * times]


def test_a_retry_ring_without_an_end_says_so() -> None:
    outcome = only(walk(RETRY, "", "work", consumers={"work": Consumer("rejects")}))
    assert (outcome.ending, outcome.queue) == ("stuck", "work")
    assert outcome.why == (
        "the message cycles forever through “work”, “wait” and “work” because no consumer "
        "acknowledges it"
    )


def test_a_rejection_where_nothing_dead_letters_is_a_loss() -> None:
    outcome = only(walk(of(Queue("work")), "", "work", consumers={"work": Consumer("rejects")}))
    why = "the consumer of “work” rejects the message, and this queue has no dead-letter exchange"
    assert (outcome.ending, outcome.why) == ("dropped", why)


@pytest.mark.parametrize(
    ("arguments", "version", "limit"),
    [
        ({}, OLD, None),
        ({"type": "quorum"}, OLD, None),
        ({"type": "quorum"}, MIDDLE, 20),
        ({"type": "quorum"}, (4, 0), 20),
        ({"type": "quorum", "x_delivery_limit": 3}, OLD, 3),
        ({"type": "quorum", "x_delivery_limit": -1}, NEW, None),
        ({"type": "quorum", "x_delivery_limit": -1}, MIDDLE, None),
        ({"type": "quorum", "x_delivery_limit": -1}, OLD, 0),
        ({"x_delivery_limit": 3}, NEW, None),
    ],
)
def test_the_delivery_limit_is_the_quorum_queues(
    arguments: dict[str, Any], version: tuple[int, ...], limit: int | None
) -> None:
    assert delivery_limit(a_queue("work", **arguments), version) == limit


@pytest.mark.parametrize(
    ("does", "failed", "version", "more"),
    [
        ("requeues", 0, OLD, 3),
        ("crashes", 2, MIDDLE, 3),
        ("crashes", 0, NEW, 3),
        ("crashes", 2, NEW, 1),
        ("crashes", 9, NEW, 1),
        ("requeues", 0, NEW, None),
    ],
)
def test_a_limit_of_two_forgives_two_failed_deliveries(
    does: Does, failed: int, version: tuple[int, ...], more: int | None
) -> None:
    queue = a_queue("work", type="quorum", x_delivery_limit=2)
    assert failures_until_death(queue, does, failed, version) == more


@pytest.mark.parametrize(
    ("does", "version", "ending"),
    [
        ("requeues", OLD, "delivered"),
        ("requeues", MIDDLE, "delivered"),
        ("requeues", NEW, "stuck"),
        ("crashes", NEW, "delivered"),
    ],
)
def test_a_message_that_is_never_answered_dies_of_the_limit_or_not_at_all(
    does: Any, version: tuple[int, ...], ending: str
) -> None:
    found = of(
        a_queue("work", type="quorum", x_delivery_limit=2, dlx="", key="dead"), Queue("dead")
    )
    outcome = only(walk(found, "", "work", version=version, consumers={"work": Consumer(does)}))
    assert (outcome.ending, outcome.queue) == (ending, "dead" if ending == "delivered" else "work")


@pytest.mark.parametrize(("version", "latest"), [(MIDDLE, ms(0)), (NEW, None)])
def test_delayed_retries_of_a_queue_leave_the_time_of_its_giving_up_open(
    version: tuple[int, ...], latest: timedelta | None
) -> None:
    delays = {"x_delayed_retry_type": "all", "x_delayed_retry_min": 1000}
    found = of(a_queue("work", type="quorum", dlx="", key="dead", **delays), Queue("dead"))
    outcome = only(
        walk(found, "", "work", version=version, consumers={"work": Consumer("crashes")})
    )
    assert (outcome.queue, outcome.latest) == ("dead", latest)


def test_a_never_answered_message_with_a_time_to_live_expires_some_time() -> None:
    found = of(a_queue("work", ttl=50, dlx="", key="dead"), Queue("dead"))
    outcome = only(walk(found, "", "work", consumers={"work": Consumer("requeues")}))
    assert (outcome.queue, outcome.after, outcome.latest) == ("dead", ms(50), None)
    assert outcome.doubts == (
        "The message does not expire in “work” while a consumer has it unacknowledged.",
    )
