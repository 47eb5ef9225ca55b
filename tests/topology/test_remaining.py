"""The rest of the way of a message that already waits somewhere."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.topology import strategies
from tests.topology.builders import a_queue
from topology.definitions import Definitions
from topology.message import Message, Properties
from topology.routing.context import Consumer
from topology.routing.remaining_route import trace_remaining_route
from topology.routing.walk import walk

PAIR = Definitions.of([a_queue("hold", ttl=1000, dlx="", key="work"), a_queue("work")])


def ms(number: int) -> timedelta:
    return timedelta(milliseconds=number)


def waiting(key: str, expiration: str | None = None, **headers: Any) -> Message:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Message("", key, Properties(headers=named, expiration=expiration), b"")


def died(queue: str, reason: str = "expired", count: int = 1) -> dict[str, Any]:
    return {"queue": queue, "reason": reason, "count": count, "exchange": "", "routing-keys": []}


@pytest.mark.parametrize(
    ("waited", "after", "spread"),
    [(None, 0, 1000), (ms(300), 700, 0), (ms(5000), 0, 0)],
)
def test_what_is_left_is_known_when_the_wait_is_and_bounded_when_it_is_not(
    waited: timedelta | None, after: int, spread: int
) -> None:
    (outcome,) = trace_remaining_route(PAIR, waiting("hold"), "hold", waited=waited).outcomes
    assert (outcome.ending, outcome.queue) == ("delivered", "work")
    assert (outcome.after, outcome.spread) == (ms(after), ms(spread))
    assert outcome.latest == ms(after + spread)
    assert [hop.queue for hop in outcome.hops] == ["hold", "work"]


def test_its_own_expiration_counts_while_it_is_in_the_queue() -> None:
    (outcome,) = trace_remaining_route(PAIR, waiting("hold", "200"), "hold", waited=ms(0)).outcomes
    assert (outcome.after, outcome.spread) == (ms(200), ms(800))
    assert outcome.doubts == (
        "Earlier messages in “hold” with a longer TTL delay this message, up to 1s.",
    )


def test_a_message_at_its_end_stays_there_and_one_in_no_queue_is_uncertain() -> None:
    (stays,) = trace_remaining_route(PAIR, waiting("work"), "work").outcomes
    assert (stays.ending, stays.queue, stays.after) == ("delivered", "work", ms(0))
    (nowhere,) = trace_remaining_route(PAIR, waiting("work"), "gone").outcomes
    assert (nowhere.ending, nowhere.why) == ("uncertain", "the queue “gone” does not exist")


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (waiting("hold", "soon"), "the expiration “soon” is not a whole number"),
        (waiting("hold", CC="work"), "the header CC is not a list"),
    ],
)
def test_a_message_that_no_broker_would_have_taken_is_uncertain(message: Message, why: str) -> None:
    (outcome,) = trace_remaining_route(PAIR, message, "hold").outcomes
    assert (outcome.ending, outcome.queue) == ("uncertain", "hold")
    assert why in outcome.why


def test_it_goes_by_its_own_deaths_and_from_4_0_on_not_by_published_ones() -> None:
    """In a ring of two expiries, having died in the other one already is the end of it."""
    ring = Definitions.of(
        [a_queue("a", ttl=10, dlx="", key="b"), a_queue("b", ttl=20, dlx="", key="a")]
    )
    message = waiting("b", x_death=[died("a")])
    for version in ((3, 10, 8), (4, 3, 6)):
        (outcome,) = trace_remaining_route(
            ring, message, "b", version=version, waited=ms(0)
        ).outcomes
        assert (outcome.ending, outcome.queue, outcome.after) == ("dropped", "b", ms(20))
    published = replace(message, exchange="elsewhere")
    (old,) = trace_remaining_route(ring, published, "b", version=(3, 10, 8), waited=ms(0)).outcomes
    assert (old.queue, old.after) == ("b", ms(20))
    (new,) = trace_remaining_route(ring, published, "b", version=(4, 3, 6), waited=ms(0)).outcomes
    assert (new.queue, new.after) == ("a", ms(30))


def test_a_consumer_counts_the_rejections_that_it_shows() -> None:
    retry = Definitions.of(
        [a_queue("work", dlx="", key="wait"), a_queue("wait", ttl=100, dlx="", key="work")]
    )
    message = waiting("work", x_death=[died("wait", count=2), died("work", "rejected", 2)])
    consumers = {"work": Consumer("rejects", 3)}
    (outcome,) = trace_remaining_route(retry, message, "work", consumers=consumers).outcomes
    assert (outcome.ending, outcome.queue, outcome.after) == ("delivered", "work", ms(100))
    assert [hop.queue for hop in outcome.hops] == ["work", "wait", "work"]


def test_failed_deliveries_so_far_count_from_4_3_on() -> None:
    found = Definitions.of(
        [a_queue("work", type="quorum", x_delivery_limit=2, dlx="", key="dead"), a_queue("dead")]
    )
    message = waiting("work", x_delivery_count=2)
    consumers = {"work": Consumer("crashes")}
    (outcome,) = trace_remaining_route(found, message, "work", consumers=consumers).outcomes
    assert (outcome.ending, outcome.queue) == ("delivered", "dead")


@given(
    strategies.definitions(),
    st.sampled_from(strategies.QUEUES),
    st.none() | st.integers(0, 50).map(str),
)
def test_what_has_just_come_goes_on_as_what_is_published_now(
    found: Definitions, queue: str, expiration: str | None
) -> None:
    published = walk(found, "", queue, expiration=expiration)
    left = trace_remaining_route(found, waiting(queue, expiration), queue, waited=timedelta(0))
    if found.queue(queue) is not None:
        ends = [(o.ending, o.queue, o.after, o.spread, o.why) for o in published.outcomes]
        assert [(o.ending, o.queue, o.after, o.spread, o.why) for o in left.outcomes] == ends
    else:
        assert [outcome.ending for outcome in left.outcomes] == ["uncertain"]
