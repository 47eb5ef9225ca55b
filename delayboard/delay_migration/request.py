"""Requesting a migration of waiting messages, pausing it, and letting it go on."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.db.models import QuerySet

from delayboard.delay_migration.check import refuse_unfit
from delayboard.delay_migration.places import REASONS
from delayboard.models import DelayMigration, MovedMessage
from topology import audit, work
from topology.models import State, Topology, Work, WorkState
from topology.operations.ownership import Refusal

KIND = "migrate"


def open_migrations() -> QuerySet[DelayMigration]:
    """Those that did not come to their end."""
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
        _record(user, "migration requested", row)


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
    _record(user, "migration cancelled", row)


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
        _record(user, action, row)
    return True


def _record(user: Any, action: str, row: DelayMigration) -> None:
    audit.record(user, action, broker=row.source.broker, what=row.route)
