"""What was answered and is not written down yet, of a batch that is being sent."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from django.utils import timezone

from delayboard.dead_letters.replay.batch.lease import BatchLease, LeaseLost
from delayboard.dead_letters.replay.send import settle_items
from delayboard.dead_letters.replay.send.publish_routes import PublishRoutes
from delayboard.dead_letters.replay.send.settle_items import Ending, Taken
from delayboard.models import ItemState
from topology.broker.amqp.pipeline import Answer
from topology.broker.errors import BrokerError

# What is answered is written down when it is so much, or so old.
FLUSH_NUMBER = 1000
FLUSH_SECONDS = 0.2
# Seconds until a broker that did not answer is asked again.
CHECK_AGAIN_SECONDS = 1.0
_STATES: Mapping[str, ItemState] = {
    "confirmed": ItemState.DONE,
    "returned": ItemState.RETURNED,
    "refused": ItemState.FAILED,
    "failed": ItemState.FAILED,
    "nacked": ItemState.UNKNOWN,
}


@dataclass
class Answers:
    """`write` runs what it is given in a transaction, and again until the database has taken it.

    `trouble` is why what was confirmed cannot be checked just now.
    """

    lease: BatchLease
    routes: PublishRoutes
    write: Callable[[Callable[[], None]], None]
    trouble: BrokerError | None = None
    _endings: list[Ending] = field(default_factory=list)
    _first_at: float = 0.0
    _check_again_at: float = 0.0

    def add(self, answers: Sequence[tuple[Taken, Answer]]) -> None:
        """Keep them until they are written down. What is unknown stays begun."""
        if not self._endings:
            self._first_at = time.monotonic()
        for taken, answer in answers:
            if answer.kind != "unknown":
                state = _STATES[answer.kind]
                self._endings.append(Ending(taken, state, answer.error, answer.again))

    def flush(self, *, due_only: bool, at_once: bool) -> None:
        """Write the answers; with `due_only` when they are due, which `at_once` makes them.

        Raises LeaseLost; confirmed publishes are written even then. Answers that cannot be checked
        now are kept and checked later; without `due_only` they raise BrokerError.
        """
        is_due = (
            at_once
            or len(self._endings) >= FLUSH_NUMBER
            or time.monotonic() - self._first_at > FLUSH_SECONDS
        )
        if not self._endings or (due_only and not is_due):
            return
        if not (due_only and self.trouble and time.monotonic() < self._check_again_at):
            self._check()
        checked = [one for one in self._endings if not one.is_to_check]
        if checked:
            self._commit(checked)
        self._endings = [one for one in self._endings if one.is_to_check]
        if self.trouble is not None and not due_only:
            raise self.trouble

    def _check(self) -> None:
        """At a tapped exchange, check after the confirm that another queue than the tap exists."""
        after = self.routes.check()
        try:
            for place, one in enumerate(self._endings):
                if one.is_to_check:
                    self._endings[place] = one.checked(after)
            self.trouble = None
        except BrokerError as error:
            self.trouble = error
            self._check_again_at = time.monotonic() + CHECK_AGAIN_SECONDS

    def _commit(self, endings: Sequence[Ending]) -> None:
        try:
            self.write(lambda: self._write_endings(endings))
        except LeaseLost:
            self.write(lambda: self._write_late(endings))
            raise
        settle_items.add_counts(self.lease.batch, endings)

    def _write_endings(self, endings: Sequence[Ending]) -> None:
        self.lease.renew()
        settle_items.write_endings(self.lease.batch, endings, timezone.now())

    def _write_late(self, endings: Sequence[Ending]) -> None:
        """Another worker has the batch by now: what was not confirmed is its to send again."""
        self.lease.lock_work()
        confirmed = [one for one in endings if one.state == ItemState.DONE]
        settle_items.write_endings(self.lease.batch, confirmed, timezone.now())
