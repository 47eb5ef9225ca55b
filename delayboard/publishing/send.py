"""Publishes one message for an operator: recorded first, sent confirmed and mandatory."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.db import IntegrityError, transaction
from django.utils import timezone

from analytics import facts
from delayboard.models import Interception, Publication
from delayboard.models.publication import Sent
from delayboard.publishing.predict import OutgoingMessage, Prediction, find_observer
from topology import audit, snapshots
from topology.broker.amqp.pipeline import CONFIRMED, Answer
from topology.broker.amqp.publisher import REQUEST_HEARTBEAT_SECONDS, publisher
from topology.broker.errors import BrokerError, Conflict
from topology.broker.management.client import Management
from topology.broker.properties.read import build_properties
from topology.message import TRACKING_HEADER, Publish
from topology.models import Broker
from topology.operations.answers import TapCheck, answer_of, find_known
from topology.operations.ownership import owning
from topology.provisioning.plan import conflict_sentences, make_plan
from topology.transfer.prepare import prepare

# The plugin routes what it keeps to no queue at first, so a mandatory publish comes back; what it
# failed to store comes back in the same way (routing/matching/delayed_exchange.py; not tried).
KEPT_UNCONFIRMED = (
    "RabbitMQ returned the message, as it does with every message that a delayed exchange keeps. "
    "It does not confirm that the plugin stored the message."
)


class AlreadySent(Exception):
    """The message with this id was sent already: a second click, or a page from the history."""


def send(
    user: AbstractBaseUser | AnonymousUser,
    broker: Broker,
    outgoing: OutgoingMessage,
    prediction: Prediction,
) -> Publication:
    """Publish and return the row with the outcome; never raises BrokerError.

    Raises, before anything is done, FieldError when AMQP cannot carry a header or property, and
    AlreadySent when the message with this id was sent before.
    """
    tracking = outgoing.id
    outgoing = leave_intercepted(outgoing, broker)
    publish = _publish(outgoing, tracking)
    row = _store_publication(user, broker, outgoing, prediction, tracking, publish)
    try:
        with (
            declaring(broker, outgoing) as declared,
            publisher(
                broker.address, "publish page", heartbeat=REQUEST_HEARTBEAT_SECONDS
            ) as channel,
        ):
            channel.publish_by(outgoing.route, publish, declared)
        answer = _check_tap(broker, publish)
    except BrokerError as error:
        answer = answer_of(error, publish, broker)
    row.sent, row.error = Sent.REFUSED, answer.error
    if answer.kind == "confirmed":
        row.sent, row.confirmed_at = Sent.CONFIRMED, timezone.now()
    elif answer.kind == "returned" and prediction.walk.is_only_kept:
        row.sent, row.error = Sent.UNKNOWN, KEPT_UNCONFIRMED
    elif answer.may_have_arrived:
        row.sent = Sent.UNKNOWN
    with transaction.atomic():
        row.save(update_fields=["sent", "error", "confirmed_at"])
        _record_publication(user, row, publish, outgoing)
    return row


def leave_intercepted(outgoing: OutgoingMessage, broker: Broker) -> OutgoingMessage:
    """The message without the declares of bindings that an interception replaces."""
    declares = Interception.without_replaced(outgoing.route.declares, broker)
    return replace(outgoing, route=replace(outgoing.route, declares=declares))


@contextmanager
def declaring(broker: Broker, outgoing: OutgoingMessage) -> Iterator[Callable[[], None]]:
    """As `owning`, for the objects that the message declares, if any.

    Reads the broker again: the prediction may be seconds old, and another user's destination may
    have appeared. Raises Conflict.
    """
    topology = outgoing.topology
    if topology is None or not len(outgoing.route.declares):
        yield lambda: None
        return
    with Management(broker.address) as management:
        snapshot = snapshots.for_action(broker, management, outgoing.route.declares)
    problem = topology.pattern.target_problem(
        topology.parsed, outgoing.target, snapshot.definitions
    )
    if problem:
        raise Conflict(problem)
    plan = make_plan(outgoing.route.declares, snapshot)
    if not plan.is_applicable:
        raise Conflict(" ".join(conflict_sentences(plan)))
    with owning(topology, outgoing.route.declares, snapshot.declared) as declared:
        yield declared


def _check_tap(broker: Broker, publish: Publish) -> Answer:
    """A tap of ours confirms a message that no other queue takes: that is not a success."""
    try:
        with Management(broker.address) as management:
            why = TapCheck(management, find_known(broker)).explain_loss(publish)
    except BrokerError as error:
        return Answer(
            "unknown",
            "The broker confirmed the message, but Delayboard could not check that a queue other "
            f"than its tap received it: {error}",
        )
    return Answer("returned", why) if why else CONFIRMED


def _publish(outgoing: OutgoingMessage, tracking: uuid.UUID) -> Publish:
    stated = {"delivery_mode": 2, "message_id": str(tracking), **outgoing.properties}
    properties = build_properties(outgoing.headers, **stated)
    stamp = {TRACKING_HEADER: str(tracking)}
    return prepare(outgoing.route, properties, outgoing.body, stamp, is_new=True)


def _store_publication(
    user: AbstractBaseUser | AnonymousUser,
    broker: Broker,
    outgoing: OutgoingMessage,
    prediction: Prediction,
    tracking: uuid.UUID,
    publish: Publish,
) -> Publication:
    observer = find_observer(broker, outgoing.topology, outgoing.target, prediction)
    after = prediction.arrives_after
    row = Publication(
        id=tracking,
        broker=broker,
        topology=observer.topology,
        user_id=user.pk,
        exchange=outgoing.route.exchange,
        routing_key=outgoing.route.routing_key,
        message_id=publish.properties.message_id or "",
        size=len(outgoing.body),
        predicted_delay_ms=None if after is None else after // timedelta(milliseconds=1),
        prediction=prediction.sentence,
        hops=prediction.hops,
        unobservable_why=observer.unobservable_why,
    )
    try:
        with transaction.atomic():
            row.save(force_insert=True)
    except IntegrityError as error:
        raise AlreadySent(str(tracking)) from error
    return row


def _record_publication(
    user: AbstractBaseUser | AnonymousUser,
    row: Publication,
    publish: Publish,
    outgoing: OutgoingMessage,
) -> None:
    if row.confirmed_at is not None:
        facts.state(
            kind="published",
            broker=row.broker,
            topology=row.topology,
            message=publish,
            destination=outgoing.target,
            requested_delay=outgoing.waits,
            at=row.confirmed_at,
            tracking_id=str(row.pk),
        )
    audit.record(
        user,
        "message published",
        broker=row.broker,
        what=f"{row.exchange or '(default)'} {row.routing_key}",
        outcome=row.error or "done",
        details={"publication": str(row.pk), "bytes": row.size},
    )
