from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.topology.builders import a_queue
from topology.definitions import Arguments, Binding, Definitions, Exchange, Queue
from topology.patterns.pattern import ParamsError
from topology.patterns.quorum_retry import params as quorum_retry_params
from topology.patterns.quorum_retry.pattern import quorum_retry
from topology.patterns.table import PATTERNS
from topology.routing.walk import Consumer, walk
from topology.structure.copies import Copy, Reading

MS = timedelta(milliseconds=1)
PARAMS = quorum_retry_params.Params("o", "failed", 300 * MS, 700 * MS, 3, "k")
WHOLE = quorum_retry.definitions(PARAMS)


def test_the_work_queue_states_everything_and_parks_at_least_once() -> None:
    work, parking = WHOLE.queue("o"), WHOLE.queue("o-parking")
    assert work is not None
    assert parking is not None
    assert work.arguments == Arguments(
        {
            "x-queue-type": "quorum",
            "x-delayed-retry-type": "failed",
            "x-delayed-retry-min": 300,
            "x-delayed-retry-max": 700,
            "x-delivery-limit": 3,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "o-parking",
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
        }
    )
    assert parking.arguments == Arguments({"x-queue-type": "quorum", "x-delivery-limit": -1})
    assert WHOLE.bindings == {Binding("o", "o", "k")}


@pytest.mark.parametrize("does", ["crashes", "rejects"])
def test_what_fails_too_often_or_is_rejected_for_good_is_parked(does: Any) -> None:
    walked = walk(WHOLE, "o", "k", version=(4, 3, 6), consumers={"o": Consumer(does)})
    (outcome,) = walked.outcomes
    assert (outcome.ending, outcome.queue) == ("delivered", "o-parking")
    reported = "“o” delays each redelivery."
    assert (reported in outcome.doubts) == (does == "crashes")


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ((3, 10, 8), "RabbitMQ 3.10.8"),
        ((4, 0, 5), "RabbitMQ 4.0.5"),
        ((4, 2), "RabbitMQ 4.2"),
        ((4, 3), ""),
        ((4, 3, 6), ""),
        ((5, 0), ""),
        ((), ""),
    ],
)
def test_a_broker_before_4_3_is_refused_with_its_version_and_what_to_use_instead(
    version: tuple[int, ...], said: str
) -> None:
    reported = quorum_retry.obstacle(version)
    assert said in reported
    assert bool(reported) == bool(said)
    assert not reported or "Use a retry ladder" in reported


def test_no_delay_is_on_offer_and_asking_for_one_says_why() -> None:
    assert quorum_retry.delays(PARAMS) == (timedelta(0),)
    assert quorum_retry.longest(PARAMS) == timedelta(0)
    with pytest.raises(ParamsError, match="cannot delay a new message"):
        quorum_retry.route(PARAMS, MS, "o")
    assert any(
        "does not delay new messages" in reported for reported in quorum_retry.EXPLANATION.hazards
    )
    assert any("delays only returned messages" in field.help for field in quorum_retry.FIELDS)


@pytest.mark.parametrize(
    ("copy", "reading"),
    [
        (Copy("o", "k", {}), Reading("publish", "o", "o", timedelta(0), 0)),
        (Copy("o", "k", {"x-delivery-count": 3}), Reading("publish", "o", "o", timedelta(0), 0)),
        (Copy("o", "other", {}), None),
        (Copy("", "o", {}), None),
    ],
)
def test_a_copy_is_always_of_a_publish(copy: Copy, reading: Reading | None) -> None:
    assert quorum_retry.read(PARAMS, copy) == reading


def own(**changes: Any) -> Queue:
    """The work queue with other arguments; None takes one out."""
    work = WHOLE.queue("o")
    assert work is not None
    stated = {f"x-{name.replace('_', '-')}": value for name, value in changes.items()}
    merged = {**work.arguments, **stated}
    return Queue("o", arguments=Arguments({n: v for n, v in merged.items() if v is not None}))


def test_a_part_that_is_gone_is_said_and_the_rest_is_claimed() -> None:
    found = WHOLE.without([("queue", "o-parking"), ("exchange", "o")])
    (use,) = quorum_retry.recognize(found)
    assert use.params == PARAMS
    assert use.claims == {obj.identity for obj in found}
    assert use.missing == (
        "The exchange “o” is missing.",
        "The queue “o-parking” is missing.",
    )


def test_other_arguments_beside_are_said() -> None:
    there = WHOLE.without([("queue", "o")]) | Definitions.of([own(overflow=None)])
    (use,) = quorum_retry.recognize(there)
    assert use.params == PARAMS
    assert use.missing == ("The queue “o” differs from the pattern.",)


@pytest.mark.parametrize(
    "queue",
    [
        own(delayed_retry_type="disabled"),
        own(delayed_retry_type=None),
        own(delayed_retry_type=True),
        own(queue_type="classic"),
        a_queue("o", type="quorum", dlx="", key="o-parking"),
    ],
)
def test_a_queue_that_delays_no_retry_is_none_of_it(queue: Queue) -> None:
    assert list(quorum_retry.recognize(Definitions.of([queue, Exchange("o")]))) == []


@pytest.mark.parametrize("ms", [0, -5, 2**63 - 1, 10**30, "300", True])
def test_a_hostile_delay_is_none_of_it_and_no_error(ms: Any) -> None:
    for found in (own(delayed_retry_min=ms), own(delayed_retry_max=ms)):
        assert list(quorum_retry.recognize(Definitions.of([found]))) == []


def test_no_other_pattern_takes_it_for_its_own() -> None:
    for pattern in PATTERNS.values():
        assert pattern.KIND == "quorum_retry" or list(pattern.recognize(WHOLE)) == []


def test_it_takes_no_other_pattern_for_its_own() -> None:
    for pattern in PATTERNS.values():
        uses = quorum_retry.recognize(pattern.definitions(pattern.EXAMPLE))
        assert pattern.KIND == "quorum_retry" or list(uses) == []


def test_messages_go_to_the_work_queue_and_what_waits_is_said_to_be_unseen() -> None:
    assert quorum_retry.target_problem(PARAMS, "o", WHOLE) == ""
    assert "always go to" in quorum_retry.target_problem(PARAMS, "x", WHOLE)
    (reported,) = quorum_retry.remarks(PARAMS, WHOLE)
    assert "no tap can observe" in reported


@pytest.mark.parametrize(("retry", "call"), [("failed", "basic_reject"), ("returned", "nack")])
def test_the_example_puts_back_in_the_way_that_waits(retry: str, call: str) -> None:
    example = quorum_retry.consumer_example(quorum_retry_params.Params("o", retry))
    assert call in example.rpartition("else")[2]
