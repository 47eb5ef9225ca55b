"""Publishing what takes the place of messages: copies of those delivered now, or earlier."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

from django.db import transaction
from django.utils import timezone

from analytics import facts
from delayboard.changes import take
from delayboard.changes.check import exit_of, rebuild
from delayboard.changes.take import stated_headers
from delayboard.models import ChangeKind, ChangeState, Interception, ScheduledChange
from topology import audit
from topology.broker.amqp.pipeline import Answer, Publisher, publisher
from topology.broker.errors import BrokerError, OutcomeUnknown
from topology.broker.management.client import Management
from topology.broker.properties.field_values import FieldError
from topology.definitions import Definitions
from topology.message import Message, Publish, Route
from topology.operations.answers import NackCheck, TapCheck, find_known
from topology.patterns.pattern import ParamsError
from topology.transfer.prepare import prepare

# Time before the due time until which a copy is published: a later one could follow its message.
MARGIN = timedelta(seconds=1)
# Most copies published between two readings of the broker; a kill can repeat these, each marked.
AT_ONCE = 20


def publish_copies(interception: Interception, step: Callable[[], None]) -> None:
    """Publish what is not yet. Each is begun in the database first.

    What was begun and is not confirmed, be it by a process that died, is published once more and
    marked. Where the message itself is due, it is too late for a copy. Raises a BrokerError that
    may pass.
    """
    rows = interception.changes.filter(
        state=ChangeState.PENDING, is_copied=True, copied_at=None
    ).select_related("topology", "broker", "message")
    late = rows.filter(due_at__lt=timezone.now() + MARGIN)
    for change in late:
        take.fail(change, "The message was due before its copy was published.")
    changes = list(rows.exclude(pk__in=[change.pk for change in late]))
    if not changes:
        return
    with publisher(interception.broker.address, "copies of scheduled messages") as channel:
        for first in range(0, len(changes), AT_ONCE):
            published = []
            for change in changes[first : first + AT_ONCE]:
                step()
                if publish := _publish_copy(change, channel):
                    published.append((change, publish))
            if published:
                _settle_copies(interception, published)


def publish_in_place(
    change: ScheduledChange,
    message: Message,
    channel: Publisher,
    begin: Callable[[ScheduledChange], bool] = take.begin,
) -> Publish | None:
    """What was published in its place; None when that was undone or refused.

    `begin` writes down that it is published. Raises a BrokerError that may pass: call again.
    """
    try:
        declares, publish = replacement(change, message)
    except (ParamsError, FieldError) as error:
        take.fail(change, str(error))
        return None
    try:
        channel.declare(declares)
        if not begin(change):
            return None
        answer = channel.publish(publish)
    except BrokerError as error:
        if error.retry_helps:
            raise
        answer = Answer("failed", str(error))
    if answer.kind == "confirmed":
        return publish
    if answer.kind == "unknown":
        raise OutcomeUnknown(answer.error)
    # After a nack it is not published again: where a tap is down, each would be a duplicate.
    answer = NackCheck(change.broker).settle(answer)
    take.fail(change, answer.error, may_have_arrived=answer.may_have_arrived)
    return None


def _publish_copy(change: ScheduledChange, channel: Publisher) -> Publish | None:
    """The publish of a copy, as `publish_in_place` makes it."""
    if change.message is None:
        take.fail(change, "The message is no longer on the list of waiting messages.")
        return None
    message = rebuild(change.message)
    if isinstance(message, str):
        take.fail(change, message)
        return None
    return publish_in_place(change, message, channel, _begin_copy)


def _begin_copy(change: ScheduledChange) -> bool:
    rows = ScheduledChange.objects.filter(pk=change.pk, state=ChangeState.PENDING)
    is_again = change.copy_begun_at is not None
    return bool(rows.update(copy_begun_at=timezone.now(), may_be_duplicated=is_again))


def _settle_copies(
    interception: Interception, published: Sequence[tuple[ScheduledChange, Publish]]
) -> None:
    """A tap of ours confirms what no real queue takes.

    Raises OutcomeUnknown where the broker cannot be looked at.
    """
    try:
        with Management(interception.broker.address) as management:
            check = TapCheck(management, find_known(interception.broker))
            lost = [check.explain_loss(publish) for _, publish in published]
    except BrokerError as error:
        raise OutcomeUnknown(str(error)) from error
    for (change, publish), why in zip(published, lost, strict=True):
        if why:
            take.fail(change, why)
        else:
            _confirm(change, publish)


def _confirm(change: ScheduledChange, publish: Publish) -> None:
    now = timezone.now()
    with transaction.atomic():
        ScheduledChange.objects.filter(pk=change.pk).update(copied_at=now)
        facts.state(
            kind="published",
            broker=change.broker,
            topology=change.topology,
            message=publish,
            destination=change.destination,
            at=now,
        )
        audit.record(
            None,
            "copy published",
            broker=change.broker,
            what=f"{change.key} for {change.destination}",
            details=change.audit_details,
        )


def replacement(change: ScheduledChange, message: Message) -> tuple[Definitions, Publish]:
    """What to declare and to publish: with the same ids, now or with what is left of the delay.

    No binding is declared: the destination's is there, or is replaced just now. Raises ParamsError
    for a delay that the topology does not have, FieldError for properties that cannot be edited.
    """
    topology = change.topology
    stated = stated_headers(change)
    params = topology.parsed
    if change.kind == ChangeKind.DELIVER_NOW:
        exchange, key = exit_of(topology.pattern, params, change.destination)
        if topology.pattern.KEYS_DIFFER_BY_DELAY:
            key = message.routing_key
        route = Route(exchange, key)
    else:
        assert change.new_due_at is not None
        left = max(timedelta(0), change.new_due_at - timezone.now())
        # To the millisecond, as all delays are.
        left = timedelta(milliseconds=round(left / timedelta(milliseconds=1)))
        route = topology.pattern.route(params, left, change.destination)
    publish = prepare(route, message.properties, message.body, stated)
    return Definitions(queues=route.declares.queues), publish
