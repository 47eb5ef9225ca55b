"""Freezing what was chosen, with each one's target and verdict, by the worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from threading import Event
from typing import Any

from django.db import transaction
from django.db.models import Max
from django.utils import timezone

from delayboard.dead_letters.replay.batch import claims
from delayboard.dead_letters.replay.batch.change_state import BatchError
from delayboard.dead_letters.replay.batch.items import (
    Routes,
    insert_items,
    read_items,
    reroute_items,
)
from delayboard.dead_letters.replay.batch.options import OptionError, read_batch_options
from delayboard.dead_letters.replay.batch.selection import find_selection, find_unindexed
from delayboard.dead_letters.replay.check.message_checker import (
    BrokerState,
    BrokerUnknown,
    MessageChecker,
    poll_broker,
)
from delayboard.dead_letters.replay.check.targets import ALL_UNKNOWN_TARGETS
from delayboard.dead_letters.search import QueryError
from delayboard.dead_letters.search.index import add_missing
from delayboard.models import BatchState, ReplayBatch
from topology import work
from topology.content.text import count_text
from topology.models import Work, WorkState

# A transaction writes for some hundredths of a second, then others may.
CHUNK = 500
CHECK_AGAIN_AFTER = timedelta(seconds=1)
PARKS = "The chosen messages are parked first."
NOTHING = "There is no message to replay. The selected messages are discarded, replayed or deleted."
NOT_FOUND = "They are no longer in the queue: they were parked before, consumed, or expired."


def prepare_draft(claimed: Work, *, stop: Event, alive: Callable[[], None]) -> None:
    """Prepare a batch to its draft, or check the items of a changed one again.

    Raises as `work.attempt` expects: Later while its messages are still being parked, and while
    the broker does not answer.
    """
    rows = ReplayBatch.objects.select_related("broker", "group", "created_by", "parking__work")
    batch = rows.get(pk=claimed.subject)
    if batch.parking is not None and not batch.parking.is_ended:
        raise work.Later(PARKS, after=CHECK_AGAIN_AFTER)
    _Preparing(batch, claimed, work.lease_of(claimed), stop, alive, claimed.done).run()


@dataclass
class _Preparing:
    """One claim of the work: each chunk is one transaction, with the lease's pulse in it."""

    batch: ReplayBatch
    claimed: Work
    lease: work.Lease
    stop: Event
    alive: Callable[[], None]
    done: int
    seen: BrokerState | None = None

    def run(self) -> None:
        """Raises Stopped and Later."""
        try:
            if self.batch.selected and not self.batch.prepared_to:
                self._check_again()
            else:
                self._freeze()
        except BrokerUnknown as error:
            raise work.Later(str(error)) from error
        except (BatchError, OptionError, QueryError) as error:
            # Rights, redaction rules and topologies may have changed since.
            self._fail(str(error))

    def _freeze(self) -> None:
        batch, chosen = self.batch, find_selection(self.batch)
        self.done = batch.selected
        if not batch.prepared_to:
            add_missing(find_unindexed(batch), self._pulse)
        checker, routes = self._make_checker(), Routes(batch)
        after = batch.prepared_to or chosen.find_floor(self._pulse)
        while number := min(CHUNK, chosen.count_room(batch.selected)):
            self._pulse()
            rows = chosen.read_next(after, number, self._pulse)
            if not rows:
                break
            checked = checker.check_rows(rows)
            batch.repeats += sum(row.is_repeat for row in rows)
            batch.excluded += checked.count(None)
            after = rows[-1].pk
            with transaction.atomic():
                self._advance(len(rows))
                insert_items(batch, rows, checked, routes)
                counts = {"repeats": batch.repeats, "excluded": batch.excluded}
                self._write(selected=self.done, prepared_to=after, **counts)
            batch.selected = self.done
        if not batch.selected:
            raise BatchError(explain_nothing(batch))
        self._end(state_why=self._why())

    def _check_again(self) -> None:
        """How far it got is in the work alone: the items were all frozen before."""
        batch = self.batch
        checker, routes = self._make_checker(), Routes(batch)
        while items := read_items(batch, self.done, CHUNK):
            self._pulse()
            checked = checker.check_rows(items)
            batch.excluded += checked.count(None) - sum(item.is_excluded for item in items)
            with transaction.atomic():
                self._advance(items[-1].position - self.done)
                reroute_items(items, checked, routes)
                self._write(excluded=batch.excluded)
        last = batch.items.aggregate(last=Max("parked_message"))["last"]
        self._end(state_why=self._why(), prepared_to=last or 1)

    def _why(self) -> str:
        age = self.seen.age_sentence if self.seen else ""
        return explain_draft(self.batch, age)

    def _fail(self, why: str) -> None:
        """What was frozen is cancelled; nothing of it was ever claimed."""
        is_left = True
        while is_left:
            with transaction.atomic():
                self.lease.pulse(self.done, self.claimed.total)
                is_left = bool(claims.release_chunk(self.batch))
            self.alive()
        with transaction.atomic():
            if self.lease.end(WorkState.FAILED, why):
                self._write(state=BatchState.FAILED, state_at=timezone.now(), state_why=why)

    def _make_checker(self) -> MessageChecker:
        self.seen = poll_broker(self.batch.broker)
        batch, snapshot = self.batch, self.seen.snapshot
        return MessageChecker(batch.broker, read_batch_options(batch), snapshot, batch.conventions)

    def _pulse(self) -> None:
        """Between chunks. Raises Ending when the worker ends, Stopped when it was cancelled."""
        if self.stop.is_set():
            raise work.Ending
        self.alive()
        self.lease.pulse(self.done, self.claimed.total)

    def _advance(self, number: int) -> None:
        self.done += number
        self.lease.pulse(self.done, max(self.done, self.claimed.total))

    def _end(self, **values: Any) -> None:
        with transaction.atomic():
            self.lease.pulse(self.done, self.done)
            self._write(state=BatchState.DRAFT, state_at=timezone.now(), **values)
            self.lease.end(WorkState.DONE)

    def _write(self, **values: Any) -> None:
        """Raises Stopped where somebody has cancelled the batch."""
        rows = ReplayBatch.objects.filter(
            pk=self.batch.pk, state=BatchState.PREPARING, work=self.claimed
        )
        if not rows.update(**(values or {"state": BatchState.PREPARING})):
            raise work.Stopped("It is no longer being prepared.")


def explain_nothing(batch: ReplayBatch) -> str:
    """Why there is nothing in it."""
    if batch.parking is None:
        return NOTHING
    error = batch.parking.work.error if batch.parking.work else ""
    return f"None of the chosen messages could be parked. {error or NOT_FOUND}"


def describe_missing(batch: ReplayBatch) -> str:
    """How many selected messages are missing; "" for none, or when they were not counted."""
    if batch.parking is not None:
        parks = batch.parking.work
        why = "are no longer in the queue"
        if parks is not None and parks.error:
            why = f"could not be parked: {parks.error.rstrip('.')}"
        return _describe_number((batch.parking.requested or 0) - batch.selected, why)
    if batch.parked_messages is not None:
        missing = len(set(batch.parked_messages)) - batch.selected
        return _describe_number(missing, "are excluded: they are discarded, replayed or deleted")
    return ""


def explain_draft(batch: ReplayBatch, age: str) -> str:
    """What to know of it beside its verdicts; `age` is that of what is known of the broker."""
    return " ".join(filter(None, (explain_no_route(batch), describe_missing(batch), age)))


def explain_no_route(batch: ReplayBatch) -> str:
    """Why none of its items has a target; "" when one has, or all are excluded."""
    used = batch.routes.filter(items_number__gt=0)
    if used.exclude(exchange="", routing_key="").exists():
        return ""
    verdicts = set(used.values_list("verdict", flat=True)[:2])
    if not verdicts:
        return ""
    return verdicts.pop() if len(verdicts) == 1 else ALL_UNKNOWN_TARGETS


def _describe_number(number: int, sentence: str) -> str:
    return f"{count_text(number)} of the chosen messages {sentence}." if number > 0 else ""
