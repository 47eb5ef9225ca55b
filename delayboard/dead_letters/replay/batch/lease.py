"""A worker's lease of a batch: what it may still do, and how it lets go; each is one commit."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Literal, TypeAlias

from django.db import transaction
from django.utils import timezone

from delayboard.dead_letters.replay.batch import change_state, claims
from delayboard.models import BatchState, ReplayBatch
from topology import work
from topology.models import Work, WorkState

Request: TypeAlias = Literal["", "pause", "cancel", "lost"]
NOT_ANSWERED = "The broker did not confirm every message. The others are sent again."


class BatchLease:
    """The lease of a batch's work. Whoever writes for the batch calls `renew` first."""

    def __init__(self, claimed: Work, batch: ReplayBatch) -> None:
        self.batch = batch
        self.work_lease = work.lease_of(claimed)

    def renew(self) -> Request:
        """Renew the lease and lock the work, in the caller's transaction; what people want.

        Raises Stopped: then the caller's transaction must not write.
        """
        batch = self.batch
        if not self.work_lease.renew(batch.settled, batch.to_send, error=""):
            raise work.Stopped("Another worker took over this task.")
        return self.read_request()

    def lock_work(self) -> None:
        """Lock the work in the caller's transaction, whoever has it."""
        Work.objects.select_for_update().get(pk=self.work_lease.work_id)

    def read_request(self) -> Request:
        """What people want of it."""
        rows = ReplayBatch.objects.filter(pk=self.batch.pk)
        found = rows.values_list(
            "state", "work__pause_requested", "work__cancel_requested", "work__fence", "work__state"
        )
        state, pause, cancel, fence, work_state = found.get()
        if fence != self.work_lease.fence or work_state != WorkState.RUNNING:
            return "lost"
        if cancel or state == BatchState.CANCELLED:
            return "cancel"
        return "pause" if pause else ""

    def set_state(self, state: BatchState, why: str = "", **values: Any) -> None:
        """Change the batch's state; not when people want it otherwise. Raises Stopped."""
        with transaction.atomic():
            if not self.renew():
                self._update(state=state, state_at=timezone.now(), state_why=why, **values)

    def pause_itself(self, why: str, **values: Any) -> None:
        """Pause it, by itself; not when people want it cancelled. Raises Stopped."""
        with transaction.atomic():
            if self.renew() == "cancel":
                return
            self._update(**values)
            change_state.set_paused(self.batch, why)

    def pause_as_requested(self) -> None:
        """Pause it as people want. Raises Stopped."""
        with transaction.atomic():
            if self.renew() == "pause":
                self._pause()

    def complete(self, why: str | None = None, **values: Any) -> None:
        """Close the batch as done; not when its cancellation is requested. Raises Stopped.

        The default `why` lists the messages that were not available.
        """
        with transaction.atomic():
            if self.renew() == "cancel":
                return
            why = claims.describe_unavailable(self.batch) if why is None else why
            self._update(state_why=why, state=BatchState.DONE, state_at=timezone.now(), **values)
            self.work_lease.end(WorkState.DONE)

    def cancel(self, alive: Callable[[], None], is_stopping: Callable[[], bool]) -> None:
        """Give back what is not published, a chunk in each transaction. Raises Stopped."""
        with transaction.atomic():
            self.renew()
            rows = ReplayBatch.objects.filter(pk=self.batch.pk).exclude(state=BatchState.CANCELLED)
            rows.update(state=BatchState.CANCELLED, state_at=timezone.now())
        last = 0
        while not is_stopping():
            with transaction.atomic():
                self.renew()
                last = claims.release_chunk(self.batch, last)
                if not last:
                    self.work_lease.end(WorkState.CANCELLED)
                    return
            alive()
        self.give_back("", after=timedelta(0))

    def give_back(self, error: str, *, after: timedelta) -> None:
        """Let it be tried again later, or pause it as people want."""
        with transaction.atomic():
            if self.work_lease.report(error):
                if self.read_request() == "pause":
                    self._pause()
                else:
                    self.work_lease.give_back(error, after=after)

    def report(self, error: str) -> None:
        """What keeps it from going on; "" when nothing does."""
        self.work_lease.report(error)

    def wait_until(self, moment: datetime) -> None:
        """Let it be tried again at that moment."""
        self.give_back("", after=max(timedelta(0), moment - timezone.now()))

    def _pause(self) -> None:
        self.batch.refresh_from_db(fields=["state_why"])
        change_state.set_paused(self.batch, self.batch.state_why)

    def _update(self, **values: Any) -> None:
        if values:
            ReplayBatch.objects.filter(pk=self.batch.pk).update(**values)
            for name, value in values.items():
                setattr(self.batch, name, value)
