"""The state of a replay, and who changes it: people (start, pause, resume, cancel) and its worker.

Each action locks the Work of a started batch first, as the worker does: of two simultaneous
actions the second gets a message that the first has happened.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Literal, TypeAlias

from django.db import transaction
from django.db.models import F, Sum
from django.db.models.functions import Now
from django.utils import timezone

from delayboard.dead_letters.replay import claims
from delayboard.dead_letters.replay.options import Stage
from delayboard.models import BatchState, ReplayBatch
from topology import audit, work
from topology.models import Work, WorkState

KIND = "replay"
KIND_PREPARE = "replay-prepare"
# Most messages claimed, or given back, while the page waits; more are left to the worker.
AT_ONCE = 5000

ONLY_REPEATS = (
    "All of these messages are possible repeats and are excluded. Include them to replay them, or "
    "discard them."
)

# End of a route -> how its messages would end. `{most}` is the guard's number.
_ENDINGS = {
    "loops": "would return to the source queue",
    "unroutable": "would be unroutable: no queue matches",
    "lost": "would be dropped by RabbitMQ",
    "stuck": "would be stuck",
    "guarded": "had {most} or more replays already",
    "refused": "cannot be published without an edit",
    "full": "would go to a full queue",
    "envelope": "would be sent inside an envelope",
    "uncertain": "would have an unknown outcome",
}
Request: TypeAlias = Literal["", "pause", "cancel", "lost"]
NOT_ANSWERED = "The broker did not confirm every message. The others are sent again."
# States in which nothing happens until somebody acts.
RESTING = (BatchState.DRAFT, BatchState.PAUSED, BatchState.FAILED)


class BatchError(Exception):
    """Nothing was changed; the message says why."""


def start(user: Any, batch: ReplayBatch, *, despite_verdict: bool, approves: str = "") -> None:
    """Let the worker send the draft. Raises BatchError, for bad verdicts without a typed yes too.

    Where the broker needs an approval, the first person requests it and the second starts:
    `approves` is `name_request` of the draft that this person saw. Its messages are claimed at once
    if they are few, else by the worker.
    """
    with transaction.atomic():
        locked = ReplayBatch.objects.select_for_update().get(pk=batch.pk)
        if not locked.is_draft:
            raise BatchError(_explain_no_draft(locked))
        if locked.excluded and not locked.pending:
            raise BatchError(ONLY_REPEATS)
        if locked.broker.needs_approval and not _is_approval(user, locked):
            _update(locked, requested_by=user, requested_at=timezone.now())
            record_action(user, "replay approval requested", locked, messages=locked.pending)
            return
        if locked.broker.needs_approval and approves != name_request(locked):
            raise BatchError(
                "The draft was changed and requested again after you saw it. Look at it again."
            )
        bad = count_bad_verdicts(locked)
        if bad and not despite_verdict:
            named = (f"{count} {name_ending(locked, ending)}" for ending, count in bad.items())
            raise BatchError(
                f"{sum(bad.values())} messages have a bad verdict: {', '.join(named)}. Type “yes” "
                "to replay all messages anyway."
            )
        _begin_work(user, locked)
        details = {"messages": locked.pending, "bad_verdicts": bad}
        said = {"name": locked.name, "reason": locked.reason, "link": locked.link}
        details |= {key: text for key, text in said.items() if text}
        if locked.requested_by is not None:
            details["requested by"] = locked.requested_by.get_username()
        record_action(user, "replay started", locked, **details)


def pause(user: Any, batch: ReplayBatch) -> None:
    """Publish nothing more until it is resumed. Raises BatchError if there is nothing to pause.

    The worker stops within a second; until then only its work is paused.
    """
    with transaction.atomic():
        locked = _lock_batch(batch)
        if locked.is_ended or locked.started_at is None:
            raise BatchError(_explain_not_running(locked))
        assert locked.work is not None
        if locked.state == BatchState.PAUSED:
            raise BatchError("This replay is paused already.")
        if is_leased(locked.work):
            work.pause(locked.work)
            _update(locked, state_why=f"Paused by {_name_user(user)}.")
        else:
            set_paused(locked, f"Paused by {_name_user(user)}.")
        record_action(user, "replay paused", locked)


def resume(user: Any, batch: ReplayBatch) -> None:
    """Go on with a paused batch, or without waiting for what becomes of its first ones.

    Raises BatchError on any other. One that had stopped itself because messages came back dead
    stops again when as many more did.
    """
    with transaction.atomic():
        locked = _lock_batch(batch)
        if locked.state not in (BatchState.PAUSED, BatchState.WATCHING) or locked.work is None:
            raise BatchError(_explain_not_paused(locked))
        if locked.work.cancel_requested:
            raise BatchError("This replay is being cancelled already.")
        now = timezone.now()
        waits = locked.publish_at is not None and locked.publish_at > now
        more = locked.died if locked.stop_after and locked.died >= locked.stop_after else 0
        _update(
            locked,
            state=BatchState.WAITING if waits else BatchState.RUNNING,
            state_at=now,
            state_why=claims.describe_unavailable(locked),
            stop_after=locked.stop_after + more,
            **end_watch(locked, now),
        )
        _release_work(locked, locked.publish_at if waits else None, error="")
        record_action(user, "replay resumed", locked)


def cancel(user: Any, batch: ReplayBatch) -> None:
    """What was not published yet stays parked. Raises BatchError on a batch that has ended.

    A worker that is at it stops within a second; many messages are given back by the worker.
    """
    with transaction.atomic():
        locked = _lock_batch(batch)
        if locked.is_ended:
            raise BatchError(_explain_not_running(locked))
        if locked.work is not None and locked.work.cancel_requested:
            raise BatchError("This replay is being cancelled already.")
        if locked.state == BatchState.PREPARING and locked.work is not None:
            work.cancel(locked.work)
        _cancel_work(user, locked)
        record_action(user, "replay cancelled", locked)


def end_watch(batch: ReplayBatch, now: datetime) -> dict[str, Any]:
    """The columns with which a batch goes on after its first messages, or its present stage."""
    if batch.canary_until is None:
        return {}
    done = batch.stages_done + 1
    if done < len(batch.stages):
        return {"stages_done": done, "canary_until": None, **_begin_stage(batch, done)}
    over = {"stages_done": done} if batch.stages else {}
    return {**over, "canary_until": min(now, batch.canary_until)}


def _begin_stage(batch: ReplayBatch, place: int) -> dict[str, Any]:
    if not batch.stages:
        return {}
    stage = Stage(*batch.stages[place])
    return {"canary": stage.count(batch.to_send), "canary_seconds": stage.seconds}


def name_request(batch: ReplayBatch) -> str:
    """Which request of an approval is open: another one after each change; "" for none."""
    if batch.requested_by_id is None or batch.requested_at is None:
        return ""
    return batch.requested_at.isoformat()


def _is_approval(user: Any, batch: ReplayBatch) -> bool:
    """Whether somebody else requested it. Raises BatchError for nobody, and for the same person."""
    if user is None:
        raise BatchError(
            f"Replays of {batch.broker} need the approval of a second person. Start it on its page."
        )
    if batch.requested_by_id == user.pk:
        raise BatchError("You requested the approval. Another operator approves the replay.")
    return batch.requested_by_id is not None


def describe(batch: ReplayBatch, name: str, reason: str, link: str) -> None:
    """Name a draft, and say why it is replayed. Raises BatchError for a link that is none."""
    if link and not link.startswith(("https://", "http://")):
        raise BatchError("The link must begin with https:// or http://.")
    texts = {"name": name[:100], "reason": reason[:500], "link": link[:500]}
    if ReplayBatch.objects.filter(pk=batch.pk, state=BatchState.DRAFT).update(**texts):
        batch.refresh_from_db()


def is_resting(batch: ReplayBatch) -> bool:
    """Whether nothing is left to do for it: a cancelled one first gives its messages back."""
    if batch.is_ended:
        return batch.work is None or batch.work.is_ended
    return batch.state in RESTING


def count_bad_verdicts(batch: ReplayBatch) -> dict[str, int]:
    """How many items have a failing verdict, by the predicted ending."""
    bad = batch.routes.filter(is_good=False).order_by().values_list("ending")
    return {ending: number for ending, number in bad.annotate(Sum("items_number")) if number}


def name_ending(batch: ReplayBatch, ending: str) -> str:
    """What becomes of messages whose route does not end well."""
    return _ENDINGS.get(ending, "would not arrive").format(most=batch.most_replays)


def record_action(user: Any, action: str, batch: ReplayBatch, **details: Any) -> None:
    """Add an entry about the batch to the audit log, in the caller's transaction."""
    details = {"batch": batch.pk, **details}
    audit.record(user, action, broker=batch.broker, what=batch.description, details=details)


def is_leased(of: Work) -> bool:
    """Whether a worker is at it: its lease has not run out."""
    held = Work.objects.filter(pk=of.pk, state=WorkState.RUNNING, leased_until_at__gt=Now())
    return held.exists()


def set_paused(batch: ReplayBatch, why: str) -> None:
    """Mark the batch as paused. Nobody can claim its work meanwhile; the caller has locked it."""
    _release_work(batch, None, pause_requested=True)
    _update(batch, state=BatchState.PAUSED, state_at=timezone.now(), state_why=why)


def _begin_work(user: Any, batch: ReplayBatch) -> None:
    now = timezone.now()
    waits = batch.undo_seconds > 0
    own = work.create(KIND, batch.pk, broker=batch.broker, user=user, total=batch.to_send)
    _update(
        batch,
        state=BatchState.WAITING if waits else BatchState.RUNNING,
        state_at=now,
        started_at=now,
        started_by=user,
        publish_at=now + timedelta(seconds=batch.undo_seconds) if waits else None,
        approved_by=user
        if batch.requested_by_id not in (None, getattr(user, "pk", None))
        else None,
        **_begin_stage(batch, 0),
        work=own,
    )
    if batch.selected <= AT_ONCE:
        claims.claim_chunk(batch, AT_ONCE)
        Work.objects.filter(pk=own.pk).update(not_before_at=batch.publish_at)


def _cancel_work(user: Any, batch: ReplayBatch) -> None:
    why = f"Cancelled by {_name_user(user)}."
    if batch.work is not None and batch.work.kind == KIND and is_leased(batch.work):
        Work.objects.filter(pk=batch.work.pk).update(cancel_requested=True)
        _update(batch, state_why=why)
        return
    if batch.work is None or batch.work.kind != KIND:
        batch.work = work.create(KIND, batch.pk, broker=batch.broker, user=user)
    now = timezone.now()
    if batch.pending <= AT_ONCE:
        claims.release_chunk(batch, number=AT_ONCE)
        Work.objects.filter(pk=batch.work.pk).update(state=WorkState.CANCELLED, ended_at=now)
    else:
        _release_work(batch, None)
        Work.objects.filter(pk=batch.work.pk).update(cancel_requested=True)
    _update(batch, state=BatchState.CANCELLED, state_at=now, state_why=why, work=batch.work)


def _release_work(
    batch: ReplayBatch, not_before: datetime | None, *, pause_requested: bool = False, **values: Any
) -> None:
    """Let the work wait, whoever held it: the fence excludes a worker whose lease has run out."""
    assert batch.work is not None
    Work.objects.filter(pk=batch.work.pk).update(
        state=WorkState.WAITING,
        fence=F("fence") + 1,
        leased_until_at=None,
        not_before_at=not_before,
        pause_requested=pause_requested,
        **values,
    )


def _lock_batch(batch: ReplayBatch) -> ReplayBatch:
    """The batch as it is, with its work locked; a draft, that has none to lock, itself."""
    while True:
        with transaction.atomic():
            if (found := _lock_once(batch)) is not None:
                return found
            # Gives up what is locked: the worker locks the work, then the batch.
            transaction.set_rollback(True)


def _lock_once(batch: ReplayBatch) -> ReplayBatch | None:
    """None when it was started meanwhile: its work is another then, which is not locked."""
    rows = ReplayBatch.objects.filter(pk=batch.pk).select_related("broker", "work")
    work_id = rows.get().work_id
    if work_id is not None:
        Work.objects.select_for_update().get(pk=work_id)
    found = rows.all().get()
    if found.work_id == work_id and (found.work is None or found.work.kind != KIND):
        ReplayBatch.objects.select_for_update().get(pk=batch.pk)
        found = rows.all().get()
    return found if found.work_id == work_id else None


def _explain_no_draft(batch: ReplayBatch) -> str:
    match batch.state:
        case BatchState.PREPARING:
            return "The dry run is not complete. Start the replay after the dry run."
        case BatchState.CANCELLED:
            return "This replay was cancelled: choose the messages again."
        case BatchState.FAILED:
            return "This replay could not be prepared: choose the messages again."
    return "This replay was started already."


def _explain_not_running(batch: ReplayBatch) -> str:
    if batch.is_ended:
        return f"This replay has ended: it is {batch.get_state_display()}."
    return "This replay is not running: it was not started yet."


def _explain_not_paused(batch: ReplayBatch) -> str:
    if batch.is_ended or batch.started_at is None:
        return _explain_not_running(batch)
    return f"Only a paused replay can be resumed. This replay is {batch.get_state_display()}."


def _name_user(user: Any) -> str:
    return str(user) if user is not None else "a command"


def _update(batch: ReplayBatch, **values: Any) -> None:
    """Update the batch in the database and in memory."""
    if values:
        ReplayBatch.objects.filter(pk=batch.pk).update(**values)
        for name, value in values.items():
            setattr(batch, name, value)


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
                _update(self.batch, state=state, state_at=timezone.now(), state_why=why, **values)

    def pause_itself(self, why: str, **values: Any) -> None:
        """Pause it, by itself; not when people want it cancelled. Raises Stopped."""
        with transaction.atomic():
            if self.renew() == "cancel":
                return
            _update(self.batch, **values)
            set_paused(self.batch, why)

    def pause_as_requested(self) -> None:
        """Pause it as people want. Raises Stopped."""
        with transaction.atomic():
            if self.renew() == "pause":
                self._pause()

    def complete(self) -> None:
        """Close the batch as done, and name the messages that were not available; not when its
        cancellation is requested. Raises Stopped.
        """
        with transaction.atomic():
            if self.renew() == "cancel":
                return
            why = claims.describe_unavailable(self.batch)
            _update(self.batch, state_why=why, state=BatchState.DONE, state_at=timezone.now())
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

    def wait_until(self, moment: datetime) -> None:
        """Let it be tried again at that moment."""
        self.give_back("", after=max(timedelta(0), moment - timezone.now()))

    def _pause(self) -> None:
        self.batch.refresh_from_db(fields=["state_why"])
        set_paused(self.batch, self.batch.state_why)
