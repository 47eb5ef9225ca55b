"""Reads a tap that is a stream: the position to continue from, and the meaning of skipped offsets.

A copy's identity is the stream and its offset. The log is written before the database, so copies
that a crash left only in the log are found there at the next start, and reading continues behind
them. Offsets do not identify the stream: one that was declared again begins at 0. So the last
recorded copy is read once more, and must be equal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from uuid import uuid4

from django.conf import settings
from django.db.models import QuerySet

from analytics import log
from analytics.events import MessageEvent, clean
from analytics.models import Gap, Recording
from analytics.recorder.copies import content_of
from topology.broker.amqp.consumer import Consumer, Delivery, Start
from topology.deaths import read_history
from topology.models import Topology

# Files get their time from another clock than rows do, and clocks are set.
CLOCKS_APART = timedelta(minutes=1)
# A stream that is there delivers its last copy at once.
SILENCE_SECONDS = 5.0
QUIET_SECONDS = 1.0
PEEKED = 500


class StreamReplaced(Exception):
    """The tap is not the stream that was read before; the message says so."""


class NotAlone(Exception):
    """Another recorder has continued this stream; the message says so."""


@dataclass(frozen=True)
class Position:
    """The position in a stream: `offset` is the last recorded one, -1 before the first.

    `mark` identifies the copy there. `is_verified` once the stream has proved to be the same, or
    when there is nothing to compare.
    """

    topology: Topology
    stream: str
    offset: int = -1
    mark: str = ""
    is_verified: bool = False

    @property
    def start(self) -> Start:
        return "first" if self.offset < 0 else self.offset

    @cached_property
    def event_ids(self) -> str:
        """What the ids of this stream's events begin with; the offset follows."""
        return f"{self.topology.tap_queue}@{self.stream}:"

    def event_id(self, delivery: Delivery) -> str:
        return f"{self.event_ids}{delivery.offset}"

    def fresh(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Those that were not recorded yet. Raises StreamReplaced."""
        for delivery in deliveries:
            if delivery.offset == self.offset and mark_of(delivery) != self.mark:
                raise _explain_new_stream(self.topology)
        return [delivery for delivery in deliveries if _offset(delivery) > self.offset]

    def leaps(self, deliveries: Sequence[Delivery]) -> Iterator[tuple[int, int]]:
        """First and last of the offsets that are missing before and between these.

        A single one is no copy: a stream begins its segments with a note of its own, which
        takes an offset (osiris, as of 4.0.5 and 4.3.6). A segment that was dropped had more.
        """
        before = self.offset
        for offset in map(_offset, deliveries):
            if offset - before > 2:
                yield before + 1, offset - 1
            before = offset

    def after(self, deliveries: Sequence[Delivery]) -> Position:
        last = deliveries[-1]
        return replace(self, offset=_offset(last), mark=mark_of(last), is_verified=True)


def resume(topology: Topology) -> Position:
    """Where to go on, behind what only the log has. Raises LogError, db.Error.

    To be called by the only one that writes this tap's lines.
    """
    recording, _ = Recording.objects.get_or_create(
        topology=topology,
        defaults={"read_at": topology.applied_at or datetime.now(UTC)},
    )
    if not recording.stream:
        recording.stream = uuid4().hex[:12]
        recording.save(update_fields=["stream"])
    position = Position(
        topology,
        recording.stream,
        recording.offset,
        recording.mark,
        is_verified=recording.offset < 0,
    )
    return _recover(position, recording.read_at)


def _recover(position: Position, read_at: datetime) -> Position:
    """Go on behind what a crash left in the log."""
    written = {
        int(event.event_id.removeprefix(position.event_ids)): event
        for event in log.written_since(
            settings.EVENT_LOG,
            f"tap.{position.topology.slug}.",
            read_at - CLOCKS_APART,
            event_ids=position.event_ids,
        )
    }
    missing = [written[offset] for offset in sorted(written) if offset > position.offset]
    if not missing:
        return position
    last = replace(
        position, offset=max(written), mark=mark_of_event(missing[-1]), is_verified=False
    )
    advance(position, last)
    return last


def advance(position: Position, to: Position) -> None:
    """Write down how far the stream was read. Raises NotAlone."""
    now = datetime.now(UTC)
    if not _recording(position).update(offset=to.offset, mark=to.mark, read_at=now):
        raise _explain_second_reader(position)


def check_alone(position: Position) -> None:
    """Raises NotAlone when another recorder has continued: then nothing more may be written."""
    if not _recording(position).exists():
        raise _explain_second_reader(position)


def _recording(position: Position) -> QuerySet[Recording]:
    return Recording.objects.filter(
        topology=position.topology, stream=position.stream, offset=position.offset
    )


def _explain_second_reader(position: Position) -> NotAlone:
    return NotAlone(f"Another recorder took over the tap of {position.topology.slug}.")


def note_leaps(position: Position, deliveries: Sequence[Delivery]) -> None:
    """Write down what the stream dropped before it was read.

    Before the copies behind it go into the log: a crash must not hide it, and finds it there.
    """
    for first, last in position.leaps(deliveries):
        recording = Recording.objects.get(topology=position.topology)
        Gap.objects.get_or_create(
            topology=position.topology,
            from_at=recording.read_at,
            why=f"The tap was full and dropped unread copies: offsets {first} to {last}.",
            defaults={"until_at": deliveries[0].received_at, "at_most": last - first + 1},
        )


def forget(topology: Topology) -> None:
    """The stream was deleted: its offsets mean nothing for the next one."""
    Recording.objects.filter(topology=topology).update(stream="", offset=-1, mark="")


def check_reach(position: Position) -> None:
    """Raises StreamReplaced when the stream has copies but ends before, and BrokerError.

    Reads its last chunk: the broker's count of messages is seconds old, and a consumer that waits
    for a future offset gets none of the copies before it.
    """
    newest = -1
    with closing(_last_offsets(position.topology)) as offsets:
        while newest < position.offset:
            found = next(offsets, None)
            if found is None and newest < 0:
                return
            if found is None:
                raise _explain_new_stream(position.topology)
            newest = found


def newest_offset(topology: Topology) -> int | None:
    """Returns the last offset of the stream, None where no copy comes. Raises BrokerError."""
    return max(_last_offsets(topology), default=None)


def _last_offsets(topology: Topology) -> Generator[int, None, None]:
    """Yields later and later offsets of the last chunk, until nothing more comes."""
    with Consumer(
        topology.broker.address, topology.tap_queue, prefetch=PEEKED, start="last"
    ) as consumer:
        while come := consumer.batch(limit=PEEKED, limit_bytes=10**7, wait=QUIET_SECONDS, linger=0):
            consumer.ack_through(come[-1])
            yield _offset(come[-1])


def _explain_new_stream(topology: Topology) -> StreamReplaced:
    return StreamReplaced(
        f"The tap “{topology.tap_queue}” was recreated or truncated after a broker crash. "
        "Its unread copies are lost."
    )


def mark_of(delivery: Delivery) -> str:
    message = delivery.message
    deaths = read_history(message.headers).total
    return _mark(message.exchange, message.routing_key, content_of(message), deaths)


def mark_of_event(event: MessageEvent) -> str:
    return _mark(event.exchange, event.routing_key, event.content_id, event.deaths)


def _mark(exchange: str, routing_key: str, content_id: str, deaths: int) -> str:
    parts = [clean(exchange), clean(routing_key), content_id, str(deaths)]
    return hashlib.sha256("\x00".join(parts).encode()).hexdigest()[:32]


def _offset(delivery: Delivery) -> int:
    assert delivery.offset is not None, "a stream numbers its messages"
    return delivery.offset
