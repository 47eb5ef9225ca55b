from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.topology import strategies
from topology.definitions import Arguments, Binding, Definitions, Exchange, Queue
from topology.routing.matching.index import Index
from topology.routing.matching.match import match
from topology.routing.outcome import RouteOutcome, Walk
from topology.routing.walk import MAXIMUM_COPIES, MAXIMUM_OUTCOMES, walk


def ms(number: int) -> timedelta:
    return timedelta(milliseconds=number)


def queue(
    name: str, ttl: int | None = None, dlx: str | None = None, key: str | None = None
) -> Queue:
    stated: dict[str, Any] = {
        "x-message-ttl": ttl,
        "x-dead-letter-exchange": dlx,
        "x-dead-letter-routing-key": key,
    }
    return Queue(name, arguments=Arguments({k: v for k, v in stated.items() if v is not None}))


def ends(walked: Walk) -> list[tuple[str, str, timedelta]]:
    return [(outcome.ending, outcome.queue, outcome.after) for outcome in walked.outcomes]


def only(walked: Walk) -> RouteOutcome:
    (outcome,) = walked.outcomes
    return outcome


@pytest.mark.parametrize(
    ("of_the_queue", "of_the_message", "after"),
    [
        (500, None, 500),
        (None, "300", 300),
        (500, "300", 300),
        (300, "500", 300),
        (0, None, 0),
        (5, "0", 0),
    ],
)
def test_a_message_waits_for_the_smaller_of_both_times(
    of_the_queue: int | None, of_the_message: str | None, after: int
) -> None:
    found = Definitions.of([queue("hold", of_the_queue, "", "work"), queue("work")])
    walked = walk(found, "", "hold", expiration=of_the_message)
    assert ends(walked) == [("delivered", "work", ms(after))]
    assert [(hop.queue, hop.wait) for hop in walked.hops] == [("hold", ms(after)), ("work", None)]


def test_the_messages_own_expiration_ends_with_its_first_death() -> None:
    found = Definitions.of(
        [queue("first", None, "", "second"), queue("second", 900, "", "work"), queue("work")]
    )
    walked = walk(found, "", "first", expiration="100")
    assert ends(walked) == [("delivered", "work", ms(1000))]
    assert walked.hops[1].why == "expired in first after 100ms"


def test_a_dead_letter_keeps_its_key_unless_the_queue_has_another_for_it() -> None:
    objects: list[Any] = [
        Exchange("x"),
        queue("work"),
        queue("other"),
        Binding("x", "work", "k"),
        Binding("x", "other", "hold"),
    ]
    keeps = Definitions.of([*objects, queue("hold", 1, "x")])
    assert only(walk(keeps, "", "hold")).queue == "other"
    replaces = Definitions.of([*objects, queue("hold", 1, "x", "k")])
    assert only(walk(replaces, "", "hold")).queue == "work"


@pytest.mark.parametrize(
    ("found", "exchange", "key", "why"),
    [
        ([], "gone", "k", "the exchange “gone” does not exist"),
        ([Exchange("x")], "x", "k", "the exchange “x” has no queue for the key “k”"),
        ([], "", "k", "the default exchange has no queue for the key “k”"),
        (
            [queue("hold", 60_000)],
            "",
            "hold",
            ("the message expires in “hold” after 1m, and this queue has no dead-letter exchange"),
        ),
        ([queue("hold", 1, "gone")], "", "hold", "the exchange “gone” does not exist"),
        (
            [queue("hold", 1, "x"), Exchange("x")],
            "",
            "hold",
            "the exchange “x” has no queue for the key “hold”",
        ),
    ],
)
def test_a_lost_message_says_where_and_why(
    found: list[Any], exchange: str, key: str, why: str
) -> None:
    outcome = only(walk(Definitions.of(found), exchange, key))
    assert (outcome.ending, outcome.why) == ("dropped", why)
    assert outcome.queue == ("hold" if key == "hold" else "")


def test_a_ring_of_expiries_is_cut_by_the_broker_at_the_second_lap() -> None:
    ring = Definitions.of([queue("a", 10, "", "b"), queue("b", 20, "", "a")])
    walked = walk(ring, "", "a")
    assert ends(walked) == [("dropped", "b", ms(30))]
    assert "drops the message before “a”" in only(walked).why
    assert [hop.queue for hop in walked.hops] == ["a", "b"]


def test_a_queue_that_dies_into_itself_drops_its_messages() -> None:
    assert ends(walk(Definitions.of([queue("a", 10, "")]), "", "a")) == [("dropped", "a", ms(10))]


def test_a_consumed_queue_a_stream_and_one_without_ttl_end_the_way() -> None:
    stream = Queue("stream", arguments=Arguments({"x-queue-type": "stream", "x-message-ttl": 5}))
    found = Definitions.of([queue("hold", 10, "", "work"), queue("work"), stream])
    assert ends(walk(found, "", "hold", consumed={"hold"})) == [("delivered", "hold", ms(0))]
    assert ends(walk(found, "", "stream")) == [("delivered", "stream", ms(0))]
    assert ends(walk(found, "", "work", consumed=set())) == [("delivered", "work", ms(0))]


def test_a_fan_out_is_followed_copy_by_copy() -> None:
    found = Definitions.of(
        [
            Exchange("x", "fanout"),
            queue("fast", 5, "", "work"),
            queue("slow", 50, "", "work"),
            queue("lost", 1),
            queue("work"),
            *(Binding("x", name, "") for name in ("fast", "slow", "lost", "work")),
        ]
    )
    walked = walk(found, "x", "k")
    assert sorted(ends(walked)) == [
        ("delivered", "work", ms(0)),
        ("delivered", "work", ms(5)),
        ("delivered", "work", ms(50)),
        ("dropped", "lost", ms(1)),
    ]
    assert len(walked.delivered) == 3


def test_further_keys_route_too_and_headers_are_asked() -> None:
    found = Definitions.of(
        [
            Exchange("x", "headers"),
            queue("a"),
            queue("b"),
            Binding("x", "a", "", arguments=Arguments({"kind": "pdf"})),
        ]
    )
    assert ends(walk(found, "x", "", headers={"kind": "pdf"})) == [("delivered", "a", ms(0))]
    both = walk(found, "", "a", headers={"CC": ["b"]})
    assert [outcome.queue for outcome in both.delivered] == ["a", "b"]


def test_a_way_that_branches_beyond_measure_is_given_up_and_says_so() -> None:
    """Forty floors of two queues: a million million ways, none of which ends before the last."""
    objects: list[Any] = [queue("end0"), queue("end1")]
    for floor in range(40):
        objects.append(Exchange(f"x{floor}", "fanout"))
        for side in range(2):
            objects.append(queue(f"f{floor}s{side}", 1, f"x{floor + 1}"))
            objects.append(Binding(f"x{floor}", f"f{floor}s{side}", ""))
    walked = walk(Definitions.of(objects), "x0", "k")
    assert len(walked.outcomes) == 1
    assert walked.outcomes[-1].ending == "uncertain"
    assert "too many branches" in walked.outcomes[-1].why
    assert walked.is_routed


@given(
    strategies.definitions(),
    st.sampled_from((*strategies.EXCHANGES, "")),
    strategies.keys | st.sampled_from(strategies.QUEUES),
    st.none() | st.integers(0, 50).map(str),
)
def test_every_walk_ends_and_tells_of_every_copy(
    found: Definitions, exchange: str, key: str, expiration: str | None
) -> None:
    walked = walk(found, exchange, key, expiration=expiration)
    assert 1 <= len(walked.outcomes) <= MAXIMUM_OUTCOMES + len(strategies.QUEUES) + 1
    assert walked.is_routed == bool(match(Index(found), exchange, [key], {}).queues)
    assert len(walked.hops) <= MAXIMUM_COPIES * len(strategies.QUEUES)
    for outcome in walked.outcomes:
        stays = [hop.wait or timedelta(0) for hop in outcome.hops]
        assert outcome.after == sum(stays, timedelta(0))
        names = [hop.queue for hop in outcome.hops]
        assert len(set(names)) == len(names)
        assert outcome.ending != "delivered" or outcome.queue == names[-1]
        assert outcome.why
