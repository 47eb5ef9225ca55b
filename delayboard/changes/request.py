"""Requesting changes of waiting messages, and undoing those that did not take effect."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from django.db import transaction
from django.utils import timezone

from analytics.models import ScheduledMessage
from delayboard.changes.check import LEAD, ChangeVerdict, check, check_again
from delayboard.changes.point import Point
from delayboard.changes.select_messages import (
    Selection,
    id_headers,
    key_of_delay,
    selectors_of,
)
from delayboard.models import (
    ChangeKind,
    ChangeState,
    Interception,
    InterceptionState,
    ScheduledChange,
)
from delayboard.models.scheduled_change import OPEN, REPLACING, UNDOABLE
from topology import audit, work
from topology.broker.errors import BrokerError
from topology.broker.management.client import Management
from topology.content.export_format import format_moment
from topology.definitions import INTERCEPTION_PREFIX
from topology.models import Broker, Topology, Work, WorkState
from topology.models.read_only import refuse_read_only
from topology.models.work import INTERCEPT
from topology.transfer import interception as objects

KIND = INTERCEPT
# The kind whose subject is one of the changes in the queue to be read.
READ = "read-queue"


def request(
    user: Any,
    rows: Sequence[ScheduledMessage],
    kind: ChangeKind,
    new_due_at: datetime | None = None,
) -> list[ChangeVerdict]:
    """Request a change of each row that can be changed; the verdict of each, in their order.

    Raises BrokerError where a broker is not seen or is read-only: then nothing is requested.
    """
    for broker_id in {row.broker_id for row in rows}:
        refuse_read_only(broker_id)
    verdicts = check(rows, kind, timezone.now(), new_due_at)
    with transaction.atomic():
        # The broker took a while to answer: somebody else may have requested the same meanwhile.
        topologies = {row.topology_id for row in rows if row.topology_id}
        own = Topology.objects.filter(pk__in=topologies).order_by("pk")
        list(own.select_for_update(no_key=True))
        verdicts = check_again(verdicts, kind, timezone.now(), new_due_at)
        good = [verdict for verdict in verdicts if not verdict.problem]
        stored = [_store(user, verdict, kind, new_due_at) for verdict in good]
        read = {(one.broker, one.queue): one.pk for one in stored if one.queue}
        for (broker, _), pk in read.items():
            work.create(READ, pk, broker=broker, user=user)
    _select(stored)
    return verdicts


def _select(stored: Sequence[ScheduledChange]) -> None:
    """Lead their messages into interceptions that are open, though no worker may run just now.

    Where that fails, a worker does it.
    """
    pks = {one.interception_id for one in stored if one.interception_id}
    for row in Interception.objects.filter(pk__in=pks, state__in=REPLACING):
        # Later ones are led there when they are due soon.
        until = timezone.now() + row.limit
        own = row.changes.filter(pk__in=[one.pk for one in stored], due_at__lte=until)
        intercepted = row.objects_of_broker
        bindings = Selection().adding(selectors_of(own)).bindings(intercepted)
        with suppress(BrokerError), Management(row.broker.address) as management:
            objects.lead(intercepted, bindings, management)


def undo(user: Any, change: ScheduledChange) -> bool:
    """Withdraw a change; False when it took effect, or its copy was begun to be published."""
    with transaction.atomic():
        rows = ScheduledChange.objects.filter(UNDOABLE, pk=change.pk)
        if not rows.update(state=ChangeState.UNDONE, ended_at=timezone.now()):
            return False
        audit.record(user, "change undone", broker=change.broker, what=describe(change))
    return True


def describe(change: ScheduledChange) -> str:
    """The message of a change, for the audit log."""
    return f"{change.get_kind_display()} {change.key} for {change.destination}"


def _store(
    user: Any, verdict: ChangeVerdict, kind: ChangeKind, new_due_at: datetime | None
) -> ScheduledChange:
    row, point = verdict.row, verdict.point
    assert row.due_at is not None
    assert row.topology is not None
    interception = _interception_of(row.broker, point) if point else None
    change = ScheduledChange.objects.create(
        broker=row.broker,
        topology=row.topology,
        message=row,
        interception=interception,
        queue=verdict.queue,
        kind=kind,
        key=row.key,
        content_id=row.content_id,
        destination=row.destination,
        due_at=row.due_at,
        new_due_at=new_due_at,
        id_headers=id_headers(row),
        routing_key=key_of_delay(row),
        is_copied=verdict.is_copied,
        requested_by_id=getattr(user, "pk", None),
    )
    if interception is not None:
        wake(interception)
    audit.record(
        user,
        f"{change.get_kind_display()} requested",
        broker=row.broker,
        what=f"{row.key} for {row.destination}",
        details=change.audit_details,
    )
    return change


def _interception_of(broker: Broker, point: Point) -> Interception:
    """The open one of this path, else a new one; in the caller's transaction."""
    source, queue = point.bindings[0].source, point.queue
    rows = Interception.objects.select_for_update().exclude(state=InterceptionState.CLOSED)
    known = rows.filter(broker=broker, source=source, queue=queue).first()
    if known is not None:
        return known
    done = work.create(KIND, 0, broker=broker, user=None)
    return Interception.objects.create(
        broker=broker,
        name=INTERCEPTION_PREFIX + secrets.token_hex(6),
        source=source,
        queue=queue,
        bindings=[[one.routing_key, dict(one.arguments)] for one in point.bindings],
        queue_type=point.queue_type,
        work=done,
    )


def begins_at(interception: Interception) -> datetime | None:
    """When there is something to do for it next; None when nothing is left."""
    changes = interception.changes.filter(state__in=OPEN)
    if changes.filter(is_copied=True, copied_at=None).exists():
        return timezone.now()
    return opens_at(interception)


def opens_at(interception: Interception) -> datetime | None:
    """When messages are to be intercepted next; None when none is."""
    first = interception.changes.filter(state__in=OPEN).order_by("due_at").first()
    return first.due_at - LEAD if first else None


def wake(interception: Interception) -> None:
    """Let a worker attend to it in time."""
    waiting = Work.objects.filter(pk=interception.work_id, state=WorkState.WAITING)
    waiting.update(not_before_at=begins_at(interception))


def make_record(row: ScheduledChange) -> dict[str, Any]:
    """A line of `scheduled changes --json`, and the API's answer."""
    return {
        "kind": "change",
        "id": row.pk,
        "change": row.kind,
        "state": row.status,
        "broker": row.broker.slug,
        "topology": row.topology.slug,
        "destination": row.destination,
        "message": row.key,
        "due_at": format_moment(row.due_at),
        "new_due_at": format_moment(row.new_due_at),
        "requested_at": format_moment(row.requested_at),
        "ended_at": format_moment(row.ended_at),
        "may_be_duplicated": row.may_be_duplicated,
        "error": row.error,
    }
