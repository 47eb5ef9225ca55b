"""Carrying a started batch out, from the worker: claim, wait, send, watch the first ones, go on."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from threading import Event

from django import db
from django.conf import settings
from django.db import connection, transaction
from django.utils import timezone

from delayboard.dead_letters.replay import claims, outcome
from delayboard.dead_letters.replay.batch_state import (
    NOT_ANSWERED,
    BatchLease,
    Request,
    end_watch,
)
from delayboard.dead_letters.replay.parked_source import (
    CHECK_AGAIN_SECONDS,
    ParkedMessageSource,
    PublishRoutes,
)
from delayboard.models import BatchState, ItemState, ReplayBatch
from delayboard.models.replay import OPEN
from topology import snapshots, work
from topology.broker.amqp.pipeline import pipeline
from topology.broker.errors import BrokerError
from topology.broker.management.client import PATIENCE_SECONDS, Management
from topology.definitions import Exchange
from topology.models import Work
from topology.models.read_only import read_only_reason
from topology.operations.answers import NackCheck
from topology.transfer.move import RateLimiter, move

WATCH_EVERY = timedelta(seconds=1)
# Seconds between two checks for pause or cancel, and between two whether to pause automatically.
REQUEST_SECONDS = 0.2
STOPS_SECONDS = 1.0
# Seconds between two renewals of the lease while nothing is taken or settled.
RENEW_SECONDS = 4.0
# Seconds for which one reading of the virtual host is used.
PASS_SECONDS = 300.0
# Seconds at the end in which a silent broker is asked whether queues have the confirmed messages.
CHECK_SECONDS = 30.0
# Seconds until a database that refuses is tried again.
DATABASE_SECONDS = 1.0

NOT_WRITTEN = "The database cannot be written, so sent messages are not recorded yet. Retrying:"
NOT_CHECKED = "Whether queues have the confirmed messages cannot be checked now:"


def replay(claimed: Work, *, stop: Event, alive: Callable[[], None]) -> None:
    """Do the batch of a claimed Work until it rests, or give it back: a broker fails, or `stop`.

    `alive` is called at least every few seconds. Raises db.Error when the database fails
    before anything is on its way.
    """
    rows = ReplayBatch.objects.select_related("broker", "topology")
    # The chosen ids may be ten thousand, and the row is read again and again.
    batch = rows.defer("parked_messages").get(pk=claimed.subject)
    sending = Sending(BatchLease(claimed, batch), stop, alive)
    try:
        sending.run()
    except BrokerError as error:
        sending.lease.give_back(str(error), after=work.RETRY_AFTER)
    except db.Error as error:
        with suppress(db.Error):
            _reconnect()
            sending.lease.give_back(f"The database failed: {error}", after=work.RETRY_AFTER)
        raise


@dataclass
class Sending:
    """One worker's turn at a batch: the steps of its states, until the lease ends."""

    lease: BatchLease
    stop: Event
    alive: Callable[[], None]
    _request_read_at: float = 0.0
    _renewed_at: float = 0.0
    _stops_at: float = 0.0
    _stops_why: str = ""
    _request: Request = field(default="", init=False)
    _is_read_only: bool = field(default=False, init=False)

    def run(self) -> None:
        """Take steps until the lease is let go or lost. Raises Stopped, BrokerError, db.Error."""
        while (request := self.lease.read_request()) != "lost":
            self._step(request)

    def _step(self, request: Request) -> None:
        """Raises Stopped, BrokerError, db.Error."""
        batch = self.lease.batch
        batch.refresh_from_db()
        if request == "cancel":
            self.lease.cancel(self.alive, self.stop.is_set)
        elif request == "pause":
            self.lease.pause_as_requested()
        elif self.stop.is_set():
            self.lease.give_back("", after=timedelta(0))
        elif batch.claimed_to < batch.selected:
            self._claim()
        elif batch.state == BatchState.WAITING:
            self._wait(batch)
        elif batch.state == BatchState.WATCHING:
            self._watch(batch)
        else:
            self._pass(batch)

    def _claim(self) -> None:
        with transaction.atomic():
            if not self.lease.renew():
                claims.claim_chunk(self.lease.batch)
        self.alive()

    def _wait(self, batch: ReplayBatch) -> None:
        if batch.publish_at is not None and batch.publish_at > timezone.now():
            self.lease.wait_until(batch.publish_at)
        else:
            self.lease.set_state(BatchState.RUNNING, batch.state_why)

    def _watch(self, batch: ReplayBatch) -> None:
        now = timezone.now()
        checked = outcome.check_canary(batch, now)
        if checked.action == "wait":
            self.lease.wait_until(now + WATCH_EVERY)
        elif checked.action == "go on":
            self.lease.set_state(BatchState.RUNNING, checked.why, **end_watch(batch, now))
        else:
            self.lease.pause_itself(checked.why, canary_until=min(now, batch.canary_until or now))

    def _pass(self, batch: ReplayBatch) -> None:
        """Send until it is through, or something is wanted, for as long as one look is good."""
        remaining = _count_canary_remaining(batch)
        if remaining == 0:
            until = outcome.find_watch_end(batch, timezone.now())
            self.lease.set_state(BatchState.WATCHING, batch.state_why, canary_until=until)
            return
        self._stops_why = ""
        is_through = self._move(batch, remaining)
        if self._stops_why:
            self.lease.pause_itself(self._stops_why)
        elif is_through and batch.items.filter(state=ItemState.PUBLISHING).exists():
            self.lease.give_back(NOT_ANSWERED, after=work.RETRY_AFTER)
        elif is_through:
            self.lease.complete()

    def _move(self, batch: ReplayBatch, remaining: int | None) -> bool:
        """Whether every item was taken."""
        address, until = batch.broker.address, time.monotonic() + PASS_SECONDS
        with (
            Management(address, seconds=PATIENCE_SECONDS) as management,
            pipeline(address, f"replay {batch.pk}") as channel,
        ):
            names = batch.routes.order_by().values_list("exchange", flat=True).distinct()
            seen = snapshots.for_action(
                batch.broker, management, [Exchange(name) for name in names]
            )
            self._renew_lease(None)
            routes = PublishRoutes(batch, seen.definitions, management, channel)
            limiter = RateLimiter(batch.rate, time.monotonic())
            window, write = settings.MESSAGES_IN_FLIGHT, self._write_patiently
            source = ParkedMessageSource(self.lease, routes, limiter, write, window, remaining)

            def turn() -> None:
                source.flush(due_only=True)
                self._renew_lease(source.trouble)

            try:
                move(
                    source,
                    channel,
                    window=window,
                    is_stopping=lambda: self._is_stopping() or time.monotonic() > until,
                    turn=turn,
                    explain_nack=NackCheck(batch.broker).settle,
                )
            except BrokerError:
                source.note_break()
                raise
            finally:
                self._finish(source)
        return source.is_through

    def _finish(self, source: ParkedMessageSource) -> None:
        """Write all down. What the broker does not let be checked in time is sent again, marked."""
        until = time.monotonic() + CHECK_SECONDS
        while True:
            try:
                source.flush()
                return
            except BrokerError as error:
                self._renew_lease(error)
                if time.monotonic() > until or self.stop.wait(CHECK_AGAIN_SECONDS):
                    raise

    def _is_stopping(self) -> bool:
        now = time.monotonic()
        if self.stop.is_set() or self._stops_why:
            return True
        if now - self._request_read_at > REQUEST_SECONDS:
            self._request_read_at = now
            self._request = self.lease.read_request()
            # The next pass says so.
            self._is_read_only = bool(read_only_reason(self.lease.batch.broker_id))
        if not self._request and now - self._stops_at > STOPS_SECONDS:
            self._stops_at = now
            self._stops_why = outcome.explain_stop(self.lease.batch)
        return bool(self._request or self._stops_why or self._is_read_only)

    def _renew_lease(self, trouble: BrokerError | None) -> None:
        now = time.monotonic()
        if now - self._renewed_at > RENEW_SECONDS:
            self._renewed_at = now
            with transaction.atomic():
                self.lease.renew()
                if trouble is not None:
                    self.lease.work_lease.report(f"{NOT_CHECKED} {trouble}")
            self.alive()

    def _write_patiently(self, write: Callable[[], None]) -> None:
        """Write in a transaction, and retry until the database accepts it, or the worker stops.

        These messages were sent: without the write they would be sent again.
        """
        while True:
            try:
                with transaction.atomic():
                    write()
                return
            except (db.OperationalError, db.InterfaceError) as error:
                if self.stop.wait(DATABASE_SECONDS):
                    raise
                _reconnect()
                # If the database accepts that.
                with suppress(db.Error):
                    self.lease.work_lease.report(f"{NOT_WRITTEN} {error}")
                    self.alive()


def _reconnect() -> None:
    if not connection.in_atomic_block:
        connection.close_if_unusable_or_obsolete()


def _count_canary_remaining(batch: ReplayBatch) -> int | None:
    """How many may still go before the first ones are watched; None for all."""
    if not batch.canary or not batch.pending or batch.canary_until is not None:
        return None
    # What failed without a publish was not sent.
    sent = batch.items.filter(attempts__gt=0).exclude(state__in=OPEN)[: batch.canary].count()
    return batch.canary - sent
