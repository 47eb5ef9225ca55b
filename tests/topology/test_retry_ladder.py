from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.topology.builders import a_queue
from topology.definitions import Arguments, Binding, BrokerObject, Definitions, Exchange, Queue
from topology.patterns.pattern import ParamsError
from topology.patterns.retry_ladder import params as retry_ladder_params
from topology.patterns.retry_ladder.pattern import retry_ladder
from topology.patterns.table import PATTERNS
from topology.routing.walk import Consumer, walk
from topology.structure.copies import Copy, Reading
from topology.structure.taps import tap_definitions

SECOND = timedelta(seconds=1)
PARAMS = retry_ladder_params.Params("o", (SECOND, 5 * SECOND, 9 * SECOND), "a.b")
LADDER = retry_ladder.definitions(PARAMS)
VERSIONS = [(3, 10, 8), (4, 0, 5), (4, 3, 6)]
REJECTS = {"o": Consumer("rejects")}


def steps(found: Definitions, key: str, version: tuple[int, ...] = (4, 3)) -> list[tuple[str, int]]:
    """Queue and second of each stay of what is always rejected in `o`."""
    walked = walk(found, *key.split("/"), version=version, consumers=REJECTS)
    (outcome,) = walked.outcomes
    assert outcome.ending == "delivered"
    return [(hop.queue, hop.after // SECOND) for hop in outcome.hops]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_message_that_always_fails_climbs_every_rung_and_is_parked(
    version: tuple[int, ...],
) -> None:
    assert steps(LADDER, "o/a.b", version) == [
        ("o", 0),
        ("o-rung-1", 0),
        ("o", 1),
        ("o-rung-2", 1),
        ("o", 6),
        ("o-rung-3", 6),
        ("o", 15),
        ("o-parking", 15),
    ]


def test_work_that_came_past_the_exchange_climbs_from_the_first_rung_too() -> None:
    past = steps(LADDER, "/o")
    assert past == steps(LADDER, "o/a.b")
    foreign = LADDER | Definitions.of([Exchange("x"), Binding("x", "o", "#.try.3")])
    assert steps(foreign, "x/#.try.3") == past


def test_what_is_published_with_the_delay_of_a_rung_goes_on_to_the_next_one() -> None:
    way = retry_ladder.route(PARAMS, 5 * SECOND, "o")
    assert steps(LADDER, f"{way.exchange}/{way.routing_key}") == [
        ("o-rung-2", 0),
        ("o", 5),
        ("o-rung-3", 5),
        ("o", 14),
        ("o-parking", 14),
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_message_that_expires_in_the_work_queue_is_lost_as_the_hazards_say(
    version: tuple[int, ...],
) -> None:
    (outcome,) = walk(LADDER, "o", "a.b", version=version, expiration="5").outcomes
    assert (outcome.ending, [hop.queue for hop in outcome.hops]) == ("dropped", ["o", "o-rung-1"])
    assert any("own expiration" in reported for reported in retry_ladder.EXPLANATION.hazards)


@pytest.mark.parametrize("key", ["a", "a.try.1", "*.try.1", "#", "a.b.c", "try.1", ".try."])
def test_ladders_beside_each_other_do_not_mix_whatever_their_keys(key: str) -> None:
    other = retry_ladder_params.Params("p", (SECOND, SECOND), key)
    both = LADDER | retry_ladder.definitions(other)
    assert steps(both, "o/a.b") == steps(LADDER, "o/a.b")
    climbing = walk(both, "p", key, consumers={"p": Consumer("rejects")})
    (outcome,) = climbing.outcomes
    assert [hop.queue for hop in outcome.hops] == [
        *("p", "p-rung-1", "p", "p-rung-2", "p", "p-parking")
    ]
    assert {use.name for use in retry_ladder.recognize(both)} == {"o", "p"}


def test_every_retry_is_tapped_once_on_its_way_in_and_out_and_no_tap_takes_it_away() -> None:
    for phase in ("entry", "exit"):
        chosen = [tap for tap in retry_ladder.taps(PARAMS) if tap.phase == phase]
        tapped = LADDER | tap_definitions("tap", chosen, "classic")
        for start in (("o", "a.b"), ("", "o")):
            walked = walk(tapped, *start, consumers=REJECTS)
            copies = sorted(o.after // SECOND for o in walked.delivered if o.queue == "tap")
            first = [0] if start[0] and phase == "exit" else []
            assert copies == ([*first, 1, 6, 15] if phase == "exit" else [0, 1, 6])
            assert "o-parking" in {outcome.queue for outcome in walked.delivered}


@pytest.mark.parametrize(("asked", "given"), [(1, 1000), (1000, 1000), (1001, 5000), (9000, 9000)])
def test_a_delay_between_two_rungs_is_that_of_the_upper_one(asked: int, given: int) -> None:
    delay = timedelta(milliseconds=asked)
    assert retry_ladder.achievable(PARAMS, delay) == timedelta(milliseconds=given)


def test_a_delay_over_the_last_rung_is_refused() -> None:
    with pytest.raises(ParamsError, match="longest delay of this ladder is 9s"):
        retry_ladder.route(PARAMS, 10 * SECOND, "o")


def test_rungs_that_wait_equally_long_are_one_delay_on_offer_and_the_lower_one_is_taken() -> None:
    params = retry_ladder_params.Params("o", (SECOND, SECOND, 2 * SECOND))
    assert retry_ladder.delays(params) == [SECOND, 2 * SECOND]
    assert retry_ladder.route(params, SECOND, "o").routing_key == "o"


def died(*entries: tuple[str, str, int]) -> dict[str, Any]:
    """Headers after deaths, the newest first."""
    return {
        "x-death": [
            {"queue": queue, "reason": why, "count": count} for queue, why, count in entries
        ],
        "x-last-death-queue": entries[0][0],
        "x-last-death-reason": entries[0][1],
    }


FAILED = ("o", "rejected", 1)
ONCE = ("o-rung-1", "expired", 1)
TWICE = ("o-rung-2", "expired", 1)


@pytest.mark.parametrize(
    ("copy", "reading"),
    [
        (Copy("o", "a.b", {}), Reading("publish", "o", "o", 0 * SECOND, 0)),
        (Copy("o-ladder", "a.b", {}), Reading("entry", "o", "o-rung-1", SECOND, 1)),
        (
            Copy("o-ladder", "a.b", died(FAILED)),
            Reading("entry", "o", "o-rung-1", SECOND, 1, "o", "rejected"),
        ),
        (
            Copy("o-ladder", "o", died(FAILED)),
            Reading("entry", "o", "o-rung-1", SECOND, 1, "o", "rejected"),
        ),
        (
            Copy("o", "a.b.try.1", died(ONCE, FAILED)),
            Reading("exit", "o", "o", SECOND, 1, "o-rung-1", "expired"),
        ),
        (
            Copy("o-ladder", "a.b.try.1", died(FAILED, ONCE)),
            Reading("entry", "o", "o-rung-2", 5 * SECOND, 2, "o", "rejected"),
        ),
        (
            Copy("o", "a.b.try.2", died(TWICE, FAILED, ONCE)),
            Reading("exit", "o", "o", 5 * SECOND, 2, "o-rung-2", "expired"),
        ),
        (
            Copy("o", "a.b.try.2", died(TWICE)),
            Reading("exit", "o", "o", 5 * SECOND, 1, "o-rung-2", "expired"),
        ),
        (Copy("o", "a.b.try.2", {}), Reading("publish", "o", "o", 0 * SECOND, 0)),
        (Copy("o-rung-1", "any", {}), Reading("entry", "o", "o-rung-1", SECOND, 1)),
        (Copy("o-ladder", "a.b.try.3", died(FAILED)), None),
        (Copy("o", "a.b.try.4", {}), None),
        (Copy("elsewhere", "a.b", {}), None),
    ],
)
def test_a_copy_is_read_by_the_rung_that_its_key_leads_to(
    copy: Copy, reading: Reading | None
) -> None:
    assert retry_ladder.read(PARAMS, copy) == reading


def without(*objects: BrokerObject) -> Definitions:
    return LADDER.without(obj.identity for obj in objects)


@pytest.mark.parametrize(
    ("gone", "sentence"),
    [
        (Exchange("o-ladder"), "The exchange “o-ladder” is missing."),
        (Exchange("o-rung-1"), "The exchange “o-rung-1” is missing."),
        (Queue("o"), "The queue “o” is missing."),
        (
            Binding("o-ladder", "o-rung-2", "a.b.try.1"),
            "The binding from “o-ladder” to the queue “o-rung-2” with the key “a.b.try.1” is "
            "missing.",
        ),
        (Queue("o-parking"), "The queue “o-parking” is missing."),
    ],
)
def test_a_ladder_with_a_part_gone_is_found_and_what_is_missing_is_said(
    gone: BrokerObject, sentence: str
) -> None:
    found = without(gone)
    (use,) = retry_ladder.recognize(found)
    assert use.params == PARAMS
    assert use.missing == (sentence,)
    assert use.claims == {obj.identity for obj in found}


def foreign(source: str = "in", **work: Any) -> Definitions:
    """A ladder that others built, with a topic exchange and names of their own."""
    return Definitions.of(
        [
            Exchange(source, "topic"),
            Exchange("retries", "topic"),
            a_queue("work", dlx="retries", **work),
            a_queue("wait a bit", ttl=5, dlx=source, key="k.try.1"),
            a_queue("wait long", ttl=50, dlx=source, key="k.try.2"),
            a_queue("failed"),
            Binding(source, "work", "k.#"),
            Binding("retries", "wait a bit", "k"),
            Binding("retries", "wait long", "#.try.1"),
            Binding("retries", "failed", "#.try.2"),
        ]
    )


@pytest.mark.parametrize(
    "found",
    [
        foreign(ttl=5),
        foreign().without([("queue", "work")]),
        Definitions.of([a_queue("held", ttl=5, dlx="in", key="k.try.1", x_expires=50)]),
        Definitions.of([a_queue("o-rung-1", ttl=0, dlx="o", key="k.try.1")]),
        Definitions.of([a_queue("o-rung-1", ttl=5, dlx="o", key="k.try.0")]),
        Definitions.of([a_queue("o-rung-1", ttl=5, dlx="o", key="k.try.9999")]),
        Definitions.of([a_queue("o-rung-1", ttl=5, dlx="", key="k.try.1")]),
        Definitions.of([a_queue("o-rung-1", ttl="5", dlx="o", key="k.try.1")]),
    ],
)
def test_what_only_looks_like_a_ladder_is_none(found: Definitions) -> None:
    assert list(retry_ladder.recognize(found)) == []


def test_a_queue_that_pretends_to_be_a_rung_does_not_take_its_place() -> None:
    pretends = a_queue("a", ttl=7, dlx="o", key="a.b.try.2")
    (use,) = retry_ladder.recognize(LADDER | Definitions.of([pretends]))
    assert use.params == PARAMS
    assert use.claims == {obj.identity for obj in LADDER}


def test_a_stranger_that_fails_into_a_rung_too_does_not_hide_the_parking_queue() -> None:
    params = retry_ladder_params.Params("o", (SECOND,), "k", "failed orders")
    strangers: list[BrokerObject] = [
        Exchange("a"),
        a_queue("a", dlx="a"),
        Binding("a", "o-rung-1", "k"),
        Binding("o", "a", "k"),
    ]
    own = retry_ladder.definitions(params)
    (use,) = retry_ladder.recognize(own | Definitions.of(strangers))
    assert use.params == params
    assert use.claims == {obj.identity for obj in own}


def test_two_ladders_of_one_exchange_have_one_name_and_are_one_use() -> None:
    other = Definitions.of([a_queue("z", ttl=7, dlx="o", key="else.try.1")])
    leads = Definitions.of([Binding("o-ladder", "z", "else")])
    uses = retry_ladder.recognize(LADDER | other | leads)
    assert [(use.name, use.params) for use in uses] == [("o", PARAMS)]


def test_a_work_queue_that_fails_elsewhere_is_no_part_of_a_ladder_of_its_name() -> None:
    elsewhere = Definitions.of([a_queue("o", dlx="o-retry")])
    assert list(retry_ladder.recognize(without(Queue("o")) | elsewhere)) == []


def test_no_other_pattern_takes_a_ladder_for_its_own() -> None:
    for pattern in PATTERNS.values():
        uses = pattern.recognize(LADDER | foreign())
        assert pattern.KIND == "retry_ladder" or list(uses) == []


def test_it_takes_no_other_pattern_for_its_own() -> None:
    for pattern in PATTERNS.values():
        uses = retry_ladder.recognize(pattern.definitions(pattern.EXAMPLE))
        assert pattern.KIND == "retry_ladder" or list(uses) == []


def test_the_rungs_die_back_with_a_key_that_counts_and_everything_is_classic() -> None:
    first = LADDER.queue("o-rung-2")
    assert first is not None
    assert first.arguments == Arguments(
        {
            "x-queue-type": "classic",
            "x-message-ttl": 5000,
            "x-dead-letter-exchange": "o",
            "x-dead-letter-routing-key": "a.b.try.2",
        }
    )
    assert {queue.type for queue in LADDER.queues} == {"classic"}


def test_messages_go_to_the_work_queue_and_nowhere_else() -> None:
    assert retry_ladder.target_problem(PARAMS, "o", LADDER) == ""
    assert "always go to" in retry_ladder.target_problem(PARAMS, "x", LADDER)
    assert retry_ladder.obstacle((3, 10, 8)) == ""
    assert 'queue = "o"' in retry_ladder.consumer_example(PARAMS)


def test_delays_are_typed_with_or_without_blanks_and_are_three_when_none_are() -> None:
    parsed = retry_ladder.parse({"name": "o", "delays": "1s,2s , 1m30s"})
    assert parsed.delays == (SECOND, 2 * SECOND, 90 * SECOND)
    assert retry_ladder.parse({"name": "o", "delays": " "}) == retry_ladder.EXAMPLE.__class__("o")
