"""A replay straight through: what lies in a live queue goes to its target, as it is.

Nothing is parked and no message has a row: only the counts of the batch tell how far it is. A
message is acknowledged after the broker has confirmed its copy, and what was not taken goes back.

In the batch, numbers up to `claimed_to` may have been given out as replay ids. While a run sends,
`prepared_to` is another number: where a run finds them so, the one before it broke off.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from threading import Event
from typing import Any

from django.db import DatabaseError, connection, transaction
from django.db.models import F
from django.utils import timezone

from delayboard.dead_letters.replay.hold import Hold, Lost, Wish
from delayboard.dead_letters.replay.options import OptionError
from delayboard.dead_letters.replay.source import Bucket
from delayboard.dead_letters.replay.straight_deciding import Deciding
from delayboard.dead_letters.replay.straight_source import EMPTY_SECONDS, StraightSource
from delayboard.dead_letters.replay.ways import After
from delayboard.models import BatchState, ReplayBatch
from topology import work
from topology.broker.depths import live_depths
from topology.broker.errors import NotFound
from topology.broker.intake import intake
from topology.broker.management import PATIENCE_SECONDS, Management
from topology.broker.observe import observe
from topology.broker.pipeline import Pipeline, pipeline
from topology.models import Work, WorkState
from topology.transfer.move import move

# So many are on the way at once: what a crash may double.
WINDOW = 1000
# So many numbers are reserved at once.
RESERVED = 50_000
LOOK_SECONDS = 0.25
COMMIT_SECONDS = 1.0
RETRY_AFTER = timedelta(seconds=5)
# After a run that broke off the broker may still hold its messages for so long (seconds).
LINGER_SECONDS = 15.0

NOT_ANSWERED = "The broker did not answer all of it: what is open is sent again."
SENT = ("done", "returned", "nacked", "failed")


def run(batch: ReplayBatch, lease: work.Lease, *, stop: Event, alive: Callable[[], None]) -> None:
    """Send until all is through, it is paused or cancelled, or `stop`; then let the work go.

    `alive` is called every second. Raises BrokerError and DatabaseError, with what was answered
    written down as far as that goes; running again goes on.
    """
    claimed = Work.objects.get(pk=lease.work_id)
    if claimed.fence != lease.fence:
        return
    with suppress(Lost):
        hold = Hold(claimed, batch)
        running = _Run(batch, hold, stop, alive)
        try:
            if not batch.is_ended:
                running.prepare()
                running.send()
        except OptionError as error:
            hold.rest(str(error))
        else:
            running.end(lease)


class _Run:
    def __init__(
        self, batch: ReplayBatch, hold: Hold, stop: Event, alive: Callable[[], None]
    ) -> None:
        self._batch, self._hold, self._stop, self._alive = batch, hold, stop, alive
        self._wish: Wish = ""
        self._looked_at = self._committed_at = 0.0
        self._empty_seconds = EMPTY_SECONDS
        self._source: StraightSource | None = None
        self._is_through = batch.pending == 0

    def prepare(self) -> None:
        """Count what there is, in one commit. Raises BrokerError.

        What was refused before is tried again. What an earlier run may have doubled is there
        again, beside what it had not taken.
        """
        batch = self._batch
        depth = live_depths(batch.broker.address, [batch.queue]).get(batch.queue)
        if depth is None:
            raise NotFound(f"There is no queue “{batch.queue}” any more.")
        if not batch.claimed_to and not sum(getattr(batch, name) for name in SENT):
            selected = depth if batch.limit is None else min(depth, batch.limit)
            self._write(selected=selected)
        left = batch.selected - batch.done - batch.cancelled
        if batch.prepared_to == batch.claimed_to:
            self._write(returned=0, nacked=0, failed=0)
            return
        unsure = min(WINDOW, batch.selected - batch.cancelled)
        again = max(0, min(unsure, depth - left))
        self._empty_seconds = LINGER_SECONDS
        self._write(
            returned=0,
            nacked=0,
            failed=0,
            selected=batch.selected + again,
            doubled=batch.doubled + unsure,
            state_why=_doubled(batch.doubled + unsure),
            prepared_to=batch.claimed_to,
        )

    def send(self) -> None:
        """Raises BrokerError, DatabaseError, Lost; what was answered is written down then too.

        Raises OptionError where its target is none any more.
        """
        batch = self._batch
        address = batch.broker.address
        self._is_through = batch.pending == 0
        if self._is_through or self._is_stopping():
            return
        with Management(address, seconds=PATIENCE_SECONDS) as management:
            definitions = observe(management).definitions
            deciding = Deciding(batch, definitions)
            try:
                with (
                    pipeline(address, f"replay {batch.pk}") as channel,
                    intake(address, batch.queue, prefetch=2 * WINDOW) as taking,
                ):
                    self._source = source = StraightSource(
                        taking,
                        deciding,
                        lambda: After(management, definitions),
                        Bucket(batch.rate, time.monotonic()),
                        self._reserve,
                        left=batch.pending,
                        window=WINDOW,
                        number=batch.claimed_to,
                        empty_seconds=self._empty_seconds,
                    )
                    self._move(source, channel)
                self._is_through = source.is_through
                self._commit(claimed_to=source.number, prepared_to=source.number)
            finally:
                self._commit()

    def _move(self, source: StraightSource, channel: Pipeline[Any]) -> None:
        stopping, turn = self._is_stopping, self._turn
        try:
            move(source, channel, window=WINDOW, is_stopping=stopping, turn=turn)
        finally:
            source.flush()

    def end(self, lease: work.Lease) -> None:
        """Let the work go as people want it, or as it came out. Raises Lost."""
        self._wish = self._hold.wish()
        if self._wish == "lost":
            raise Lost
        if self._wish == "cancel":
            self._hold.cancel(self._alive, self._stop.is_set)
        elif self._is_through:
            self._done(lease)
        elif self._wish == "pause":
            self._hold.pause()
        elif self._stop.is_set():
            self._hold.give_back("", after=timedelta(0))
        else:
            self._hold.give_back(NOT_ANSWERED, after=RETRY_AFTER)

    def _done(self, lease: work.Lease) -> None:
        batch = self._batch
        gone = batch.pending
        told = (self._refused(), _gone(gone, batch.queue), _doubled(batch.doubled))
        why = " ".join(sentence for sentence in told if sentence)
        ended = {"state": BatchState.DONE, "state_at": timezone.now(), "pause_wanted": False}
        with transaction.atomic():
            if self._hold.keep() == "cancel":
                return
            ReplayBatch.objects.filter(pk=batch.pk).update(
                cancelled=F("cancelled") + gone, state_why=why, **ended
            )
            lease.end(WorkState.DONE)

    def _refused(self) -> str:
        batch = self._batch
        number = batch.returned + batch.nacked + batch.failed
        if not number:
            return ""
        first = f" The first: {self._source.error}" if self._source and self._source.error else ""
        return f"{number:,} stay in “{batch.queue}”.{first}"

    def _is_stopping(self) -> bool:
        if self._stop.is_set() or self._wish:
            return True
        now = time.monotonic()
        if now - self._looked_at > LOOK_SECONDS:
            self._looked_at = now
            with suppress(DatabaseError):
                self._wish = self._hold.wish()
        return bool(self._wish)

    def _turn(self) -> None:
        """A database that fails for a moment is asked again; what it missed is kept until then."""
        now = time.monotonic()
        if now - self._committed_at < COMMIT_SECONDS:
            return
        self._committed_at = now
        try:
            self._commit()
        except DatabaseError:
            connection.close_if_unusable_or_obsolete()
        self._alive()

    def _reserve(self) -> int:
        self._commit(claimed_to=self._batch.claimed_to + RESERVED)
        return self._batch.claimed_to

    def _commit(self, **values: Any) -> None:
        """Write down what was counted. Raises Lost."""
        counts = {} if self._source is None else dict(self._source.counts)
        self._write(**{name: F(name) + number for name, number in counts.items()}, **values)
        if self._source is not None:
            self._source.counts.subtract(counts)

    def _write(self, **values: Any) -> None:
        with transaction.atomic():
            self._hold.keep()
            if values:
                ReplayBatch.objects.filter(pk=self._batch.pk).update(**values)
        if values:
            self._batch.refresh_from_db(fields=list(values))


def _gone(number: int, queue: str) -> str:
    if not number:
        return ""
    return (
        f"{number:,} were no longer in “{queue}”: they were consumed or expired there, or went "
        "right before a run broke off."
    )


def _doubled(number: int) -> str:
    if not number:
        return ""
    return f"Up to {number:,} may be there twice: a run broke off while they were sent."
