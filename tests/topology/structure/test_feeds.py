"""What dies into a queue, for which reasons, by which way."""

from __future__ import annotations

from typing import Any

import pytest

from tests.topology.builders import a_queue, a_snapshot
from topology.definitions import Arguments, Binding, BrokerObject, Definitions, Exchange
from topology.routing.context import find_reasons
from topology.structure.ends import find_ends

NEWEST = (4, 3, 6)


@pytest.mark.parametrize(
    ("arguments", "is_delay", "version", "reported"),
    [
        ({}, 0, NEWEST, ("rejected",)),
        ({}, 1, NEWEST, ("expired",)),
        ({"ttl": 5}, 1, NEWEST, ("expired",)),
        ({"ttl": 5}, 0, NEWEST, ("rejected", "expired")),
        ({"ttl": 0}, 0, NEWEST, ("expired",)),
        ({"x_max_length": 5}, 0, NEWEST, ("rejected", "maxlen")),
        ({"x_max_length_bytes": 5, "x_overflow": "reject-publish"}, 0, NEWEST, ("rejected",)),
        (
            {"x_max_length": 5, "x_overflow": "reject-publish-dlx"},
            0,
            NEWEST,
            ("rejected", "maxlen"),
        ),
        ({"ttl": 5, "x_max_length": 5}, 1, NEWEST, ("expired", "maxlen")),
        ({"type": "quorum"}, 0, NEWEST, ("rejected", "delivery_limit")),
        ({"type": "quorum"}, 0, (3, 10, 8), ("rejected",)),
        ({"type": "quorum", "x_delivery_limit": 5}, 0, (3, 10, 8), ("rejected", "delivery_limit")),
        ({"type": "quorum", "x_delivery_limit": -1}, 0, NEWEST, ("rejected",)),
        ({"type": "quorum", "ttl": 5}, 1, NEWEST, ("expired",)),
        ({"type": "stream"}, 0, NEWEST, ()),
    ],
)
def test_for_which_reasons_messages_can_die(
    arguments: dict[str, Any], is_delay: int, version: tuple[int, ...], reported: tuple[str, ...]
) -> None:
    queue = a_queue("q", dlx="", **arguments)
    found = find_reasons(queue, version, is_delay=bool(is_delay), is_consumed=False)
    assert found == reported


def sentences(target: str, *objects: BrokerObject) -> list[str]:
    ends = find_ends(a_snapshot(Definitions.of(objects)))
    return [feed.sentence for feed in ends.feeds.get(target, ())]


def test_how_a_queue_is_fed_in_words() -> None:
    objects: list[BrokerObject] = [
        Exchange("dlx", "topic"),
        Binding("dlx", "dead", "dead.#"),
        a_queue("dead"),
        a_queue("a", dlx="dlx", key="dead.a", x_max_length=5),
        a_queue("hold", ttl=5, dlx="", key="dead"),
    ]
    assert sentences("dead", *objects) == [
        "From “a” when consumers reject messages (rejected) or the queue is full (maxlen), "
        "through the exchange “dlx” with routing key “dead.a”.",
        "From “hold” when messages expire (expired), through the default exchange.",
    ]


def test_many_queues_are_counted() -> None:
    objects = [a_queue("dead"), *(a_queue(f"q{n:02}", dlx="", key="dead") for n in range(20))]
    (reported,) = sentences("dead", *objects)
    assert reported.startswith("From “q00”, “q01”, “q02” and 17 more queues when")


def own_keys(exchange_type: str, bound: str, work: BrokerObject) -> list[str]:
    return sentences(
        "dead",
        Exchange("orders", "topic"),
        Exchange("dlx", exchange_type),
        Binding("dlx", "dead", bound),
        a_queue("dead"),
        a_queue("work", dlx="dlx"),
        work,
    )


def test_messages_that_keep_their_keys_go_where_these_lead() -> None:
    literal = Binding("orders", "work", "order.placed")
    pattern = Binding("orders", "work", "order.*")
    assert own_keys("direct", "order.placed", literal)
    assert own_keys("direct", "work", literal), "what comes by the queue's name"
    assert not own_keys("direct", "invoice", literal)
    assert own_keys("direct", "order.paid", pattern), "any key may come by a pattern"
    assert own_keys("fanout", "", literal) == [
        "From “work” when consumers reject messages (rejected), through the exchange “dlx”."
    ]
    (reported,) = own_keys("topic", "order.#", literal)
    assert reported.endswith("through the exchange “dlx” with the original routing key.")


def test_a_message_is_followed_through_exchanges_and_alternates() -> None:
    objects: list[BrokerObject] = [
        Exchange("dlx", arguments=Arguments({"alternate-exchange": "rest"})),
        Exchange("rest", "fanout"),
        Exchange("behind", "fanout"),
        Binding("rest", "behind", "", destination_is_queue=False),
        Binding("behind", "dead", ""),
        a_queue("dead"),
        a_queue("work", dlx="dlx", key="anything"),
    ]
    assert sentences("dead", *objects)


def test_a_dead_letter_exchange_that_is_not_there_feeds_nothing() -> None:
    assert sentences("dead", a_queue("work", dlx="gone", key="dead"), a_queue("dead")) == []


def test_ten_thousand_queues_behind_one_exchange_are_grouped_and_not_multiplied() -> None:
    bound = [f"q{n:05}" for n in range(10_000)]
    objects: list[BrokerObject] = [
        Exchange("dlx", "topic"),
        a_queue("dead"),
        Binding("dlx", "dead", "#"),
    ]
    objects += [a_queue(name, dlx="dlx") for name in bound]
    (feed,) = find_ends(a_snapshot(Definitions.of(objects))).feeds["dead"]
    assert len(feed.queues) == 10_000
