from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from delayboard.dead_letters.queues import peek
from delayboard.dead_letters.queues.peek import (
    Budget,
    PeekedMessage,
    history_id,
    number_messages,
    permission,
)
from tests.delayboard.builders import a_death, a_message, deaths_header
from tests.topology.builders import a_queue, a_snapshot, delivered
from topology.broker.amqp.frames import Delivery
from topology.broker.errors import Unsupported
from topology.definitions import Definitions
from topology.message import Message
from topology.models import Broker
from topology.snapshot import QueueNumbers

LIMIT = {"x_delivery_limit": 20}
END = "to the end of the queue"
COSTS = "20 of 20 deliveries left. Each peek uses one"


@pytest.mark.parametrize(
    "version", ["3.10.8", "3.13.7", "4.0.5", "4.2.9", "4.3.6", "4.4.0-dev", ""]
)
def test_a_classic_queue_may_be_looked_into_on_every_broker(version: str) -> None:
    queue = a_queue("q")
    allowed = permission(queue, a_snapshot(Definitions.of([queue]), version=version))
    assert allowed.allowed
    assert allowed.sentences == (
        "A peek sets the redelivered flag of every message that it shows.",
    )


@pytest.mark.parametrize(
    ("version", "arguments", "allowed", "said"),
    [
        ("3.10.8", {}, False, END),
        ("3.10.8", LIMIT, True, COSTS),
        ("3.10.8", {"x_delivery_limit": -1}, False, "0 of 0 deliveries left"),
        ("3.13.7", {}, False, END),
        ("3.13.7", {"x_delivery_limit": 5}, True, "5 of 5 deliveries left"),
        ("3.13.7", {"x_delivery_limit": 3}, False, "Delayboard reserves the last 3 for consumers."),
        ("4.0.5", {}, True, COSTS),
        ("4.0.5", {"x_delivery_limit": 0}, False, "0 of 0 deliveries left"),
        ("4.2.9", LIMIT, True, COSTS),
        ("4.2.9", {"x_delivery_limit": -1}, False, END),
        ("4.3.0", {}, True, "not count a peek as a failed delivery"),
        ("4.3.6", LIMIT, True, "not count a peek as a failed delivery"),
        ("4.3.6", {"x_delivery_limit": -1}, True, "moves the messages to the end of the queue"),
        (
            "4.3.6",
            {"x_delayed_retry_type": "failed"},
            True,
            "not count a peek as a failed delivery",
        ),
        (
            "4.3.6",
            {"x_delayed_retry_type": "disabled"},
            True,
            "not count a peek as a failed delivery",
        ),
        ("4.3.6", {"x_delayed_retry_type": "all"}, False, "hide every peeked message"),
        ("4.3.6", {"x_delayed_retry_type": "returned"}, False, "hide every peeked message"),
        ("", {}, False, END),
    ],
)
def test_a_quorum_queue_only_where_a_look_does_no_harm_or_can_be_counted(
    version: str, arguments: dict[str, Any], allowed: bool, said: str
) -> None:
    queue = a_queue("q", type="quorum", **arguments)
    found = permission(queue, a_snapshot(Definitions.of([queue]), version=version))
    assert found.allowed == allowed
    assert said in " ".join(found.sentences)
    assert found.parks == (not version.startswith("4.3") or not allowed)


@pytest.mark.parametrize(
    ("kind", "said"), [("stream", "Delayboard does not peek at streams"), ("mqtt", "“mqtt”")]
)
def test_no_other_type_is_looked_into(kind: str, said: str) -> None:
    queue = a_queue("q", type=kind)
    found = permission(queue, a_snapshot(Definitions.of([queue])))
    assert not found.allowed
    assert said in found.sentences[0]


def test_consumers_and_a_short_ttl_are_told_before_a_look() -> None:
    queue = a_queue("q", ttl=5000)
    numbers = {"q": QueueNumbers(consumers=1)}
    reported = permission(queue, a_snapshot(Definitions.of([queue]), numbers)).sentences
    assert ["consumers" in reported[1], "expire soon" in reported[2]] == [True, True]
    slow = a_queue("q", ttl=60_000)
    assert len(permission(slow, a_snapshot(Definitions.of([slow]))).sentences) == 1


def test_equal_messages_are_told_apart_by_history_then_numbered() -> None:
    one, other = a_message(b"1"), a_message(b"2")
    died_again = a_message(b"1", headers={})
    found = number_messages([one, other, died_again, one])
    assert [peeked_message.handle.rpartition(".")[2] for peeked_message in found] == [
        "1",
        "1",
        "1",
        "2",
    ]
    assert len({peeked_message.handle for peeked_message in found}) == 4
    assert found[0].handle.startswith(f"{one.content_id}.")
    assert found[2].content_id == one.content_id
    assert found[0].history.deaths[0].queue == "orders"


def test_only_how_it_died_makes_another_history() -> None:
    death = deaths_header(a_death())
    same = [death, death | {"x-delivery-count": 3}, {"a": 1} | death]
    assert len({history_id(a_message(headers=headers).headers) for headers in same}) == 1
    again = deaths_header(a_death(count=2))
    others = [death, again, {}]
    assert len({history_id(a_message(headers=headers).headers) for headers in others}) == 3
    assert history_id({"x-death": ["\ud800", {"a": b"\xff"}]}) != history_id({})


def test_a_short_budget_is_refused_and_what_is_unknown_of_it_is_said() -> None:
    queue = a_queue("q", type="quorum")
    there = a_snapshot(Definitions.of([queue]), version="4.0.5")
    enough = permission(queue, there, Budget(20, 16))
    assert enough.allowed
    assert "4 of 20 deliveries left" in enough.sentences[-1]
    assert "counts other deliveries only of messages that it peeked" in enough.sentences[-1]
    short = permission(queue, there, Budget(20, 17))
    assert not short.allowed
    assert short.sentences[0].startswith("The first messages have 3 of 20 deliveries left")


class Source:
    """Gives its messages one by one; counts how many were taken."""

    def __init__(self, messages: list[Message]) -> None:
        self._messages = messages
        self.taken = self.removed = 0

    def get(self) -> Delivery | None:
        if self.taken == len(self._messages):
            return None
        self.taken += 1
        return delivered(self._messages[self.taken - 1], self.taken, datetime.now(UTC))


@pytest.fixture
def filled(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Source]:
    """Put messages into the queue that is looked into."""

    def fill(*messages: Message) -> Source:
        source = Source(list(messages))

        @contextmanager
        def getter(*args: Any, **kwargs: Any) -> Iterator[Source]:
            yield source

        monkeypatch.setattr(peek, "getter", getter)
        return source

    return fill


def look(*, limit: int = peek.MAXIMUM_MESSAGES) -> tuple[tuple[PeekedMessage, ...], bool]:
    queue = a_queue("dead")
    broker = Broker(amqp_addresses="h", management_urls="http://h")
    found = peek.peek_queue(broker, queue, a_snapshot(Definitions.of([queue])), limit)
    return found.peeked_messages, found.more


def test_a_look_ends_with_the_queue_or_one_after_its_limit(filled: Callable[..., Source]) -> None:
    filled(a_message(b"1"), a_message(b"2"))
    peeked_messages, more = look()
    assert (len(peeked_messages), more) == (2, False)
    source = filled(*(a_message(b"%d" % n) for n in range(4)))
    peeked_messages, more = look(limit=2)
    assert (len(peeked_messages), more, source.taken) == (2, True, 3)
    filled()
    assert look() == ((), False)


def test_a_look_stops_at_so_many_bytes_and_so_many_seconds(
    filled: Callable[..., Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peek, "MAXIMUM_BYTES", 3)
    source = filled(a_message(b"12"), a_message(b"34"), a_message(b"56"))
    peeked_messages, more = look()
    assert (len(peeked_messages), more, source.taken) == (2, True, 2)
    monkeypatch.setattr(peek, "HOLDING_SECONDS", -1.0)
    source = filled(a_message(b"1"), a_message(b"2"))
    peeked_messages, more = look()
    assert (len(peeked_messages), more, source.taken) == (1, True, 1)


def test_a_queue_that_may_not_be_looked_into_is_not_touched() -> None:
    queue = a_queue("q", type="quorum", x_delivery_limit=-1)
    there = a_snapshot(Definitions.of([queue]), version="4.0.5")
    with pytest.raises(Unsupported, match=END):
        peek.peek_queue(Broker(), queue, there)
