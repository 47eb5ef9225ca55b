"""A message that an operator publishes: where it arrives and when, who sees that; sending.

It is recorded first, and published confirmed and mandatory.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.db import IntegrityError, transaction
from django.utils import timezone

from analytics import facts
from analytics.models import Firehose
from delayboard.models import Interception, Publication
from delayboard.models.publication import Sent
from topology import audit, snapshots
from topology.broker.amqp.pipeline import CONFIRMED, REQUEST_HEARTBEAT_SECONDS, Answer, publisher
from topology.broker.errors import BrokerError, Conflict
from topology.broker.management.client import Management
from topology.broker.properties.read import build_properties
from topology.definitions import Definitions
from topology.delays import milliseconds
from topology.message import TRACKING_HEADER, Forwarder, Publish, Route
from topology.models import Broker, State, Topology
from topology.operations.answers import NackCheck, TapCheck, find_known
from topology.operations.ownership import owning
from topology.operations.topology_rows import forwarders_at
from topology.provisioning.plan import conflict_sentences, make_plan
from topology.routing.walk import Walk, walk
from topology.snapshot import Snapshot
from topology.transfer.prepare import prepare

NOTHING = Definitions()
NOT_OBSERVED = (
    "Delivery is not observed for this topology: no tap records messages that leave its delays."
)
# Sentence for a message that the plugin may keep: it routes what it keeps to no queue at first, so
# a mandatory publish comes back, as does what it failed to store
# (routing/matching/delayed_exchange.py; not tried).
KEPT_UNCONFIRMED = (
    "RabbitMQ returned the message, as it does with every message that a delayed exchange keeps. "
    "It does not confirm that the plugin stored the message."
)


@dataclass(frozen=True)
class OutgoingMessage:
    """`properties` are by their AMQP names.

    Through a topology, `note` is a remark on the requested delay.
    """

    route: Route
    body: bytes
    headers: Mapping[str, Any] = field(default_factory=dict)
    properties: Mapping[str, Any] = field(default_factory=dict)
    topology: Topology | None = None
    target: str = ""
    note: str = ""
    delay: timedelta = timedelta(0)
    id: uuid.UUID = field(default_factory=uuid.uuid4)

    @property
    def waits(self) -> timedelta:
        """How long its topology delays it, rounded as the topology does."""
        if self.topology is None:
            return timedelta(0)
        return self.topology.pattern.achievable(self.topology.parsed, self.delay)


@dataclass(frozen=True)
class Prediction:
    """`arrives_after` and `queue` of the first delivery, None and "" when it would be lost.

    `found` is what it was worked out on.
    """

    walk: Walk
    found: Definitions
    sentence: str
    arrives_after: timedelta | None
    queue: str

    @property
    def is_good(self) -> bool:
        return self.arrives_after is not None

    @property
    def hops(self) -> list[dict[str, Any]]:
        """The queues of the copy that arrives first, to be stored: when it reaches each (ms)."""
        first = min(self.walk.delivered, key=lambda outcome: outcome.after, default=None)
        return [
            {"queue": hop.queue, "after_ms": milliseconds(hop.after), "is_wait": bool(hop.wait)}
            for hop in (first.hops if first else ())
        ]


def predict(
    snapshot: Snapshot,
    exchange: str,
    routing_key: str,
    *,
    headers: dict[str, Any] | None = None,
    expiration: str | None = None,
    declares: Definitions = NOTHING,
    forwarders: Sequence[Forwarder] = (),
    now_ms: int = 0,
    note: str = "",
) -> Prediction:
    """Walk the current definitions plus what `declares` adds, without our own taps.

    `forwarders` are assumed to run; times in `headers` count from `now_ms`, the time of the
    publish. `note` begins the sentence.
    """
    walked = walk(
        snapshot.definitions.without_taps() | declares,
        exchange,
        routing_key,
        version=snapshot.version_tuple,
        headers=headers,
        expiration=expiration,
        consumed=snapshot.consumed,
        forwarders=forwarders,
        now_ms=now_ms,
    )
    first = min(walked.delivered, key=lambda outcome: outcome.after, default=None)
    return Prediction(
        walk=walked,
        found=snapshot.definitions,
        sentence=" ".join([note, *(outcome.sentence for outcome in walked.outcomes)]).strip(),
        arrives_after=first.after if first else None,
        queue=first.queue if first else "",
    )


def predict_message(broker: Broker, snapshot: Snapshot, outgoing: OutgoingMessage) -> Prediction:
    """The prediction for a message that is published at this moment."""
    now_ms, route = time.time_ns() // 1_000_000, outgoing.route
    return predict(
        snapshot,
        route.exchange,
        route.routing_key,
        headers={**outgoing.headers, **route.make_headers(now_ms)},
        expiration=outgoing.properties.get("expiration"),
        declares=route.declares,
        forwarders=forwarders_at(broker),
        now_ms=now_ms,
        note=outgoing.note,
    )


@dataclass(frozen=True)
class Observer:
    """The topology that records the message, if one does; `unobservable_why` is "" if it records
    the delivery too. `sentence` says before the publish how far the message is followed.
    `sees_entry`: a tap records when the message enters the delay.
    """

    topology: Topology | None
    unobservable_why: str = ""
    by_firehose: bool = False
    sees_entry: bool = True

    @property
    def sentence(self) -> str:
        if self.by_firehose:
            return "Delayboard follows the message until a consumer takes it (firehose)."
        if not self.unobservable_why and not self.sees_entry:
            return (
                "Delayboard observes the publish and the delivery. The entry into the delay is not "
                "observed, so the due time counts from the publish."
            )
        if not self.unobservable_why:
            return "Delayboard follows the message until delivery."
        end = "it enters the delay" if has_entry_tap(self.topology) else "the publish"
        return f"Delayboard follows the message only until {end}. {self.unobservable_why}"


def find_observer(
    broker: Broker, through: Topology | None, target: str, prediction: Prediction
) -> Observer:
    """`through` is the topology through which the message is published to `target`, if any."""
    applied = Topology.objects.filter(broker=broker, state=State.APPLIED)
    topology = through or find_tapped(list(applied), prediction.walk)
    if not prediction.is_good:
        return Observer(topology, "The prediction has no delivery.")
    if topology is None:
        return Observer(
            None,
            f"No tap of an applied topology records deliveries to {prediction.queue}. Publish "
            "through an applied topology to observe the delivery.",
        )
    # Whether a tap sees what arrives at this target. A direct exchange copies to a tap
    # what it was bound for by name, and nothing for “#”.
    direct = {exchange.name for exchange in prediction.found.exchanges if exchange.type == "direct"}
    if any(
        tap.phase == "exit"
        and tap.destination in ("", target)
        and not (tap.routing_key == "#" and tap.exchange in direct)
        for tap in topology.taps
    ):
        is_delayed = bool(prediction.arrives_after)
        return Observer(topology, sees_entry=has_entry_tap(topology) or not is_delayed)
    # It records deliveries of delayed messages only.
    if prediction.arrives_after and Firehose.objects.filter(broker=broker).exists():
        return Observer(topology, by_firehose=True)
    return Observer(topology, NOT_OBSERVED)


def has_entry_tap(topology: Topology | None) -> bool:
    return topology is not None and any(tap.phase == "entry" for tap in topology.taps)


def find_tapped(topologies: list[Topology], walked: Walk) -> Topology | None:
    """The topology whose tap would see the message arrive, if there is one."""
    last = [outcome.hops[-1] for outcome in walked.delivered]
    for topology in topologies:
        for tap in topology.taps:
            passes = {hop.routing_key for hop in last if hop.exchange == tap.exchange}
            if tap.phase == "exit" and passes and (tap.routing_key in {"#", *passes}):
                return topology
    return None


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
            answer = channel.publish_by(outgoing.route, publish, declared)
    except BrokerError as error:
        answer = Answer("failed", str(error))
    if answer.kind == "confirmed":
        answer = _check_tap(broker, publish)
    answer = NackCheck(broker).settle(answer)
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
    """Own the objects that the message declares, if any, as `owning` does.

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
