"""The background task of alerts: one worker at a time, by the lease of one row."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from threading import Event

from django.db import transaction

from delayboard.alerts.messages import note_problems, write_message
from delayboard.alerts.send import send_due
from delayboard.models.alert import AlertMessage, AlertReceiver
from delayboard.models.background_task import Beat
from delayboard.now.board import overview
from topology import work
from topology.models import Broker, Work
from topology.work import Lease

KIND = "alerts"
CHECK_EVERY = timedelta(seconds=10)
# Without a receiver only the beginning of each problem is written down.
IDLE_CHECK_EVERY = timedelta(minutes=1)
BROKER_AGE = timedelta(seconds=10)
IDLE_SECONDS = 1.0


def keep_alerting(owner: str, *, stop: Event, beat: Beat) -> None:
    """Write and send alerts until `stop` is set, while this worker holds the lease."""
    checked_at = datetime.min.replace(tzinfo=UTC)
    current: Work | None = None
    while not stop.is_set():
        if current is None or not work.lease_of(current).renew(0, 0):
            current = work.claim_this(_own_row(), owner)
        if current is not None:
            lease, now = work.lease_of(current), datetime.now(UTC)
            every = CHECK_EVERY if AlertReceiver.objects.exists() else IDLE_CHECK_EVERY
            if now - checked_at >= every:
                write_alerts(lease, now)
                checked_at = now
            send_due(now, lambda lease=lease: _is_alive(lease, beat))  # type: ignore[misc]
        beat({})
        stop.wait(IDLE_SECONDS)
    if current is not None:
        work.lease_of(current).give_back("", after=timedelta(0))


def write_alerts(lease: Lease, now: datetime) -> list[AlertMessage]:
    """Read the problems and write the messages about them; none when the lease is another's.

    Problems are read without a receiver too: one that is added later gets the time they began.
    """
    board = overview(list(Broker.objects.all()), now, BROKER_AGE, named=None)
    with transaction.atomic():
        if not lease.renew(0, 0):
            return []
        note_problems((*board.troubles, *board.warnings), now, board.undecided)
        written = [write_message(one, now) for one in AlertReceiver.objects.all()]
    return [one for one in written if one is not None]


def _is_alive(lease: Lease, beat: Beat) -> bool:
    beat({})
    return lease.renew(0, 0)


def _own_row() -> Work:
    """The oldest one: a second one, of two workers that began at once, is never claimed."""
    rows = Work.objects.filter(kind=KIND).order_by("pk")
    if not rows.exists():
        work.create(KIND, 0, broker=None, user=None)
    return rows[0]
