"""The rows of topologies: written before any request to a broker, and read for a whole broker."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.db import transaction
from django.utils import timezone

from topology import audit
from topology.database.slugs import new_slug
from topology.message import Forwarder
from topology.models import Broker, State, Topology
from topology.operations.ownership import Refusal, refuse_deleted
from topology.patterns.pattern import ParamsError
from topology.patterns.table import KINDS
from topology.routing.forwarder import without_due_header
from topology.structure.taps import NO_TAP

LONGEST_NAME = 255
User = AbstractBaseUser | AnonymousUser | None


def create_topology(user: User, broker: Broker, kind: str, params: Any) -> Topology:
    """Write the row, without a request to the broker. Raises Refusal if the row exists already."""
    return _new_row(user, broker, kind, params, "topology created")


def take_over(user: User, broker: Broker, kind: str, params: Any) -> Topology:
    """The row of a topology that others made: applied, with nothing ours and without taps.

    No request goes to the broker. Raises Refusal if the row exists already.
    """
    return _new_row(
        user,
        broker,
        kind,
        params,
        "topology adopted",
        tap_type=NO_TAP,
        state=State.APPLIED,
        applied_at=timezone.now(),
        is_adopted=True,
    )


def _new_row(
    user: User, broker: Broker, kind: str, params: Any, action: str, **values: Any
) -> Topology:
    pattern = KINDS[kind]
    stored = pattern.store(params)
    name = title = pattern.title(params)
    others = Topology.objects.filter(broker=broker).exclude(state=State.DELETED)
    taken = Topology.objects.filter
    with transaction.atomic():
        # Two at once wait for each other here, so that the second one sees the first.
        Broker.objects.select_for_update().get(pk=broker.pk)
        if any(row.title == title for row in others.filter(kind=kind)):
            raise Refusal(f"The topology “{name}” of this pattern already exists on {broker.name}.")
        if others.filter(name=name).exists():
            kind_words = f" ({pattern.EXPLANATION.title})"
            name = title[: LONGEST_NAME - len(kind_words)] + kind_words
        slug = new_slug(name, lambda slug: taken(slug=slug).exists(), longest=80)
        row = Topology.objects.create(
            broker=broker, slug=slug, kind=kind, name=name, params=stored, **values
        )
        audit.record(user, action, broker=broker, what=name, details=stored)
    return row


def keep_bodies(user: User, topology: Topology, *, is_wanted: bool) -> None:
    """Record the bodies of its messages from now on, or stop; recorded bodies stay.

    Raises Refusal when recording is requested for a deleted topology.
    """
    action = "body storage enabled" if is_wanted else "body storage disabled"
    with audit.recorded(user, action, broker=topology.broker, what=topology.name):
        if is_wanted:
            refuse_deleted(topology)
        Topology.objects.filter(pk=topology.pk).update(keep_bodies=is_wanted)
    topology.refresh_from_db()


def forwarders_at(broker: Broker) -> list[Forwarder]:
    """The consumers at work in its applied topologies, for a walk: ours, and those of others.

    `without_due_header` marks the consumers that others run for adopted topologies.
    A row whose parameters are no longer valid has none.
    """
    found: list[Forwarder] = []
    for topology in Topology.objects.filter(broker=broker, state=State.APPLIED):
        with suppress(ParamsError):
            stated = topology.pattern.forwarders(topology.parsed)
            found += map(without_due_header, stated) if topology.is_adopted else stated
    return found
