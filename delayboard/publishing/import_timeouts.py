"""Timeouts kept outside of a broker come into delay levels: tried, or published, line by line.

Each line is written down, published confirmed and mandatory, and then marked, in this order and
one after the other: a run that is killed anywhere leaves at most one message that the next run
may double, and loses none.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TypeAlias

from django.conf import settings

from delayboard.publishing.timeout_desk import Desk, Item, Tally, Verdict
from topology import audit
from topology.broker.address import Address
from topology.broker.amqp import translated
from topology.broker.errors import BrokerError
from topology.broker.publisher import Publisher, publisher
from topology.message import Publish, Route
from topology.models import State, Topology
from topology.patterns import delay_levels
from topology.provision import Refusal

HEARTBEAT_SECONDS = 30
# A connection that was not used for so long is opened anew: nobody answered its heartbeats.
IDLE_SECONDS = 20.0

Line: TypeAlias = tuple[int, bytes]


def try_import(
    topology: Topology, file_name: str, lines: Iterable[Line], tell: Callable[[Verdict], None]
) -> Tally:
    """What an import would do by a look at the broker; nothing is changed.

    Raises Refusal when nothing could be imported, BrokerError when the broker cannot be seen.
    """
    _refuse_unfit(topology)
    desk = Desk(topology, file_name)
    for number, line in lines:
        judged = desk.judge(number, line)
        if isinstance(judged, Item):
            desk.destinations.take(judged.timeout.destination)
            judged = judged.verdict()
        desk.count(judged, tell)
    return desk.tally


def import_timeouts(
    topology: Topology,
    file_name: str,
    lines: Iterable[Line],
    tell: Callable[[Verdict], None],
    *,
    rate: float | None = None,
) -> Tally:
    """Publish what was not published before, at most `rate` messages a second.

    Raises what `try_import` raises. A broker that goes away later ends it, and `stopped` says so.
    """
    _refuse_unfit(topology)
    with _alone_with(topology):
        desk = Desk(topology, file_name)
        try:
            with _Sender(topology.broker.address) as sender:
                _publish_all(desk, sender, lines, tell, rate)
        except BaseException:
            desk.tally.stopped = "It was interrupted."
            raise
        finally:
            _record(topology, file_name, desk.tally)
    return desk.tally


def _publish_all(
    desk: Desk,
    sender: _Sender,
    lines: Iterable[Line],
    tell: Callable[[Verdict], None],
    rate: float | None,
) -> None:
    free_at = 0.0
    for number, line in lines:
        time.sleep(max(0.0, free_at - time.monotonic()))
        try:
            judged = desk.judge(number, line)
            if isinstance(judged, Item):
                free_at = time.monotonic() + (1 / rate if rate else 0.0)
                judged = desk.publish(judged, sender)
        except (BrokerError, Refusal) as error:
            desk.tally.stopped = f"Stopped at line {number}: {error}"
            return
        desk.count(judged, tell)


class _Sender:
    """A publisher that is opened when it is needed, and anew after an error or a pause."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._stack = ExitStack()
        self._channel: Publisher | None = None
        self._used_at = 0.0

    def __enter__(self) -> _Sender:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def publish_by(self, route: Route, publish: Publish, declared: Callable[[], None]) -> None:
        """Raises BrokerError."""
        if self._channel is None or time.monotonic() - self._used_at > IDLE_SECONDS:
            self._close()
            opened = publisher(self._address, "import of timeouts", heartbeat=HEARTBEAT_SECONDS)
            self._channel = self._stack.enter_context(opened)
        try:
            with translated(self._address):
                self._channel.publish_by(route, publish, declared)
        except BrokerError:
            self._close()
            raise
        self._used_at = time.monotonic()

    def _close(self) -> None:
        self._channel = None
        self._stack.close()


def _refuse_unfit(topology: Topology) -> None:
    if topology.kind != delay_levels.KIND:
        raise Refusal(f"“{topology.name}” is no delay levels, and only those hold any delay.")
    if topology.state != State.APPLIED:
        raise Refusal(f"“{topology.name}” is {topology.get_state_display()}: apply it first.")


@contextmanager
def _alone_with(topology: Topology) -> Iterator[None]:
    """Two imports at once would take each other's lines for left ones. Raises Refusal."""
    settings.VAR.mkdir(parents=True, exist_ok=True)
    with (settings.VAR / f"import-{topology.slug}.lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refusal(f"Another import into “{topology.name}” is at work.") from None
        yield


def _record(topology: Topology, file_name: str, tally: Tally) -> None:
    audit.record(
        None,
        "timeouts imported",
        broker=topology.broker,
        what=f"{file_name} into {topology.name}",
        outcome=tally.stopped or "done",
        details={"lines": dict(tally.marks), "may_be_doubled": tally.doubled},
    )
