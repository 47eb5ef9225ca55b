"""Publishing the copies that take the place of messages: those delivered now, or earlier."""

from __future__ import annotations

from collections.abc import Callable

from django.db import transaction
from django.utils import timezone

from analytics import facts
from delayboard.changes import take
from delayboard.changes.limits import MARGIN
from delayboard.changes.outgoing import lost_to_taps, replacement
from delayboard.changes.rebuild import rebuild
from delayboard.models import ChangeState, Interception, ScheduledChange
from topology import audit
from topology.broker.amqp.publisher import Publisher, publisher
from topology.broker.errors import BrokerError, OutcomeUnknown, Returned
from topology.broker.management.client import Management
from topology.broker.management.observe import observe
from topology.broker.properties.field_values import FieldError
from topology.message import Publish
from topology.patterns.pattern import ParamsError


def publish_copies(interception: Interception, step: Callable[[], None]) -> None:
    """Publish what is not yet. Each is begun in the database first.

    What was begun and is not confirmed, be it by a process that died, is published once more and
    marked. Where the message itself is due, it is too late for a copy. Raises OutcomeUnknown, and
    BrokerError where nobody can be reached.
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
        for change in changes:
            step()
            _publish(change, channel)


def _publish(change: ScheduledChange, channel: Publisher) -> None:
    begun = ScheduledChange.objects.filter(pk=change.pk, state=ChangeState.PENDING)
    if not begun.update(
        copy_begun_at=timezone.now(), may_be_duplicated=change.copy_begun_at is not None
    ):
        return
    message = (
        rebuild(change.message)
        if change.message
        else "The message is no longer on the list of waiting messages."
    )
    try:
        if isinstance(message, str):
            raise ParamsError({"": message})
        declares, publish = replacement(change, message)
        channel.declare(declares)
        channel.publish(publish)
        if why := _lost(change, publish):
            raise Returned(f"No queue receives the copy: {why}.")
    except OutcomeUnknown:
        raise
    except (BrokerError, ParamsError, FieldError) as error:
        _refuse(change, str(error))
        return
    _confirm(change, publish)


def _lost(change: ScheduledChange, publish: Publish) -> str:
    """As `lost_to_taps`. Raises OutcomeUnknown where the broker cannot be looked at."""
    try:
        with Management(change.broker.address) as management:
            return lost_to_taps(publish, observe(management).definitions)
    except BrokerError as error:
        raise OutcomeUnknown(str(error)) from error


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
            details={"change": change.pk},
        )


def _refuse(change: ScheduledChange, error: str) -> None:
    ScheduledChange.objects.filter(pk=change.pk).update(
        state=ChangeState.FAILED, error=error, ended_at=timezone.now()
    )
