"""Requesting changes of waiting messages, and undoing those that did not take effect.

With what RabbitMQ leads into an intercept queue: the changed messages where a header has their id,
else those with their routing keys where these differ by delay, else all.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil
from typing import Any, TypeAlias

import orjson
from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from analytics.models import ScheduledMessage
from analytics.scheduled.queries.listing import Filter
from delayboard.changes.check import (
    LEAD,
    ChangeVerdict,
    Point,
    bound_again_when,
    check,
    check_again,
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
from topology.content.text import count_of
from topology.database.paging import row_number
from topology.definitions import INTERCEPTION_PREFIX, Binding
from topology.delays import format_delay
from topology.models import Broker, Topology, Work, WorkState
from topology.models.read_only import refuse_read_only
from topology.models.work import INTERCEPT
from topology.transfer import interception as objects
from topology.transfer.interception import Interception as Intercepted

KIND = INTERCEPT
# Kind of the work whose subject is one of the changes in the queue to be read.
READ = "read-queue"
# Time from the last change to the end of an interception, about.
AFTER = timedelta(seconds=2)
# Most ids, and most keys, by which messages are selected: a headers exchange compares each message
# with all of its bindings, and each takes a request before the first message is due.
MOST_IDS = MOST_KEYS = 100
# Names and values of headers with the message id; empty for a message without any.
IdHeaders: TypeAlias = frozenset[tuple[str, str]]


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
        "can_be_undone": row.can_be_undone,
    }


def find_changes(filters: Filter, names: Collection[str]) -> QuerySet[ScheduledChange]:
    """The changes that match, the newest first; `filters` are of messages, by the due time.

    A name is the number of a change, or the id of its message.
    """
    wanted: dict[str, Any] = {
        "topology__slug": filters.topology,
        "destination": filters.destination,
        "due_at__gte": filters.from_at,
        "due_at__lt": filters.until_at,
    }
    rows = ScheduledChange.objects.select_related("broker", "topology").order_by("-pk")
    rows = rows.filter(**{name: value for name, value in wanted.items() if value})
    if not names:
        return rows
    # Empty is no id, but the column of all messages without one.
    names = [name for name in names if name.strip()]
    numbers = {number for name in names if (number := row_number(name)) is not None}
    named = Q(key__in=names) | Q(message__correlation_id__in=names)
    return rows.filter(named | Q(pk__in=numbers))


def describe_verdicts(
    verdicts: Sequence[ChangeVerdict], kind: ChangeKind, new_due_at: datetime | None
) -> list[str]:
    """A sentence for each message, and for each queue that is intercepted."""
    lines = [_describe(verdict, kind, new_due_at) for verdict in verdicts]
    lines += (
        f"Delayboard intercepts the queue “{one.queue}” from "
        f"{one.from_at:%Y-%m-%d %H:%M:%S} until a few seconds after {one.until_at:%H:%M:%S} "
        f"UTC. {one.sentence} {one.risk}".rstrip()
        for one in count_other_messages([one for one in verdicts if not one.problem])
    )
    return lines


def _describe(verdict: ChangeVerdict, kind: ChangeKind, new_due_at: datetime | None) -> str:
    row = verdict.row
    name = f"{row.key} for {row.destination}"
    if verdict.problem:
        return f"{name}: cannot be changed. {verdict.problem}"
    more = " A copy is published at once." if verdict.is_copied else ""
    if verdict.queue:
        more = (
            f" The worker takes {count_of(verdict.others, 'other message')} out of "
            f"“{verdict.queue}” as well, and puts them back in their places."
        )
    if new_due_at:
        more += f" The message arrives at {new_due_at:%Y-%m-%d %H:%M:%S}."
    action = kind.value.replace("_", "-")
    return f"{name}: {action} takes effect at {verdict.takes_effect_at:%Y-%m-%d %H:%M:%S}.{more}"


@dataclass(frozen=True)
class OtherMessages:
    """What else is forwarded: the messages known to be due for `queue` meanwhile, and more.

    With `are_only_changed` nothing else is: a header of each changed message has its id. With
    `have_same_delay` only messages with the delay of one that is changed. `bound_again_when`
    says when programs bind the queue again.
    """

    queue: str
    from_at: datetime
    until_at: datetime
    known: int = 0
    are_only_changed: bool = False
    have_same_delay: bool = False
    bound_again_when: tuple[str, ...] = ()

    @property
    def risk(self) -> str:
        """What such a program does to the messages meanwhile; "" where none is known."""
        seconds = ceil((self.until_at + AFTER - self.from_at).total_seconds())
        wait = format_delay(timedelta(seconds=seconds))
        what = "changed messages unchanged too" if self.are_only_changed else "messages twice"
        return " ".join(
            f"If {when} in these {wait}, it binds “{self.queue}” again. RabbitMQ then delivers "
            f"{what}, until the worker removes the binding, usually within a second. The list of "
            "changes reports it."
            for when in self.bound_again_when
        )

    @property
    def sentence(self) -> str:
        """What passes the worker, and what it means for them."""
        if self.are_only_changed:
            return (
                "RabbitMQ routes only the changed messages to the worker: each has its message id "
                "in a header."
            )
        these = count_of(self.known, "known message") + " and " if self.known else ""
        if self.have_same_delay:
            return (
                "RabbitMQ routes only messages with the delays of the changed messages to the "
                f"worker. The worker forwards {these}all other messages with these delays. They "
                "arrive a little later."
            )
        return (
            f"The worker forwards {these}all other messages that RabbitMQ routes to this queue. "
            "They arrive a little later."
        )


def count_other_messages(verdicts: Sequence[ChangeVerdict]) -> list[OtherMessages]:
    """What passes the forwarders besides, for each queue."""
    by_queue: dict[str, list[ChangeVerdict]] = defaultdict(list)
    for verdict in verdicts:
        if verdict.point is not None:
            by_queue[verdict.point.queue].append(verdict)
    return [_other_messages(queue, some) for queue, some in sorted(by_queue.items())]


def _other_messages(queue: str, some: Sequence[ChangeVerdict]) -> OtherMessages:
    broker = some[0].row.broker
    dues = [one.row.due_at for one in some if one.row.due_at]
    from_at, until_at = min(dues) - LEAD, max(dues)
    others_changed = ScheduledChange.objects.filter(
        interception__queue=queue,
        broker=broker,
        state__in=OPEN,
        due_at__range=(from_at, until_at + LEAD),
    )
    rejects = any(one.point is not None and one.point.rejects for one in some)
    selection = (
        ALL
        if rejects
        else Selection().adding(
            Selector(frozenset(id_headers(one.row).items()), key_of_delay(one.row)) for one in some
        )
    )
    selection = selection.adding(selectors_of(others_changed))
    times = tuple(sorted({when for one in some if (when := bound_again_when(one.row))}))
    if not (selection.is_all or selection.keys):
        return OtherMessages(
            queue, from_at, until_at, are_only_changed=True, bound_again_when=times
        )
    others = ScheduledMessage.objects.filter(
        broker=broker,
        left_at=None,
        destination__in={one.row.destination for one in some},
        due_at__gte=from_at,
        due_at__lte=until_at + AFTER,
    )
    if not selection.is_all:
        others = others.filter(routing_key__in=selection.keys)
    changed = others_changed.exclude(message=None).values("message")
    known = others.exclude(pk__in=[one.row.pk for one in some]).exclude(pk__in=changed).count()
    is_same = not selection.is_all
    return OtherMessages(
        queue, from_at, until_at, known, have_same_delay=is_same, bound_again_when=times
    )


@dataclass(frozen=True)
class Selector:
    """How RabbitMQ can tell a message from others of its queue: by `headers`, which no other has,
    or by a `routing_key`, which those of the same delay have too. "" where all have the same.
    """

    headers: IdHeaders
    routing_key: str


@dataclass(frozen=True)
class Selection:
    """What is led into an intercept queue. It only grows: a message that passes by would overtake
    those that wait in the queue.
    """

    headers: frozenset[IdHeaders] = frozenset()
    keys: frozenset[str] = frozenset()
    is_all: bool = False

    def adding(self, selectors: Iterable[Selector]) -> Selection:
        """The selection with these messages, and with as few others as possible."""
        headers, keys = set(self.headers), set(self.keys)
        for one in selectors:
            if one.headers in headers or one.routing_key in keys:
                continue
            if one.headers and len(headers) < MOST_IDS:
                headers.add(one.headers)
            elif one.routing_key and len(keys) < MOST_KEYS:
                keys.add(one.routing_key)
            else:
                return ALL
        return self if self.is_all else Selection(frozenset(headers), frozenset(keys))

    def bindings(self, intercepted: Intercepted) -> list[Binding]:
        if self.is_all:
            return [intercepted.taking_all]
        with_ids = [intercepted.taking_headers(dict(one)) for one in self.headers]
        return with_ids + [intercepted.taking_key(key) for key in sorted(self.keys)]


ALL = Selection(is_all=True)


def key_of_delay(row: ScheduledMessage) -> str:
    """The routing key with which a message leaves its delay; "" where those of others are alike."""
    is_known = row.topology is not None and row.topology.pattern.KEYS_DIFFER_BY_DELAY
    return row.routing_key if is_known and _is_plain(row.routing_key) else ""


def selectors_of(changes: QuerySet[ScheduledChange]) -> Iterable[Selector]:
    for stated, key in changes.values_list("id_headers", "routing_key"):
        yield Selector(frozenset(stated.items()), key)


def id_headers(row: ScheduledMessage) -> dict[str, str]:
    """The headers that have the id of a message, as NServiceBus and others set one, or Celery's.

    None that begins with `x-`, which bindings ignore (rabbit_exchange_type_headers, 3.10.8 to
    4.3.6). What is not printable ASCII may have been stored as another text. All of them, since one
    alone may be that of a conversation, which other messages have too.
    """
    headers = orjson.loads(row.headers_json)
    # Celery sets no message id: the id of a task is its correlation id.
    names = headers if row.message_id else ("id",)
    value = row.message_id or row.correlation_id
    return {
        name: value
        for name in names
        if value
        and headers.get(name) == value
        and _is_plain(name + value)
        and not name.startswith("x-")
    }


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable()


class SelectedMessages:
    """What is led into the queue of one interception in this session."""

    def __init__(self, row: Interception) -> None:
        self._row = row
        self._selection = Selection()

    def missing(self, *, is_for_all: bool = False) -> list[Binding]:
        """Bindings to be declared for the changes that are due while messages may wait, should the
        worker stop; with `is_for_all` for every message. None twice.
        """
        until = timezone.now() + self._row.limit
        changes = self._row.changes.filter(state__in=OPEN, due_at__lte=until)
        before = self._selection
        self._selection = ALL if is_for_all else before.adding(selectors_of(changes))
        if self._selection == before:
            return []
        intercepted = self._row.objects_of_broker
        there = set(before.bindings(intercepted))
        return [one for one in self._selection.bindings(intercepted) if one not in there]
