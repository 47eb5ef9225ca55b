"""What a nack says of a message, by the queues that it was routed to."""

from __future__ import annotations

from typing import Any

import pytest

from tests.topology.builders import a_queue
from topology.definitions import Exchange
from topology.operations.answers import Nack, SeenQueue, explain_nack
from topology.routing.matching.match import Matched

LIMIT: dict[str, Any] = {"x-max-length": 2, "x-overflow": "reject-publish"}


def seen(name: str, *, ready: int | None = None, is_down: bool = False, **more: Any) -> SeenQueue:
    return SeenQueue(a_queue(name, **more), ready, is_down)


def explain(*queues: SeenQueue, **matched: Any) -> Nack:
    names = tuple(sorted(one.queue.name for one in queues))
    return explain_nack(Matched(names, **matched), {one.queue.name: one for one in queues})


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_only_one_queue_that_is_full_and_rejects_proves_that_nothing_arrived(kind: str) -> None:
    full = seen("work", ready=2, type=kind, **LIMIT)
    is_refused, sentence = explain(full)
    assert is_refused
    assert "“work” is full and rejected the message" in sentence


@pytest.mark.parametrize(
    "queue",
    [
        pytest.param(seen("work"), id="no limit"),
        pytest.param(seen("work", ready=1, **LIMIT), id="has room"),
        pytest.param(seen("work", **LIMIT), id="depth unknown"),
        pytest.param(
            seen("work", ready=2, **LIMIT | {"x-overflow": "drop-head"}), id="drops its head"
        ),
        # It dead-letters what it rejects.
        pytest.param(
            seen("work", ready=2, **{**LIMIT, "x-overflow": "reject-publish-dlx"}),
            id="dead-letters",
        ),
        pytest.param(seen("work", ready=2, is_down=True, **LIMIT), id="down"),
        pytest.param(seen("work", ready=2, type="stream", **LIMIT), id="stream"),
        pytest.param(
            seen("work", ready=9, **{**LIMIT, "x-max-length": None, "x-max-length-bytes": 9}),
            id="bytes are not known",
        ),
    ],
)
def test_any_other_queue_may_have_taken_it(queue: SeenQueue) -> None:
    is_refused, sentence = explain(queue)
    assert not is_refused
    assert sentence.endswith("It may have arrived in “work”.")


def test_with_a_second_queue_it_may_have_arrived_there_and_the_full_one_is_named() -> None:
    full = seen("log", ready=2, **LIMIT)
    assert explain(full, seen("work")) == (
        False,
        "RabbitMQ rejected the message because “log” is full and rejects messages. It may have "
        "arrived in “work”.",
    )


def test_of_two_full_ones_either_may_have_taken_it_as_its_last() -> None:
    is_refused, sentence = explain(
        seen("log", ready=2, **LIMIT), seen("work", ready=2, **LIMIT), seen("zebra")
    )
    assert not is_refused
    assert "arrived in “log”, “work” and “zebra”" in sentence


def test_a_queue_whose_node_is_down_is_named_and_may_have_it_but_for_a_tap() -> None:
    tap, log = seen("delayboard.tap.shop", is_down=True), seen("log", is_down=True)
    assert explain(tap, seen("work")) == (
        False,
        "RabbitMQ rejected the message because “delayboard.tap.shop” is not available. It may "
        "have arrived in “work”.",
    )
    assert explain(log, seen("work")).sentence.endswith("arrived in “log” and “work”.")
    # The tap may have failed and be back.
    assert not explain(seen("delayboard.tap.shop"), seen("work", ready=2, **LIMIT)).is_refused


@pytest.mark.parametrize("unclear", ["unforeseeable", "storing"])
def test_behind_an_exchange_of_which_the_route_is_not_known_it_may_have_arrived(
    unclear: str,
) -> None:
    full = seen("work", ready=2, **LIMIT)
    is_refused, sentence = explain(full, **{unclear: (Exchange("x", "x-random"),)})
    assert not is_refused
    assert sentence.endswith("because “work” is full and rejects messages. It may have arrived.")


def test_a_queue_that_is_gone_or_a_route_that_is_not_seen_leaves_it_unknown() -> None:
    unknown = "because a queue refused it or failed. It may have arrived"
    assert explain_nack(Matched(("gone",)), {}) == (
        False,
        f"RabbitMQ rejected the message {unknown} in “gone”.",
    )
    assert explain_nack(Matched(), {}) == (False, f"RabbitMQ rejected the message {unknown}.")


def test_of_many_queues_a_few_are_named() -> None:
    _, sentence = explain(*(seen(f"q{number}") for number in range(5)))
    assert sentence.endswith("arrived in “q0”, “q1”, “q2” and 2 more.")
