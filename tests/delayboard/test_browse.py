from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from delayboard.dead_letters import browse
from delayboard.dead_letters.browse import Letter, number, permission
from delayboard.dead_letters.candidates import candidates
from tests.delayboard.builders import a_message
from tests.topology.builders import a_queue, a_snapshot
from topology.broker.consumer import Delivery
from topology.broker.errors import Unsupported
from topology.definitions import Definitions
from topology.message import Message
from topology.models import Broker
from topology.snapshot import QueueNumbers

LIMIT = {"x_delivery_limit": 20}
END = "at the end of the queue"
COSTS = "costs each message one of its 20 deliveries"


@pytest.mark.parametrize(
    "version", ["3.10.8", "3.13.7", "4.0.5", "4.2.9", "4.3.6", "4.4.0-dev", ""]
)
def test_a_classic_queue_may_be_looked_into_on_every_broker(version: str) -> None:
    queue = a_queue("q")
    allowed = permission(queue, a_snapshot(Definitions.of([queue]), version=version))
    assert allowed.allowed
    assert allowed.sentences == (
        "Looking sets the redelivered mark of every message that is shown.",
    )


@pytest.mark.parametrize(
    ("version", "arguments", "allowed", "said"),
    [
        ("3.10.8", {}, False, END),
        ("3.10.8", LIMIT, False, COSTS),
        ("3.10.8", {"x_delivery_limit": -1}, False, END),
        ("3.13.7", {}, False, END),
        ("3.13.7", {"x_delivery_limit": 5}, False, "one of its 5 deliveries"),
        ("4.0.5", {}, False, COSTS),
        ("4.2.9", LIMIT, False, COSTS),
        ("4.2.9", {"x_delivery_limit": -1}, False, END),
        ("4.3.0", {}, True, "no failed delivery"),
        ("4.3.6", LIMIT, True, "no failed delivery"),
        ("4.3.6", {"x_delivery_limit": -1}, True, "go to the end of the queue"),
        ("4.3.6", {"x_delayed_retry_type": "failed"}, True, "no failed delivery"),
        ("4.3.6", {"x_delayed_retry_type": "disabled"}, True, "no failed delivery"),
        ("4.3.6", {"x_delayed_retry_type": "all"}, False, "out of sight"),
        ("4.3.6", {"x_delayed_retry_type": "returned"}, False, "out of sight"),
        ("", {}, False, END),
    ],
)
def test_a_quorum_queue_only_where_a_look_takes_nothing_from_its_messages(
    version: str, arguments: dict[str, Any], allowed: bool, said: str
) -> None:
    queue = a_queue("q", type="quorum", **arguments)
    found = permission(queue, a_snapshot(Definitions.of([queue]), version=version))
    assert found.allowed == allowed
    assert said in " ".join(found.sentences)


@pytest.mark.parametrize(("kind", "said"), [("stream", "A stream has no"), ("mqtt", "“mqtt”")])
def test_no_other_type_is_looked_into(kind: str, said: str) -> None:
    queue = a_queue("q", type=kind)
    found = permission(queue, a_snapshot(Definitions.of([queue])))
    assert not found.allowed
    assert said in found.sentences[0]


def test_consumers_and_a_short_ttl_are_told_before_a_look() -> None:
    queue = a_queue("q", ttl=5000)
    numbers = {"q": QueueNumbers(consumers=1)}
    told = permission(queue, a_snapshot(Definitions.of([queue]), numbers)).sentences
    assert ["consumers" in told[1], "expire soon" in told[2]] == [True, True]
    slow = a_queue("q", ttl=60_000)
    assert len(permission(slow, a_snapshot(Definitions.of([slow]))).sentences) == 1


def test_messages_of_equal_content_are_numbered_apart() -> None:
    one, other = a_message(b"1"), a_message(b"2")
    died_again = a_message(b"1", headers={})
    found = number([one, other, died_again, one])
    assert [letter.occurrence for letter in found] == [1, 1, 2, 3]
    assert len({letter.handle for letter in found}) == 4
    assert found[0].handle == f"{one.content_id}.1"
    assert found[0].history.deaths[0].queue == "orders"


class Source:
    """Gives its messages one by one; counts how many were taken."""

    def __init__(self, messages: list[Message]) -> None:
        self._messages = messages
        self.taken = 0

    def get(self) -> Delivery | None:
        if self.taken == len(self._messages):
            return None
        self.taken += 1
        return Delivery(self._messages[self.taken - 1], self.taken, datetime.now(UTC))


def look(
    monkeypatch: pytest.MonkeyPatch, bodies: list[bytes], **changes: Any
) -> tuple[tuple[Letter, ...], bool, int]:
    source = Source([a_message(body) for body in bodies])

    @contextmanager
    def getter(*args: Any, **kwargs: Any) -> Iterator[Source]:
        yield source

    monkeypatch.setattr(browse, "getter", getter)
    queue = a_queue("dead")
    broker = Broker(host="h", management_url="http://h")
    found = browse.look(broker, queue, a_snapshot(Definitions.of([queue])), **changes)
    return found.letters, found.more, source.taken


def test_a_look_ends_with_the_queue_or_one_after_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    letters, more, _ = look(monkeypatch, [b"1", b"2"])
    assert (len(letters), more) == (2, False)
    letters, more, taken = look(monkeypatch, [b"1", b"2", b"3", b"4"], limit=2)
    assert (len(letters), more, taken) == (2, True, 3)
    assert look(monkeypatch, []) == ((), False, 0)


def test_a_look_stops_at_so_many_bytes_and_so_many_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browse, "MAXIMUM_BYTES", 3)
    letters, more, taken = look(monkeypatch, [b"12", b"34", b"56"])
    assert (len(letters), more, taken) == (2, True, 2)
    monkeypatch.setattr(browse, "HOLDING_SECONDS", -1.0)
    letters, more, taken = look(monkeypatch, [b"1", b"2"])
    assert (len(letters), more, taken) == (1, True, 1)


def test_a_queue_that_may_not_be_looked_into_is_not_touched() -> None:
    queue = a_queue("q", type="quorum")
    there = a_snapshot(Definitions.of([queue]), version="4.0.5")
    with pytest.raises(Unsupported, match=COSTS):
        browse.look(Broker(), queue, there)


def test_likely_dead_letter_queues_come_first_the_deepest_before_the_others() -> None:
    names = ("deep", "shallow", "unknown")
    queues = [
        *(a_queue(name) for name in names),
        a_queue("work"),
        a_queue("hold", ttl=5),
        a_queue("own"),
        a_queue("log", type="stream"),
        a_queue("delayboard.tap.orders"),
    ]
    numbers = {
        "deep": QueueNumbers(messages=9, consumers=0),
        "shallow": QueueNumbers(messages=1, consumers=0),
        "work": QueueNumbers(messages=50, consumers=1),
    }
    found = candidates(a_snapshot(Definitions.of(queues), numbers), {"own"})
    assert [(c.queue, c.is_likely) for c in found] == [
        ("deep", True),
        ("shallow", True),
        ("unknown", True),
        ("work", False),
        ("hold", False),
        ("log", False),
        ("own", False),
    ]
    assert {c.queue: c.why for c in found} == {
        **dict.fromkeys(names, "nobody consumes it"),
        "work": "has consumers: a work queue",
        "hold": "its messages expire: a delay",
        "log": "a stream: nothing dies into it for good",
        "own": "part of a topology",
    }
