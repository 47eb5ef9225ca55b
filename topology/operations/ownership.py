"""Which things of a broker are a topology's own, and who may change that just now."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from threading import Event
from typing import Any

from django.db import transaction

from topology import audit, work
from topology.broker.errors import BrokerError, OutcomeUnknown
from topology.broker.management.client import Management
from topology.definitions import Definitions, Identity
from topology.models import QueueReplacement, State, Topology
from topology.models.work import CHANGING
from topology.provisioning.plan import Plan

# Time after which a lease ends whose owner died: longer than any step takes.
LONGEST_ACTION = timedelta(seconds=60)


class Refusal(Exception):
    """The action was refused and nothing was changed; the message says why."""


@contextmanager
def alone_with(topology: Topology) -> Iterator[Callable[[], None]]:
    """Keep others from applying or deleting the topology meanwhile. Raises Refusal when somebody
    does.

    Yields what extends the lease, to be called within LONGEST_ACTION, as by
    `Management.before_change`; it raises Refusal when somebody else has taken over.
    """
    with work.alone(CHANGING, topology.pk, broker=topology.broker, lasts=LONGEST_ACTION) as lease:
        if lease is None:
            raise Refusal("Another process is changing this topology. Try again in a minute.")
        topology.refresh_from_db()

        def extend() -> None:
            if not lease.renew(0, 0):
                raise Refusal(
                    "Another process changed this topology after this one was slow. "
                    "Check the topology."
                )

        yield extend


@contextmanager
def changing(
    user: audit.Actor,
    topology: Topology,
    action: str,
    *,
    what: str = "",
    details: Mapping[str, Any] | None = None,
) -> Iterator[Management]:
    """Record an action on a topology, which nobody else changes meanwhile, and read its row again.

    Yields a session with its broker, in which each change extends the claim.
    """
    broker = topology.broker
    with (
        audit.recorded(user, action, broker=broker, what=what or topology.name, details=details),
        alone_with(topology) as extend,
        Management(broker.address) as management,
    ):
        management.before_change = extend
        yield management
    topology.refresh_from_db()


def refuse_deleted(topology: Topology) -> None:
    if topology.state == State.DELETED:
        raise Refusal("This topology is deleted. Create a new topology.")


def refuse_unapplied(topology: Topology) -> None:
    if topology.state == State.DELETED:
        raise Refusal(f"“{topology.name}” is deleted. Choose another topology.")
    if topology.state != State.APPLIED:
        raise Refusal(f"“{topology.name}” is {topology.get_state_display()}. Apply it first.")


def refuse_replacing(topology: Topology) -> None:
    if row := QueueReplacement.open_of(topology).first():
        raise Refusal(
            f"The last change of this topology is in progress: {row}. Wait until it ends."
        )


def unconfirmed(topology: Topology, typed_name: str) -> str:
    """The sentence that a production broker needs the typed topology name; "" if it is given or not
    needed.
    """
    if topology.broker.is_production and typed_name != topology.name:
        return "This is a production broker. Type the topology name to confirm."
    return ""


def begin(topology: Topology, plan: Plan, tap_type: str) -> None:
    with _locked(topology) as row:
        refuse_deleted(row)
        row.own([change.object.identity for change in plan.select("create")])
        row.state = State.APPLYING
        row.tap_type = tap_type


def own_declared(
    topology: Topology, declares: Definitions, found: Definitions
) -> frozenset[Identity]:
    """Record which of a route's objects will be ours, before it declares them, and return them.

    Queues that a route created and that no longer exist are removed from the record; not those
    that were recorded after `topology` was read, because `found` may be older than they are.
    """
    there = {obj.identity for obj in found}
    recorded = topology.owned_identities
    fresh = frozenset(obj.identity for obj in declares if obj.identity not in there)
    with _locked(topology) as row:
        kept = {obj.identity for obj in row.definitions} | there | fresh
        removed = (row.owned_identities & recorded) - kept
        row.disown([identity for identity in removed if identity[0] == "queue"])
        row.own(fresh)
    return fresh


@contextmanager
def owning(
    topology: Topology, declares: Definitions, found: Definitions
) -> Iterator[Callable[[], None]]:
    """What of it is not `found` is ours from now on, and no longer when the broker refuses it.

    Hands out what to call once it is declared: what fails after that takes nothing back, and
    neither does OutcomeUnknown, after which it may be there.
    """
    fresh = own_declared(topology, declares, found)
    declared = Event()
    try:
        yield declared.set
    except OutcomeUnknown:
        raise
    except BrokerError:
        if not declared.is_set():
            disown(topology, fresh)
        raise


def own(topology: Topology, identities: list[Identity]) -> None:
    with _locked(topology) as row:
        row.own(identities)


def disown(topology: Topology, identities: Collection[Identity]) -> None:
    with _locked(topology) as row:
        row.disown(identities)


@contextmanager
def _locked(topology: Topology) -> Iterator[Topology]:
    """The topology's row, for a change of what it owns."""
    with transaction.atomic():
        row = Topology.objects.select_for_update().get(pk=topology.pk)
        before = (row.owned_identities, row.state, row.tap_type)
        yield row
        if before != (row.owned_identities, row.state, row.tap_type):
            row.save(update_fields=["owned", "state", "tap_type"])
