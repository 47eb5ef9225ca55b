"""Moves all waiting messages to delay levels, each with what is left of its delay.

A command does it while it runs, or the worker until the source is empty and its publishers are
quiet; both go on where the last one ended (move_messages.py). A message that becomes due in the
source before that is delivered from there, too, and nothing can mark it. Requests, pauses and
cancellations are at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from threading import Event
from typing import Any

from django.db import transaction
from django.db.models import QuerySet

from delayboard.delay_migration.check import find_publishers, read_objects, refuse_unfit
from delayboard.delay_migration.move_messages import Run, Tally, malformed_queue
from delayboard.delay_migration.places import REASONS, list_places
from delayboard.models import DelayMigration, MovedMessage
from delayboard.publishing.destinations import Destinations
from topology import audit, work
from topology.broker.amqp.pipeline import pipeline
from topology.broker.errors import BrokerError
from topology.content.text import count_of
from topology.definitions import Definitions, Queue
from topology.models import State, Topology, Work, WorkState
from topology.operations.ownership import Refusal

# Most passes over the source, which publishers that are not switched over fill again.
MOST_PASSES = 5
AGAIN_AFTER = timedelta(seconds=10)
MIGRATED = "delays migrated"
KIND = "migrate"


def migrate(
    source: Topology,
    target: Topology,
    *,
    owner: str,
    takes_undated: bool = False,
    is_stopping: Callable[[], bool] = lambda: False,
) -> Tally:
    """Move everything, the longest wait first, until a pass finds nothing or it is stopping.

    An interrupted migration is resumed; one that does not come to its end is paused, so that no
    worker goes on with it. Raises Refusal, and BrokerError: calling again goes on.
    """
    refuse_unfit(source, target)
    with transaction.atomic():
        row = open_migration(None, source, target)
        claimed = work.claim_this(row.work, owner)
        if claimed is None:
            raise Refusal(
                "Another process migrates this topology. Wait until it ends, or pause the "
                "migration. One that was killed is taken over after 20 seconds."
            )
        row.takes_undated = takes_undated
        row.save(update_fields=["takes_undated"])
    lease = work.lease_of(claimed)
    audit.end_interrupted(MIGRATED, source.broker, row.route)
    details: dict[str, Any] = {}
    with audit.recorded(
        None, MIGRATED, broker=source.broker, what=row.route, details=details
    ) as entry:
        try:
            tally = _move_all(row, lease, is_stopping, lambda: None)
        except BaseException as error:
            lease.give_back(str(error), pause_requested=True)
            raise
        finally:
            details |= _counts(row)
        if not tally.is_empty:
            entry.outcome = f"paused: {_describe_remaining(tally) or 'messages remain'}"
    if tally.is_empty:
        lease.end(WorkState.DONE)
    else:
        lease.give_back(_describe_remaining(tally), pause_requested=True)
    return tally


def attend(claimed: Work, *, stop: Event, alive: Callable[[], None]) -> None:
    """Go on with a migration. Raises as `work.attempt` expects.

    It is paused when messages remain that cannot be moved.
    """
    lease = work.lease_of(claimed)
    places = ("work", "source__broker", "target__broker", "requested_by")
    row = DelayMigration.objects.select_related(*places).get(work=claimed)
    source, target = row.source, row.target
    audit.end_interrupted(MIGRATED, source.broker, row.route)
    try:
        refuse_unfit(source, target)
        tally = _move_all(row, lease, stop.is_set, alive)
    except (Refusal, BrokerError) as error:
        raise work.Later(str(error), after=AGAIN_AFTER) from error
    if tally.remaining:
        # Each further attempt counts as a delivery: quorum levels drop a message after 20 of them.
        why = _describe_remaining(tally)
        _record(row, outcome=f"paused: {why}")
        raise work.Paused(why)
    if not tally.is_empty or find_publishers(source, datetime.now(UTC)).state == "open":
        raise work.Later(tally.unacknowledged, after=AGAIN_AFTER)
    if lease.end(WorkState.DONE):
        _record(row)


def _record(row: DelayMigration, **entry: str) -> None:
    audit.record(
        row.requested_by,
        MIGRATED,
        broker=row.source.broker,
        what=row.route,
        details=_counts(row),
        **entry,
    )


def _counts(row: DelayMigration) -> dict[str, int]:
    row.refresh_from_db(fields=["moved", "malformed", "doubled"])
    return {"moved": row.moved, "malformed": row.malformed, "may_be_duplicated": row.doubled}


def _move_all(
    row: DelayMigration,
    lease: work.Lease,
    is_stopping: Callable[[], bool],
    alive: Callable[[], None],
) -> Tally:
    """Raises Refusal, BrokerError and Stopped."""
    source, target = row.source, row.target
    places = list_places(source, read_objects(source))
    tally = Tally()
    run = Run(row, lease, Destinations(target), tally, is_stopping, alive)
    with pipeline(target.broker.address, f"migration to {target.name}") as publishing:
        queue = Queue(malformed_queue(source))
        publishing.declare(Definitions(queues=frozenset({queue})))
        # What a kill left without an ack is moved again before its source delivers it as well.
        names = [place.queue for place in places]
        first = names.index(run.begun_in) if run.begun_in in names else 0
        passes = [places[first:]] if first else []
        for chosen in [*passes, *[places] * MOST_PASSES]:
            before = tally.moved + tally.malformed
            tally.forget_remaining()
            for place in chosen:
                run.empty(place, publishing)
                run.write_counts()
            is_whole = chosen is places
            if run.is_over or (tally.remaining and is_whole):
                break
            if is_whole and before == tally.moved + tally.malformed:
                tally.unacknowledged = run.describe_unacknowledged(places)
                tally.is_empty = not (tally.remaining or tally.unacknowledged)
                break
        if tally.is_empty:
            # Not before: a broker that is killed forgets acks of classic queues.
            row.begun.all().delete()
    return tally


def _describe_remaining(tally: Tally) -> str:
    if not tally.remaining:
        return tally.unacknowledged
    return (
        f"{count_of(tally.remaining, 'message', 'remains')} in the source. {tally.why_remaining} "
        "Resume the migration when the cause is solved or the source is empty."
    )


def open_migrations() -> QuerySet[DelayMigration]:
    """The migrations that did not come to their end."""
    return DelayMigration.objects.filter(work__state__in=(WorkState.WAITING, WorkState.RUNNING))


def open_migration(user: Any, source: Topology, target: Topology) -> DelayMigration:
    """The open one of the source, else a new one; in the caller's transaction.

    Raises Refusal where the open one has another target and cannot be replaced.
    """
    Topology.objects.select_for_update().get(pk=source.pk)
    row = open_migrations().filter(source=source).select_related("work", "target").first()
    if row is not None and row.target_id != target.pk:
        _lock(row)
        if not is_replaceable(row):
            raise Refusal(
                f"A migration to “{row.target}” is not finished. Pause it, or wait until it ends."
            )
        _cancel(user, row)
        row = None
    if row is not None:
        work.resume(row.work)
    else:
        own = work.create(KIND, source.pk, broker=source.broker, user=user)
        row = DelayMigration.objects.create(
            source=source, target=target, work=own, requested_by=user
        )
        # What comes again of these is marked in the other target, too.
        MovedMessage.objects.filter(migration__source=source).update(migration=row)
    return row


def is_replaceable(row: DelayMigration) -> bool:
    """Whether an open one can be cancelled: one that is paused, or whose target is deleted."""
    is_free = row.work.state == WorkState.WAITING
    return is_free and (row.target.state == State.DELETED or row.is_paused)


def request(user: Any, source: Topology, target: Topology, *, takes_undated: bool = False) -> None:
    """Let a worker migrate the messages. Raises Refusal."""
    refuse_unfit(source, target)
    if why := REASONS.get(source.kind):
        raise Refusal(why)
    with transaction.atomic():
        row = open_migration(user, source, target)
        DelayMigration.objects.filter(pk=row.pk).update(takes_undated=takes_undated)
        _record_request(user, "migration requested", row)


def cancel(user: Any, source: Topology) -> bool:
    """End it with what it moved; the rest stays in the source. False when none is paused."""
    with transaction.atomic():
        Topology.objects.select_for_update().get(pk=source.pk)
        row = open_migrations().filter(source=source).select_related("target").first()
        if row is None:
            return False
        _lock(row)
        if not is_replaceable(row):
            return False
        _cancel(user, row)
    return True


def _lock(row: DelayMigration) -> None:
    """No worker claims it from here on, nor has one that was killed it any more."""
    row.work = Work.objects.select_for_update().get(pk=row.work_id)
    work.free(row.work)


def _cancel(user: Any, row: DelayMigration) -> None:
    work.cancel(row.work)
    _record_request(user, "migration cancelled", row)


def pause(user: Any, source: Topology) -> bool:
    """Let it end within a second, to be continued; False when none is running."""
    return _set(user, source, "migration paused", is_paused=True)


def resume(user: Any, source: Topology, *, takes_undated: bool = False) -> bool:
    """Let a worker continue it; False when none is paused."""
    more = {"takes_undated": takes_undated}
    return _set(user, source, "migration continued", is_paused=False, **more)


def _set(user: Any, source: Topology, action: str, *, is_paused: bool, **more: bool) -> bool:
    with transaction.atomic():
        rows = open_migrations().filter(source=source, work__pause_requested=not is_paused)
        row = rows.select_related("work").first()
        if row is None:
            return False
        DelayMigration.objects.filter(pk=row.pk).update(**more)
        (work.pause if is_paused else work.resume)(row.work)
        _record_request(user, action, row)
    return True


def _record_request(user: Any, action: str, row: DelayMigration) -> None:
    audit.record(user, action, broker=row.source.broker, what=row.route)
