"""The window of a forwarder: which messages are on the way, and what follows a refused one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import pytest

from delayboard.changes import intercept
from delayboard.changes.carry_out import Executor, Session
from delayboard.changes.intercept import Forwarder, Sent
from delayboard.models import Interception, InterceptionState
from tests.builders import make_broker
from topology import work
from topology.broker.amqp.frames import Delivery
from topology.broker.amqp.pipeline import Answer
from topology.broker.errors import NotFound
from topology.broker.management.client import Management
from topology.message import DOUBLED_HEADER, Publish
from topology.transfer import interception
from topology.transfer.move import move

pytestmark = pytest.mark.django_db


class Queue:
    """In place of the intercept queue: messages by their numbers, and what is acknowledged."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self.coming = [arrival(number) for number in numbers]
        self.acked: set[int] = set()

    def batch(self, *, limit: int, **_: Any) -> list[Delivery]:
        taken, self.coming = self.coming[:limit], self.coming[limit:]
        return taken

    def ack(self, tags: Sequence[int], *, through: int = 0) -> None:
        self.acked |= {*tags, *range(1, through + 1)}

    def attend(self) -> None:
        pass

    @property
    def waiting(self) -> int:
        return len(self.coming)


class Destination:
    """In place of a channel: answers all that is on the way at once, by `kind_of`."""

    is_broken = False

    def __init__(self, kind_of: Callable[[str, int], Any]) -> None:
        self._kind_of = kind_of
        self._on_way: list[tuple[Sent, Publish]] = []
        self.published: list[str] = []
        self.marked: list[str] = []

    @property
    def in_flight(self) -> int:
        return len(self._on_way)

    def publish(self, publish: Publish, token: Sent) -> None:
        name = publish.body.decode()
        self.published.append(name)
        self.marked += [name] if DOUBLED_HEADER in publish.properties.headers else []
        self._on_way.append((token, publish))

    def answers(self, seconds: float) -> list[tuple[Sent, Answer]]:
        on_way, self._on_way = self._on_way, []
        return [(token, self._answer(one.body.decode())) for token, one in on_way]

    def abandon(self) -> list[tuple[Sent, Answer]]:
        return []

    def _answer(self, name: str) -> Answer:
        return Answer(self._kind_of(name, self.published.count(name)))


def arrival(number: int) -> Delivery:
    one = Delivery(number, False, "", "work", b"\0\0")
    one.body = str(number).encode()
    return one


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intercept, "RETRY_SECONDS", 0.0)


def forward_all(
    queue: Queue, destination: Destination, *, window: int = 5, rejects: bool = False
) -> Executor:
    """Forward until nothing is left, and return what counted."""
    broker = make_broker()
    row = Interception.objects.create(
        broker=broker,
        name="delayboard.intercept.test",
        source="delivery",
        queue="work",
        bindings=[["#.work", {}]],
        state=InterceptionState.OPEN,
        work=work.create("interception", 0, broker=broker, user=None),
    )
    session = Session(row, work.lease_of(row.work), Event(), lambda: None)
    management = cast(Management, SimpleNamespace())
    executor = Executor(session, management)
    executor.rejects = rejects
    parts: Any = (session, management, destination, queue, executor)
    forwarder = Forwarder(*parts)
    move(
        forwarder,
        cast(Any, destination),
        window=window,
        is_stopping=lambda: not forwarder._queue.unsettled and not queue.waiting,
        turn=forwarder.turn,
        idle_seconds=0,
    )
    return executor


def test_several_messages_are_on_the_way_and_nothing_passes_one_that_is_refused() -> None:
    queue = Queue(range(1, 8))
    destination = Destination(
        lambda name, time: "nacked" if name in ("2", "4") and time == 1 else "confirmed"
    )
    executor = forward_all(queue, destination)
    assert destination.published == [*"12345", "2", "4", *"67"]
    # The queue may have taken them.
    assert destination.marked == ["2", "4"]
    assert executor.counts == {"passed": 7, "taken": 0, "overtaken": 2}
    assert queue.acked == set(range(1, 8))


def test_a_queue_that_refuses_when_it_is_full_gets_one_message_at_a_time() -> None:
    queue = Queue(range(1, 5))
    destination = Destination(
        lambda name, time: "refused" if name == "2" and time < 3 else "confirmed"
    )
    executor = forward_all(queue, destination, rejects=True)
    assert destination.published == [*"1222", *"34"]
    assert destination.marked == []
    assert executor.counts["overtaken"] == 0


def test_a_deleted_queue_is_bound_again_when_nothing_is_on_the_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on_way: list[int] = []

    def bind(*_: object) -> None:
        on_way.append(destination.in_flight)
        if len(on_way) < 3:
            raise NotFound("The queue does not exist.")

    monkeypatch.setattr(interception, "begin", bind)
    destination = Destination(lambda name, time: "confirmed" if len(on_way) == 3 else "returned")
    executor = forward_all(Queue(range(1, 5)), destination)
    assert on_way == [0, 0, 0]
    assert destination.published == [*"1234", *"1234"]
    assert destination.marked == []
    assert executor.counts["overtaken"] == 0
    assert executor.problem == ""


def test_nothing_is_forwarded_with_changes_that_were_read_long_ago(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = iter([False, False, True, True, True, True])
    monkeypatch.setattr(Executor, "is_fresh", property(lambda self: next(looks)))
    queue = Queue([1, 2])
    pauses: list[int] = []
    monkeypatch.setattr(Queue, "attend", lambda self: pauses.append(self.waiting))
    destination = Destination(lambda name, time: "confirmed")
    forward_all(queue, destination)
    assert pauses == [2, 2]
    assert destination.published == [*"12"]
