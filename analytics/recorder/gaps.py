"""When copies may have been lost: what is written down, so that no count is silently short."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any

from analytics.models import Gap, Recording
from topology.broker.errors import BrokerError, NotFound
from topology.broker.management.client import PATIENCE_SECONDS, Management
from topology.broker.time_limit import run_in_background
from topology.models import Topology

AWAY = timedelta(seconds=10)
FULL_SHARE = 0.9
# Seconds until RabbitMQ has counted a new queue (five, unless its interval is shorter), and between
# two checks.
STATISTICS_SECONDS, CHECK_SECONDS = 12.0, 0.5
# Seconds between two checks of a tap whose recorder is behind.
OVERFLOW_SECONDS = 5.0
TOO_SLOW = "The recorder read the tap too slowly. The tap was full and dropped copies."


@dataclass(frozen=True)
class Loss:
    """Why copies may have been lost, and how many at most; None when unknown."""

    why: str
    at_most: int | None = None


@dataclass(frozen=True)
class Fill:
    """The fill level of a classic tap in bytes and its maximum; None when not reported.

    `dropped` is how many copies it dropped since RabbitMQ began to count: published copies that are
    neither in the queue nor acknowledged.
    """

    used: int | None
    bound: int | None
    dropped: int | None

    @property
    def is_full(self) -> bool:
        if self.used is None or self.bound is None:
            return False
        return self.used >= self.bound * FULL_SHARE


def read_fill(queue: Mapping[str, Any]) -> Fill:
    """Read it from the management API's answer for a queue."""
    stats = queue.get("message_stats") or {}
    counts = [stats.get("publish"), stats.get("ack"), queue.get("messages")]
    known = [count for count in counts if isinstance(count, int)]
    # Without acknowledgements it counts again since a restart, and not all there is.
    dropped = known[0] - known[1] - known[2] if len(known) == 3 and known[1] else None
    used, bound = queue.get("message_bytes"), queue.get("arguments", {}).get("x-max-length-bytes")
    return Fill(
        used if isinstance(used, int) else None,
        bound if isinstance(bound, int) else None,
        dropped if dropped is not None and dropped >= 0 else None,
    )


def before_reading(topology: Topology, *, was_unread: bool = False) -> Loss | None:
    """Whether copies may have been lost since the tap was last read.

    A classic tap keeps its copies while nobody reads, up to its maximum length. Called before the
    tap is read, which empties it. A stream shows dropped copies by its offsets. `was_unread`:
    nobody has read this tap yet, whatever was read before it.
    """
    recording = Recording.objects.filter(topology=topology).first()
    if recording is None:
        return None
    if loss := absence(topology):
        return loss
    if not was_unread and datetime.now(UTC) - recording.read_at < AWAY:
        return None
    return _count_loss_while_away(topology, wait_seconds=STATISTICS_SECONDS if was_unread else 0)


def absence(topology: Topology) -> Loss | None:
    """What was lost when the tap was found absent and not read since."""
    absent = Recording.objects.filter(topology=topology, lost_since__isnull=False)
    return Loss(_explain_absence(topology)) if absent.exists() else None


def _explain_absence(topology: Topology) -> str:
    """Explain a queue that is missing: RabbitMQ also says NOT_FOUND for one on a node that is
    down.
    """
    return f"The tap queue “{topology.tap_queue}” did not exist, or its node was down."


def note(topology: Topology, loss: Loss | None) -> None:
    """The tap is being read from now on; write the gap before it down, if there was one."""
    now = datetime.now(UTC)
    recording = Recording.objects.filter(topology=topology).first()
    if recording is not None and loss:
        write(topology, recording.read_at, loss)
    Recording.objects.update_or_create(
        topology=topology, defaults={"read_at": now, "lost_since": None}
    )


def write(topology: Topology, from_at: datetime, loss: Loss) -> None:
    """Write a gap down that ends now."""
    Gap.objects.create(
        topology=topology,
        from_at=from_at,
        until_at=datetime.now(UTC),
        why=loss.why,
        at_most=loss.at_most,
    )


def was_read(topology: Topology) -> None:
    Recording.objects.filter(topology=topology).update(read_at=datetime.now(UTC))


def tap_is_absent(topology: Topology) -> None:
    now = datetime.now(UTC)
    Recording.objects.get_or_create(topology=topology, defaults={"read_at": now})
    Recording.objects.filter(topology=topology, lost_since=None).update(lost_since=now)


def _count_loss_while_away(topology: Topology, *, wait_seconds: float) -> Loss | None:
    """Waits at most so long for the first figures of a new queue."""
    until = time.monotonic() + wait_seconds
    try:
        with Management(topology.broker.address, seconds=PATIENCE_SECONDS) as management:
            fill = read_fill(management.queue(topology.tap_queue))
            while fill.used is None and time.monotonic() < until:
                time.sleep(CHECK_SECONDS)
                fill = read_fill(management.queue(topology.tap_queue))
    except NotFound:
        return Loss(_explain_absence(topology))
    except BrokerError as error:
        return Loss(f"The recorder did not read the tap, and the fill level is unknown: {error}")
    if fill.bound is None:
        return None
    if fill.used is None:
        return Loss(
            "The recorder did not read the tap, and RabbitMQ did not report the fill level."
        )
    if not fill.is_full:
        return None
    full = f"{fill.used} of {fill.bound} bytes"
    return Loss(
        f"The recorder did not read the tap. The tap was full ({full}) and dropped copies.",
        fill.dropped,
    )


class Overflow:
    """Looks at one tap while its recorder is behind; used by the recorder's thread."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._pending: Future[Fill] | None = None
        self._checked_at = float("-inf")
        self._sure_at = self._asked_at = datetime.now(UTC)
        self._dropped_before: int | None = None
        self._is_over = False

    def step(self, *, is_behind: bool) -> None:
        """Begin a look when it is time, take up the answer of one that was begun."""
        if self._pending is None:
            is_first, since = self._checked_at < 0, monotonic() - self._checked_at
            if is_first or ((is_behind or self._is_over) and since > OVERFLOW_SECONDS):
                self._asked_at = datetime.now(UTC)
                self._pending = run_in_background(self._read_fill, "check a tap")
            elif not is_behind and not self._is_over:
                self._sure_at = datetime.now(UTC)
            return
        if not self._pending.done():
            return
        asked, self._pending, self._checked_at = self._pending, None, monotonic()
        try:
            self.take(asked.result(), is_behind=is_behind)
        except BrokerError:
            # The recorder has its own connection, and reports problems with the broker.
            return

    def take(self, fill: Fill, *, is_behind: bool) -> None:
        """What a look has shown. The gap ends when the tap is read as it fills again."""
        if fill.is_full:
            self._is_over = True
        elif self._is_over and not is_behind:
            before, now = self._dropped_before, fill.dropped
            dropped = None if before is None or now is None else max(0, now - before)
            write(self._topology, self._sure_at, Loss(TOO_SLOW, dropped))
            self._is_over = False
        if not self._is_over:
            # Copies may have been dropped since: this process may have been stopped.
            self._sure_at = self._asked_at
            self._dropped_before = fill.dropped

    def _read_fill(self) -> Fill:
        with Management(self._topology.broker.address) as management:
            return read_fill(management.queue(self._topology.tap_queue))
