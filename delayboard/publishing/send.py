"""Publishes one message for an operator: recorded first, sent confirmed and mandatory."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.db import IntegrityError, transaction
from django.utils import timezone

from analytics import facts
from delayboard.models import Publication
from delayboard.models.publication import Sent
from delayboard.publishing.intercepted import without_intercepted
from delayboard.publishing.observe import find_observer
from delayboard.publishing.own_declared import owning
from delayboard.publishing.predict import Prediction
from topology import audit, snapshots
from topology.broker.amqp.publisher import REQUEST_HEARTBEAT_SECONDS, publisher
from topology.broker.errors import BrokerError, Conflict, OutcomeUnknown, Returned
from topology.broker.management.client import Management
from topology.broker.management.refresh import refresh_route
from topology.broker.properties.read import build_properties
from topology.definitions import Definitions
from topology.message import PUBLISHED_AT_HEADER, TRACKING_HEADER, Publish, Route
from topology.models import Broker, Topology
from topology.operations.nacks import explaining
from topology.provisioning.plan import conflict_sentences, make_plan
from topology.provisioning.taps import lost_to_taps

# The plugin routes what it keeps to no queue at first, so a mandatory publish comes back; what it
# failed to store comes back in the same way (routing/matching/delayed_exchange.py; not tried).
KEPT_UNCONFIRMED = (
    "RabbitMQ returned the message, as it does with every message that a delayed exchange keeps. "
    "It does not confirm that the plugin stored the message."
)


@dataclass(frozen=True)
class OutgoingMessage:
    """A message that an operator publishes; `properties` by their AMQP names.

    `delay_route` is its route through a topology, with `note` a remark on the requested delay.
    """

    exchange: str
    routing_key: str
    body: bytes
    headers: Mapping[str, Any] = field(default_factory=dict)
    properties: Mapping[str, Any] = field(default_factory=dict)
    delay_route: Route | None = None
    topology: Topology | None = None
    target: str = ""
    note: str = ""
    delay: timedelta = timedelta(0)
    id: uuid.UUID = field(default_factory=uuid.uuid4)

    @property
    def waits(self) -> timedelta:
        """How long its topology delays it, rounded as the topology does."""
        if self.topology is None or self.delay_route is None:
            return timedelta(0)
        return self.topology.pattern.achievable(self.topology.parsed, self.delay)

    @property
    def route(self) -> Route:
        return self.delay_route or Route(self.exchange, self.routing_key)

    @property
    def declares(self) -> Definitions:
        return self.route.declares

    def make_headers(self, now_ms: int) -> dict[str, Any]:
        """Its headers and those of its way, which come first, published at this moment (ms)."""
        return {**self.headers, **self.route.make_headers(now_ms)}


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
            explaining(broker, publish),
        ):
            channel.publish_by(outgoing.route, publish, declared)
        _refuse_tap_alone(broker, publish)
    except OutcomeUnknown as error:
        row.sent, row.error = Sent.UNKNOWN, str(error)
    except Returned as error:
        is_kept = prediction.walk.is_only_kept
        row.sent = Sent.UNKNOWN if is_kept else Sent.REFUSED
        row.error = KEPT_UNCONFIRMED if is_kept else str(error)
    except BrokerError as error:
        row.sent, row.error = Sent.REFUSED, str(error)
    else:
        row.sent, row.confirmed_at = Sent.CONFIRMED, timezone.now()
    with transaction.atomic():
        row.save(update_fields=["sent", "error", "confirmed_at"])
        _record_publication(user, row, publish, outgoing)
    return row


def leave_intercepted(outgoing: OutgoingMessage, broker: Broker) -> OutgoingMessage:
    """The message without the declares of bindings that an interception replaces."""
    if outgoing.delay_route is None:
        return outgoing
    declares = without_intercepted(outgoing.declares, broker)
    return replace(outgoing, delay_route=replace(outgoing.delay_route, declares=declares))


@contextmanager
def declaring(broker: Broker, outgoing: OutgoingMessage) -> Iterator[Callable[[], None]]:
    """As `owning`, for the objects that the message declares, if any.

    Reads the broker again: the prediction may be seconds old, and another user's destination may
    have appeared. Raises Conflict.
    """
    topology = outgoing.topology
    if topology is None or not len(outgoing.declares):
        yield lambda: None
        return
    with Management(broker.address) as management:
        snapshot = snapshots.for_action(broker, management, outgoing.declares)
    problem = topology.pattern.target_problem(
        topology.parsed, outgoing.target, snapshot.definitions
    )
    if problem:
        raise Conflict(problem)
    plan = make_plan(outgoing.declares, snapshot)
    if not plan.is_applicable:
        raise Conflict(" ".join(conflict_sentences(plan)))
    with owning(topology, outgoing.declares, snapshot.declared) as declared:
        yield declared


def explain_tap_alone(broker: Broker, management: Management, publish: Publish) -> str:
    """Why a tap of ours alone receives the message; "" when another queue can.

    Reads the route again, for what is known may be old. Raises BrokerError.
    """
    known = snapshots.latest(broker.pk)
    snapshot = known.snapshot if known and known.snapshot else snapshots.recent(broker)
    found = refresh_route(management, snapshot.definitions, publish.exchange)
    return lost_to_taps(found, publish)


def _refuse_tap_alone(broker: Broker, publish: Publish) -> None:
    """A tap of ours confirms a message that no other queue takes: that is not a success.

    Raises Returned, and OutcomeUnknown when the broker cannot be read.
    """
    try:
        with Management(broker.address) as management:
            why = explain_tap_alone(broker, management, publish)
    except BrokerError as error:
        raise OutcomeUnknown(
            "The broker confirmed the message, but Delayboard could not check that a queue other "
            f"than its tap received it: {error}"
        ) from error
    if why:
        raise Returned(f"No queue receives the message: {why}.")


def _publish(outgoing: OutgoingMessage, tracking: uuid.UUID) -> Publish:
    stated = dict(outgoing.properties)
    stated.setdefault("delivery_mode", 2)
    stated.setdefault("message_id", str(tracking))
    now_ms = time.time_ns() // 1_000_000
    headers = {
        **outgoing.make_headers(now_ms),
        TRACKING_HEADER: str(tracking),
        PUBLISHED_AT_HEADER: now_ms,
    }
    properties = build_properties(headers, **stated)
    return Publish(outgoing.exchange, outgoing.routing_key, properties, outgoing.body)


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
        exchange=outgoing.exchange,
        routing_key=outgoing.routing_key,
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
