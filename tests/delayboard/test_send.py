"""Sending for an operator; the broker stands behind `publisher`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
import time_machine
from cryptography.fernet import Fernet
from django.contrib.auth.models import User
from pytest_django import Settings

from analytics.models import Fact
from delayboard.models import Publication
from delayboard.models.publication import LONGEST_SEND, Sent
from delayboard.publishing import publish_message as sending
from delayboard.publishing.publish_message import OutgoingMessage, Prediction, predict, send
from tests.delayboard.builders import shop
from tests.topology.builders import a_queue, a_snapshot
from topology import snapshots
from topology.broker.amqp.pipeline import CONFIRMED, Answer
from topology.broker.errors import (
    NACKED,
    BrokerError,
    NotFound,
    Unreachable,
)
from topology.broker.properties.field_values import FieldError
from topology.definitions import (
    DELAYED_TYPE,
    TAP_PREFIX,
    Arguments,
    Binding,
    Definitions,
    Exchange,
    Queue,
)
from topology.message import PUBLISHED_AT_HEADER, TRACKING_HEADER, Publish, Route
from topology.models import AuditEntry, Broker, Topology
from topology.operations import answers
from topology.operations.topology_rows import create_topology
from topology.patterns.delay_levels import params as delay_levels_params
from topology.patterns.delay_levels.pattern import delay_levels

SECOND = timedelta(seconds=1)
LEVELS = delay_levels_params.Params("own", "shop", 4)


class Channel:
    """A publisher that keeps what it is given, or fails."""

    def __init__(self) -> None:
        self.error: Answer | BaseException | None = None
        self.refuses: Exception | None = None
        self.seen = a_snapshot(shop())
        self.declared: list[Definitions] = []
        self.published: list[Publish] = []

    def publish_by(self, route: Route, publish: Publish, declared: Callable[[], None]) -> Answer:
        if self.refuses:
            raise self.refuses
        self.declared.append(route.declares)
        declared()
        if isinstance(self.error, BaseException):
            raise self.error
        if self.error is not None:
            return self.error
        self.published.append(publish)
        return CONFIRMED


@pytest.fixture
def channel(monkeypatch: pytest.MonkeyPatch) -> Channel:
    kept = Channel()

    @contextmanager
    def publisher(*args: Any, **kwargs: Any) -> Iterator[Channel]:
        yield kept

    monkeypatch.setattr(sending, "publisher", publisher)
    monkeypatch.setattr(snapshots, "recent", lambda broker: kept.seen)
    monkeypatch.setattr(answers, "refresh_route", lambda *asked: kept.seen.definitions)
    monkeypatch.setattr(snapshots, "for_action", lambda broker, management, objects: kept.seen)
    return kept


def good(there: Definitions | None = None) -> Prediction:
    return predict(a_snapshot(there or shop()), "orders", "orders")


WAY = Route("orders", "orders", shop())
OUTGOING = OutgoingMessage(WAY, b"{}", {"tenant": 42}, {"type": "t"})


def test_a_message_is_written_down_sent_and_told(
    channel: Channel, broker: Broker, user: User
) -> None:
    row = send(user, broker, OUTGOING, good())
    row.refresh_from_db()
    assert (row.sent, row.error, row.prediction) == (Sent.CONFIRMED, "", good().sentence)
    assert row.confirmed_at is not None
    assert row.due_at == row.created_at
    (published,) = channel.published
    headers = dict(published.properties.headers)
    assert headers.pop(TRACKING_HEADER) == str(row.pk) == published.properties.message_id
    assert abs(headers.pop(PUBLISHED_AT_HEADER) / 1000 - row.created_at.timestamp()) < 60
    assert headers == {"tenant": 42}
    assert (published.properties.delivery_mode, published.properties.type) == (2, "t")
    assert channel.declared == [shop()]
    assert Fact.objects.count() == 1
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.what, entry.outcome) == (
        "message published",
        "orders orders",
        "done",
    )


@pytest.mark.parametrize(
    ("error", "sent"),
    [
        (Answer("returned", "no queue"), Sent.REFUSED),
        (Answer("nacked", NACKED), Sent.UNKNOWN),
        (Unreachable("gone"), Sent.REFUSED),
        (Answer("unknown", "broke"), Sent.UNKNOWN),
    ],
)
def test_a_publish_that_fails_is_told_and_states_no_fact(
    channel: Channel, broker: Broker, user: User, error: Answer | BrokerError, sent: Sent
) -> None:
    channel.error = error
    row = send(user, broker, OUTGOING, good())
    row.refresh_from_db()
    assert (row.sent, row.confirmed_at) == (sent, None)
    assert row.error == (error.error if isinstance(error, Answer) else str(error))
    assert not Fact.objects.exists()
    assert AuditEntry.objects.get().outcome == row.error


def test_a_queue_that_is_newer_than_the_prediction_counts(
    channel: Channel, broker: Broker, user: User
) -> None:
    old = predict(a_snapshot(Definitions()), "orders", "orders")
    assert send(user, broker, OUTGOING, old).sent == Sent.CONFIRMED


def test_a_broker_that_is_gone_after_the_confirm_leaves_it_in_doubt(
    channel: Channel, broker: Broker, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*asked: Any) -> Any:
        raise Unreachable("gone")

    monkeypatch.setattr(answers, "refresh_route", gone)
    row = send(user, broker, OUTGOING, good())
    assert row.sent == Sent.UNKNOWN
    assert "The broker confirmed the message, but" in row.error


def test_what_only_a_tap_took_is_refused(channel: Channel, broker: Broker, user: User) -> None:
    tap = Queue(f"{TAP_PREFIX}orders")
    tapped = Definitions.of([tap, Binding("orders", tap.name, "unbound")])
    channel.seen = a_snapshot(shop() | tapped)
    row = send(user, broker, replace(OUTGOING, route=Route("orders", "unbound")), good())
    assert row.sent == Sent.REFUSED
    assert row.error.startswith("No queue but a tap of Delayboard receives the message: the ex")


def test_a_password_that_cannot_be_opened_is_a_refusal_and_no_crash(
    channel: Channel, broker: Broker, user: User, settings: Settings
) -> None:
    settings.CREDENTIAL_KEYS = [Fernet.generate_key().decode()]
    row = send(user, broker, OUTGOING, good())
    assert row.sent == Sent.REFUSED
    assert "cannot be decrypted" in row.error
    assert channel.published == []


def test_what_amqp_cannot_carry_is_refused_before_anything_is_written(
    channel: Channel, broker: Broker, user: User
) -> None:
    with pytest.raises(FieldError):
        send(user, broker, OutgoingMessage(Route("", "q"), b"", {"n": 2**70}), good())
    assert not Publication.objects.exists()
    assert channel.published == []


def test_a_crash_while_sending_leaves_a_row_that_says_so_later(
    channel: Channel, broker: Broker, user: User
) -> None:
    channel.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        send(user, broker, OUTGOING, good())
    row = Publication.objects.get()
    reported = []
    for after in (timedelta(0), LONGEST_SEND - SECOND, LONGEST_SEND + SECOND):
        with time_machine.travel(row.created_at + after, tick=False):
            reported.append(row.outcome)
    assert reported == [Sent.SENDING, Sent.SENDING, Sent.UNKNOWN]


@pytest.fixture
def levels(broker: Broker, channel: Channel) -> Topology:
    row = create_topology(None, broker, "delay_levels", LEVELS)
    channel.seen = a_snapshot(delay_levels.definitions(LEVELS) | Definitions.of([a_queue("work")]))
    return row


def to_levels(row: Topology, target: str) -> OutgoingMessage:
    route = delay_levels.route(LEVELS, SECOND, target)
    return OutgoingMessage(route, b"{}", topology=row, target=target)


def test_what_a_parked_message_declares_is_ours_from_before_until_the_broker_refuses_it(
    channel: Channel, broker: Broker, user: User, levels: Topology
) -> None:
    outgoing = to_levels(levels, "work")
    (bound,) = outgoing.route.declares.bindings
    channel.refuses = NotFound("no queue 'work'")
    assert send(user, broker, outgoing, good()).sent == Sent.REFUSED
    levels.refresh_from_db()
    assert bound.identity not in levels.owned_identities
    channel.refuses, channel.error = None, Answer("returned", "no queue")
    assert send(user, broker, replace(outgoing, id=uuid4()), good()).sent == Sent.REFUSED
    levels.refresh_from_db()
    assert bound.identity in levels.owned_identities


@pytest.mark.parametrize(
    ("target", "there", "said"),
    [
        ("gone", [], "The queue gone does not exist"),
        (
            "work",
            [Binding("shop.delay-delivery", "x", "#.old.work")],
            "“old.work” ends with this name",
        ),
        ("delayboard.tap.orders", [], "Delayboard uses this queue itself"),
    ],
)
def test_a_destination_that_became_wrong_since_the_prediction_is_refused_and_not_bound(
    channel: Channel,
    broker: Broker,
    user: User,
    levels: Topology,
    target: str,
    there: list[Binding],
    said: str,
) -> None:
    channel.seen = a_snapshot(channel.seen.definitions | Definitions.of(there))
    row = send(user, broker, to_levels(levels, target), good())
    assert row.sent == Sent.REFUSED
    assert said in row.error
    assert channel.declared == []
    levels.refresh_from_db()
    assert levels.owned == []


def test_why_nobody_will_see_it_arrive_is_said_at_once(
    channel: Channel, broker: Broker, user: User, pair: Topology
) -> None:
    untapped = send(
        user, broker, replace(OUTGOING, id=uuid4()), predict(a_snapshot(shop()), "", "orders")
    )
    assert "No tap of an applied topology records deliveries to orders" in untapped.unobservable_why
    lost = send(
        user, broker, replace(OUTGOING, id=uuid4()), predict(a_snapshot(shop()), "gone", "")
    )
    assert lost.unobservable_why == "The prediction has no delivery."
    tapped = send(user, broker, replace(OUTGOING, id=uuid4()), good(pair.definitions))
    assert (tapped.unobservable_why, tapped.topology) == ("", pair)


@pytest.mark.parametrize(("headers", "sent"), [({"x-delay": 40}, Sent.UNKNOWN), ({}, Sent.REFUSED)])
def test_what_a_delayed_exchange_gives_back_it_keeps_and_nothing_confirms_that(
    channel: Channel, broker: Broker, user: User, headers: dict[str, Any], sent: Sent
) -> None:
    """As the plugin's source says; none of the tests' brokers can have it."""
    later = Exchange("later", DELAYED_TYPE, arguments=Arguments({"x-delayed-type": "direct"}))
    there = a_snapshot(shop(later, Binding("later", "orders", "k")))
    channel.error = Answer("returned", "No queue takes the key “k”.")
    outgoing = OutgoingMessage(Route("later", "k"), b"{}", headers)
    row = send(user, broker, outgoing, predict(there, "later", "k", headers=headers))
    assert (row.sent, row.confirmed_at) == (sent, None)
    assert ("does not confirm that the plugin stored" in row.error) == (sent == Sent.UNKNOWN)
