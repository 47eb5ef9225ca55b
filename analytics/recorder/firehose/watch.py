"""Keeps a vhost's firehose on while it is recorded, and records when copies were lost.

RabbitMQ disables the firehose at a restart, and anybody may disable it. So its state is read every
few seconds, in parallel, and missing objects are restored.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from time import monotonic

from django.db import connection

from analytics.models import Firehose, Gap
from analytics.observation import on_the_firehose
from analytics.recorder.firehose.switch import fill, tap_of
from topology.broker.address import Address
from topology.broker.errors import BrokerError, NotFound
from topology.broker.management.client import Management
from topology.broker.time_limit import run_in_background
from topology.models.read_only import finishing
from topology.provisioning import firehose

CHECK_SECONDS = 3.0
FULL = 90
RETENTION = timedelta(milliseconds=firehose.KEPT_MS)

NOT_COPYING = (
    "RabbitMQ made no firehose copies. RabbitMQ restarted, or someone disabled the firehose "
    "or deleted its queue."
)
DROPPED = "The recorder read the firehose too slowly. The queue was full and dropped copies."
OUTDATED = "The recorder did not read the firehose, whose queue drops copies older than an hour."
BEFORE = "The firehose queue was dropping copies when the recorder stopped."


@dataclass(frozen=True)
class FirehoseState:
    """`why` copies are lost, "" when none are; `trouble` is why this could not be fixed.

    `full` is the share of our queue's maximum length in hundredths, None when not reported.
    """

    why: str
    trouble: str
    full: int | None


def keep_copying(address: Address, tap: str, is_wanted: Callable[[], bool]) -> FirehoseState:
    """Read the state and restore what is missing. Raises BrokerError when the broker is silent.

    After a user disabled it meanwhile, nothing is left in the broker.
    """
    with Management(address) as management:
        try:
            _, full = fill(management.queue(tap))
            why = "" if firehose.is_copying(management, tap) else NOT_COPYING
        except NotFound:
            why, full = NOT_COPYING, None
        if not why:
            return FirehoseState(DROPPED if (full or 0) >= FULL else "", "", full)
        try:
            firehose.keep_on(management, tap)
            if not is_wanted():
                firehose.switch_off(management, tap)
        except BrokerError as error:
            return FirehoseState(why, str(error), full)
        return FirehoseState(why, "", full)


class Watch:
    """Looks at one firehose again and again; used by its recorder's thread."""

    def __init__(self, row: Firehose) -> None:
        self.last = FirehoseState("", "", None)
        self._row = row
        self._keep = partial(keep_copying, row.broker.address, tap_of(row), self._is_requested)
        self._sure_at = row.read_at or row.switched_on_at
        self._pending: Future[FirehoseState] | None = None
        self._checked_at = 0.0
        self._why = BEFORE if row.lost_since else ""

    def begin(self) -> None:
        """Before reading, which empties the queue. Raises BrokerError when it cannot be kept on."""
        found = self._call()
        if not found.why and datetime.now(UTC) - self._sure_at > RETENTION:
            self._lose(OUTDATED)
        self._take(found)
        if found.trouble:
            raise BrokerError(found.trouble)
        self.was_read()

    def step(self) -> None:
        """Begin a look when it is time, take up the answer of one that was begun."""
        if self._pending is None:
            if monotonic() - self._checked_at > CHECK_SECONDS:
                self._pending = run_in_background(self._check_in_background, "check the firehose")
            return
        if not self._pending.done():
            return
        asked, self._pending, self._checked_at = self._pending, None, monotonic()
        try:
            self._take(asked.result())
        except BrokerError as error:
            self.last = FirehoseState(self.last.why, str(error), None)

    def _check_in_background(self) -> FirehoseState:
        try:
            return self._call()
        finally:
            connection.close()

    def _call(self) -> FirehoseState:
        """A recording that is on stays on where changes are refused."""
        with finishing():
            return self._keep()

    def _is_requested(self) -> bool:
        return Firehose.objects.filter(pk=self._row.pk).exists()

    def was_read(self) -> None:
        self._row.read_at = datetime.now(UTC)
        Firehose.objects.filter(pk=self._row.pk).update(read_at=self._row.read_at)

    def _take(self, found: FirehoseState) -> None:
        self.last = found
        if found.why:
            self._lose(found.why)
        is_put_right = not found.trouble and found.why != DROPPED
        if self._row.lost_since and is_put_right:
            self._note(self._row.lost_since)
        if is_put_right:
            self._sure_at = datetime.now(UTC)

    def _lose(self, why: str) -> None:
        self._why = why
        if self._row.lost_since is None:
            self._row.lost_since = self._sure_at
            Firehose.objects.filter(pk=self._row.pk).update(lost_since=self._sure_at)

    def _note(self, lost_since: datetime) -> None:
        now = datetime.now(UTC)
        Gap.objects.bulk_create(
            Gap(topology=topology, from_at=lost_since, until_at=now, why=self._why)
            for topology in on_the_firehose(self._row.broker)
        )
        self._row.lost_since = None
        Firehose.objects.filter(pk=self._row.pk).update(lost_since=None)
