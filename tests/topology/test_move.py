from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from topology.broker.consumer import Delivery
from topology.broker.errors import (
    BrokerError,
    Conflict,
    Nacked,
    NotFound,
    OutcomeUnknown,
    Refused,
    Returned,
    Unreachable,
)
from topology.message import Message, Properties, Publish
from topology.transfer.move import Moved, Step, move

LONG = timedelta(hours=1)


class Desk:
    """A source, a publisher and a journal that write down, in one list, what is asked of them."""

    def __init__(self, bodies: list[bytes]) -> None:
        self.bodies = bodies
        self.calls: list[str] = []
        self.skipped: set[int] = set()
        self.fails: dict[str, Exception] = {}
        self.complete_after = len(bodies) + 1
        self._got = 0

    def _do(self, verb: str, key: int) -> None:
        self.calls.append(f"{verb} {key}")
        if error := self.fails.get(f"{verb} {key}"):
            raise error

    def get(self) -> Delivery | None:
        if self._got == len(self.bodies):
            return None
        self._got += 1
        message = Message("x", "k", Properties(), self.bodies[self._got - 1])
        return Delivery(message, self._got, datetime.now(UTC))

    def ack(self, delivery: Delivery) -> None:
        self._do("ack", delivery.tag)

    def publish(self, publish: Publish) -> None:
        self._do("publish", int(publish.body))

    def is_complete(self) -> bool:
        return self._got >= self.complete_after

    def decide(self, message: Message) -> Step | None:
        key = int(message.body)
        if key in self.skipped:
            return None
        return Step(key, Publish("y", "k", body=message.body))

    def publishing(self, key: int) -> None:
        self._do("publishing", key)

    def check(self, publish: Publish) -> None:
        self._do("check", int(publish.body))

    def confirmed(self, key: int) -> None:
        self._do("confirmed", key)

    def done(self, key: int) -> None:
        self._do("done", key)

    def refused(self, key: int, error: BrokerError) -> None:
        self.calls.append(f"refused {key}: {error}")

    def pulse(self) -> None:
        self.calls.append("pulse")

    def move(self, limit: int = 100, holding: timedelta = LONG) -> Moved:
        part: Any = self
        return move(part, part, part, limit=limit, holding=holding, pulse=self.pulse)


def whole(key: int) -> list[str]:
    steps = ("publishing", "publish", "check", "confirmed", "ack", "done")
    return [*(f"{step} {key}" for step in steps), "pulse"]


def test_a_message_is_acked_only_after_its_copy_is_confirmed_and_written_down() -> None:
    desk = Desk([b"1", b"2"])
    assert desk.move() == Moved(seen=2, taken=2, is_exhausted=True)
    assert desk.calls == whole(1) + whole(2)


def test_what_nobody_wants_is_left() -> None:
    desk = Desk([b"1", b"2"])
    desk.skipped = {1, 2}
    assert desk.move() == Moved(seen=2, taken=0, is_exhausted=True)
    assert desk.calls == []


@pytest.mark.parametrize("error", [Returned, Nacked, NotFound, Refused, Conflict])
@pytest.mark.parametrize("step", ["publish", "check"])
def test_what_the_broker_refuses_stays_and_the_next_is_moved(
    error: type[BrokerError], step: str
) -> None:
    desk = Desk([b"1", b"2"])
    desk.fails[f"{step} 1"] = error("no")
    assert desk.move() == Moved(seen=2, taken=1, is_exhausted=True)
    assert "ack 1" not in desk.calls
    assert "confirmed 1" not in desk.calls
    assert desk.calls[-len(whole(2)) - 2 :] == ["refused 1: no", "pulse", *whole(2)]


@pytest.mark.parametrize("error", [OutcomeUnknown, Unreachable])
@pytest.mark.parametrize("step", ["publish", "check"])
def test_a_connection_that_breaks_ends_it_with_nothing_acked_or_refused(
    error: type[BrokerError], step: str
) -> None:
    desk = Desk([b"1", b"2"])
    desk.fails[f"{step} 1"] = error("broke")
    with pytest.raises(error):
        desk.move()
    assert desk.calls[-1] == f"{step} 1"
    assert not [call for call in desk.calls if call.startswith(("ack", "refused", "confirmed"))]


@pytest.mark.parametrize("step", ["publishing", "confirmed", "ack", "done"])
def test_a_death_at_any_step_takes_none_of_the_later_ones(step: str) -> None:
    desk = Desk([b"1"])
    desk.fails[f"{step} 1"] = RuntimeError("power cut")
    with pytest.raises(RuntimeError):
        desk.move()
    assert desk.calls == whole(1)[: whole(1).index(f"{step} 1") + 1]


def test_a_limit_stops_short_of_the_end_and_says_that_there_may_be_more() -> None:
    desk = Desk([b"1", b"2", b"3"])
    desk.skipped = {1, 2, 3}
    assert desk.move(limit=2) == Moved(seen=2, taken=0, is_exhausted=False)


def test_nothing_is_held_longer_than_allowed() -> None:
    assert Desk([b"1"]).move(holding=timedelta(0)) == Moved(0, 0, is_exhausted=False)


def test_a_complete_journal_asks_for_nothing_more() -> None:
    desk = Desk([b"1", b"2"])
    desk.complete_after = 1
    assert desk.move() == Moved(seen=1, taken=1, is_exhausted=False)


def test_a_pulse_that_stops_the_work_comes_after_the_message_is_done() -> None:
    desk = Desk([b"1", b"2"])

    def stop() -> None:
        raise KeyError("stopped")

    part: Any = desk
    with pytest.raises(KeyError):
        move(part, part, part, limit=9, holding=LONG, pulse=stop)
    assert desk.calls == whole(1)[:-1]
