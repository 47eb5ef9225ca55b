from __future__ import annotations

from datetime import timedelta

import pytest

from delayboard.publishing.publish_message import find_tapped, predict
from tests.delayboard.builders import shop
from tests.topology.builders import a_queue, a_snapshot
from topology.definitions import (
    DELAYED_TYPE,
    TAP_PREFIX,
    Arguments,
    Binding,
    Definitions,
    Exchange,
    Queue,
)
from topology.models import Topology
from topology.snapshot import QueueNumbers

SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("exchange", "key", "after", "queue", "sentence"),
    [
        ("orders", "orders", timedelta(0), "orders", "The message arrives in orders at once."),
        ("", "hold", 5 * SECOND, "orders", "The message arrives in orders after 5s."),
        (
            "news",
            "",
            timedelta(0),
            "audit",
            "The message arrives in audit at once. The message arrives in orders at once.",
        ),
        ("gone", "", None, "", "The message is lost at once: the exchange “gone” does not exist."),
    ],
)
def test_a_prediction_says_where_and_when(
    exchange: str, key: str, after: timedelta | None, queue: str, sentence: str
) -> None:
    found = predict(a_snapshot(shop()), exchange, key)
    assert (found.arrives_after, found.queue, found.sentence) == (after, queue, sentence)
    assert found.is_good == (after is not None)


def test_a_tap_is_no_arrival_and_a_consumer_ends_the_way() -> None:
    tap = TAP_PREFIX + "x"
    tapped = shop(Queue(tap), Binding("orders", tap, "only-tapped"))
    assert not predict(a_snapshot(tapped), "orders", "only-tapped").is_good
    numbers = {"hold": QueueNumbers(consumers=1)}
    assert predict(a_snapshot(shop(), numbers), "", "hold").queue == "hold"


def test_an_expiration_is_part_of_the_prediction() -> None:
    there = Definitions.of([a_queue("in", dlx="", key="out"), a_queue("out")])
    found = predict(a_snapshot(there), "", "in", expiration="700")
    assert (found.queue, found.arrives_after) == ("out", timedelta(milliseconds=700))


def test_an_arrival_through_a_tapped_exchange_is_observed(pair: Topology) -> None:
    there = a_snapshot(pair.definitions)
    delayed, direct = predict(there, "orders-retry", "orders"), predict(there, "orders", "orders")
    past_the_taps = predict(there, "", "orders")
    lost = predict(there, "orders", "unbound")
    assert find_tapped([pair], delayed.walk) == find_tapped([pair], direct.walk) == pair
    assert find_tapped([pair], past_the_taps.walk) is None
    assert find_tapped([pair], lost.walk) is None
    assert find_tapped([], delayed.walk) is None


@pytest.mark.parametrize(
    ("key", "sentence"),
    [
        (
            "k",
            "The message is stored by the exchange “later” for 40ms, then arrives in work after "
            "40ms.",
        ),
        (
            "other",
            "The message is stored by the exchange “later” for 40ms, then is lost after 40ms: "
            "the exchange “later” has no queue for the key “other”.",
        ),
    ],
)
def test_what_a_delayed_exchange_keeps_is_predicted_with_it(key: str, sentence: str) -> None:
    """As the plugin's source says; none of the tests' brokers can have it."""
    found = predict(a_snapshot(DELAYING), "later", key, headers={"x-delay": 40})
    assert found.sentence == sentence
    assert found.walk.is_only_kept


DELAYING = Definitions.of(
    [
        Exchange("later", DELAYED_TYPE, arguments=Arguments({"x-delayed-type": "direct"})),
        a_queue("work"),
        Binding("later", "work", "k"),
    ]
)
