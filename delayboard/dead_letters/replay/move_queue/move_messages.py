"""Moves the messages of a live queue to their targets, unchanged and without parking.

No message has a row: only the counts of the batch show the progress. A message is acknowledged
after RabbitMQ confirmed its copy, and messages without a copy are requeued.

In the batch, numbers up to `claimed_to` may be in use as replay ids. While a run sends,
`prepared_to` is lower. A run that finds it lower knows that the run before was interrupted, and
that messages with the numbers between the two may have been published.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import timedelta
from threading import Event
from typing import Any

from django import db
from django.conf import settings
from django.db import connection, transaction

from delayboard.dead_letters.replay.batch.lease import (
    NOT_ANSWERED,
    RETRY_AFTER,
    BatchLease,
    Request,
)
from delayboard.dead_letters.replay.batch.options import OptionError
from delayboard.dead_letters.replay.move_queue import moved_counts
from delayboard.dead_letters.replay.move_queue.delivery_limit import Costly, choose_prefetch
from delayboard.dead_letters.replay.move_queue.moved_counts import COUNTED, SENT, add_counts
from delayboard.dead_letters.replay.move_queue.outgoing_message import OutgoingMessages
from delayboard.dead_letters.replay.move_queue.queue_source import EMPTY_SECONDS, LiveQueueSource
from delayboard.dead_letters.replay.move_queue.watch_queue import QueueWatch
from delayboard.dead_letters.replay.publish.tap_check import TapCheck
from delayboard.models import ReplayBatch
from topology.broker.amqp.depths import live_depths
from topology.broker.amqp.fast_consumer import Intake, intake
from topology.broker.amqp.pipeline import Answer, Pipeline, pipeline
from topology.broker.errors import NotFound
from topology.broker.management.client import PATIENCE_SECONDS, Management
from topology.operations.nacks import NackCheck
from topology.transfer.move import move
from topology.transfer.rate import RateLimiter

# So many numbers are reserved at once.
RESERVED = 50_000
REQUEST_SECONDS = 0.25
COMMIT_SECONDS = 1.0
# After a run that broke off the broker may still hold its messages for so long (seconds).
LINGER_SECONDS = 15.0


def move_queue(lease: BatchLease, *, stop: Event, alive: Callable[[], None]) -> None:
    """Move messages until none remains, a user requests something, or `stop` is set.

    The lease is released when the run ends by itself; the caller carries out the user's request.
    `alive` is called every second. Raises LeaseLost, BrokerError and db.Error, after saving known
    results as far as possible; another run continues.
    """
    running = _Run(lease, stop, alive)
    try:
        running.prepare()
        running.send()
    except (OptionError, Costly) as error:
        lease.pause_itself(str(error))
    else:
        running.end()


class _Run:
    def __init__(self, lease: BatchLease, stop: Event, alive: Callable[[], None]) -> None:
        self._batch, self._lease, self._stop, self._alive = lease.batch, lease, stop, alive
        self._request: Request = ""
        self._request_read_at = self._committed_at = 0.0
        self._empty_seconds = EMPTY_SECONDS
        self._source: LiveQueueSource | None = None
        self._is_through = self._batch.pending == 0
        self._taking: Intake | None = None
        self._base: dict[str, int] = {}

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
        remaining = batch.selected - batch.done - batch.cancelled
        if batch.prepared_to == batch.claimed_to:
            self._write(returned=0, failed=0, unknown=0)
            return
        given_out = batch.claimed_to - batch.prepared_to
        unsure = min(batch.in_flight, given_out, batch.selected - batch.cancelled)
        again = max(0, min(unsure, depth - remaining))
        self._empty_seconds = LINGER_SECONDS
        doubled = min(batch.selected + again, batch.doubled + unsure)
        self._write(
            returned=0,
            failed=0,
            unknown=0,
            selected=batch.selected + again,
            doubled=doubled,
            state_why=moved_counts.describe_doubled(doubled),
            prepared_to=batch.claimed_to,
        )

    def send(self) -> None:
        """Raises BrokerError, db.Error, LeaseLost; what was answered is written down then too.

        Raises OptionError where its target is none any more, Costly where taking messages
        destroys some.
        """
        batch = self._batch
        address = batch.broker.address
        self._is_through = batch.pending == 0
        if self._is_through or self._is_stopping():
            return
        with Management(address, seconds=PATIENCE_SECONDS) as management:
            watch = QueueWatch(batch.broker, management, batch.queue)
            deciding = OutgoingMessages(batch, watch.definitions)
            window = settings.MESSAGES_IN_FLIGHT
            # A kill that comes before any other commit finds what it may have duplicated.
            self._write(in_flight=window)
            prefetch = choose_prefetch(2 * window, batch.rate, watch.average())
            self._base = {name: getattr(batch, name) for name in COUNTED}
            begun = batch.claimed_to
            try:
                with (
                    pipeline(address, f"replay {batch.pk}") as channel,
                    intake(address, batch.queue, prefetch=prefetch) as taking,
                ):
                    self._taking = taking
                    self._source = LiveQueueSource(
                        taking,
                        deciding,
                        lambda: TapCheck(management, watch.definitions),
                        RateLimiter(batch.rate, time.monotonic()),
                        self._reserve,
                        remaining=batch.pending,
                        window=window,
                        prefetch=prefetch,
                        number=begun,
                        limit=watch.limit,
                        empty_seconds=self._empty_seconds,
                    )
                    self._move(self._source, channel, watch)
                self._is_through = self._source.is_through
            finally:
                self._write_end(begun)
            if self._source.costly and not self._is_through:
                raise Costly(self._source.costly)

    def _move(self, source: LiveQueueSource, channel: Pipeline[Any], watch: QueueWatch) -> None:
        def turn() -> None:
            source.attend()
            if watch.is_due:
                with self._attend():
                    source.costly = source.costly or watch.costly()
            self._turn()

        nacks = NackCheck(self._batch.broker)

        def explain_nack(answer: Answer) -> Answer:
            with self._attend():
                return nacks.settle(answer)

        try:
            move(
                source,
                channel,
                window=self._batch.in_flight,
                is_stopping=self._is_stopping,
                turn=turn,
                explain_nack=explain_nack,
            )
        finally:
            source.flush()

    def _write_end(self, begun: int) -> None:
        """Write down how it ended: what is sure, and how much is not where the queue broke off."""
        source, taking, self._taking = self._source, self._taking, None
        if source is None or taking is None:
            return
        number = source.number
        if taking.is_given_back:
            source.counts["doubled"] += source.unsure
            self._commit(claimed_to=number, prepared_to=number)
        else:
            self._commit(
                claimed_to=number, prepared_to=number - min(self._batch.in_flight, number - begun)
            )

    def end(self) -> None:
        """Let the work go as it came out, unless people request something. Raises LeaseLost."""
        if self._is_through:
            self._complete()
        elif self._lease.read_request() or self._stop.is_set():
            return
        elif self._source and self._source.is_unacked_long:
            self._start_again(self._source)
        else:
            self._lease.give_back(NOT_ANSWERED, after=RETRY_AFTER)

    def _start_again(self, source: LiveQueueSource) -> None:
        """What was refused is back in the queue: try it and the rest again, if any went.

        Not what may have arrived: each time could be a duplicate.
        """
        if source.counts["done"] and not source.counts["unknown"]:
            self._lease.give_back(moved_counts.REFUSED_AGAIN, after=timedelta(0))
        else:
            self._lease.pause_itself(
                moved_counts.explain_stuck(source.counts["unknown"], source.error)
            )

    def _complete(self) -> None:
        batch = self._batch
        missing = batch.pending
        error = self._source.error if self._source else ""
        sentences = (
            moved_counts.describe_refused(batch, error),
            moved_counts.describe_missing(missing, batch.queue),
            moved_counts.describe_doubled(batch.doubled),
        )
        why = " ".join(filter(None, sentences))
        self._lease.complete(why, cancelled=batch.cancelled + missing)

    def _is_stopping(self) -> bool:
        source = self._source
        if self._stop.is_set() or self._request:
            return True
        if source is not None and (source.costly or source.is_unacked_long):
            return True
        now = time.monotonic()
        if now - self._request_read_at > REQUEST_SECONDS:
            self._request_read_at = now
            with suppress(db.Error):
                self._request = self._lease.read_request()
        return bool(self._request)

    def _turn(self) -> None:
        """Retry a database error; unsaved counts are kept until then."""
        now = time.monotonic()
        if now - self._committed_at < COMMIT_SECONDS:
            return
        self._committed_at = now
        try:
            self._commit()
        except db.Error:
            connection.close_if_unusable_or_obsolete()
        self._alive()

    def _reserve(self) -> int:
        self._commit(claimed_to=self._batch.claimed_to + RESERVED)
        return self._batch.claimed_to

    def _commit(self, **values: Any) -> None:
        """Write down what was counted. Raises LeaseLost.

        Whole numbers, for a commit whose answer is lost is made again.
        """
        counted = self._source.counts if self._source else None
        counts = {} if counted is None else add_counts(self._batch, self._base, counted)
        with self._attend():
            self._write(**counts, **values)

    def _attend(self) -> AbstractContextManager[None]:
        return self._taking.attended() if self._taking else nullcontext()

    def _write(self, **values: Any) -> None:
        with transaction.atomic():
            self._lease.renew()
            if values:
                ReplayBatch.objects.filter(pk=self._batch.pk).update(**values)
        if values:
            self._batch.refresh_from_db(fields=list(values))
