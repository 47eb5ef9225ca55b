"""What an operator does with a topology: plan, apply, verify, tear down; each one call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.db import transaction
from django.utils import timezone

from topology import audit
from topology.broker.management import Management
from topology.broker.observe import observe
from topology.definitions import Identity
from topology.models import Broker, State, Topology
from topology.patterns import PATTERNS
from topology.provisioning.apply import apply_plan
from topology.provisioning.plan import Plan, make_plan
from topology.provisioning.teardown import Teardown, plan_teardown, tear_down
from topology.provisioning.verify import Verdict, verify
from topology.slugs import new_slug
from topology.snapshot import Snapshot

User = AbstractBaseUser | AnonymousUser | None


class Refusal(Exception):
    """It was not done, nothing was changed, and the sentence says why."""


@dataclass(frozen=True)
class Applied:
    """How many things were created, and the plan that said so."""

    created: int
    plan: Plan


def create_topology(user: User, broker: Broker, kind: str, params: Any) -> Topology:
    """Write the row; nothing is asked of the broker. Raises Refusal when there is one already."""
    pattern = PATTERNS[kind]
    stored = pattern.store(params)
    name = stored.get("name") or pattern.EXPLANATION.title
    same = Topology.objects.filter(broker=broker, kind=kind, name=name)
    taken = Topology.objects.filter
    with transaction.atomic():
        # Two at once wait for each other here, so that the second one sees the first.
        Broker.objects.select_for_update().get(pk=broker.pk)
        if same.exclude(state=State.TORN_DOWN).exists():
            raise Refusal(f"There is a topology “{name}” of this kind on {broker.name} already.")
        slug = new_slug(name, lambda slug: taken(slug=slug).exists(), longest=80)
        row = Topology.objects.create(broker=broker, slug=slug, kind=kind, name=name, params=stored)
        audit.record(user, "topology created", broker=broker, what=name, details=stored)
    return row


def plan_for(topology: Topology, snapshot: Snapshot) -> Plan:
    return make_plan(topology.definitions, snapshot)


def apply(user: User, topology: Topology) -> Applied:
    """Look, plan, write down what will be ours, create what is missing.

    Raises Refusal on a conflict or when it was torn down, BrokerError when the broker fails;
    what was created by then is in `owned`, and applying again completes it.
    """
    broker = topology.broker
    with (
        audit.recorded(user, "topology applied", broker=broker, what=topology.name),
        Management(broker.address) as management,
    ):
        if topology.state == State.TORN_DOWN:
            raise Refusal("It was torn down: make a new one.")
        plan = plan_for(topology, observe(management))
        if not plan.is_applicable:
            raise Refusal("The plan is in conflict with what exists; nothing was changed.")
        _own(topology, [change.thing.identity for change in plan.signed("create")])
        created = apply_plan(plan, management, lambda done, total: None)
        Topology.objects.filter(pk=topology.pk).update(
            state=State.APPLIED, applied_at=timezone.now()
        )
    topology.refresh_from_db()
    return Applied(created, plan)


def check(user: User, topology: Topology) -> Verdict:
    """Verify against the broker as it stands now. Raises BrokerError."""
    broker = topology.broker
    with (
        audit.recorded(user, "topology verified", broker=broker, what=topology.name),
        Management(broker.address) as management,
    ):
        snapshot = observe(management)
        return verify(topology.pattern, topology.parsed, topology.definitions, snapshot)


def teardown_for(topology: Topology, snapshot: Snapshot) -> Teardown:
    return plan_teardown(
        topology.definitions,
        topology.owned_identities,
        snapshot,
        disposable=[topology.tap_queue],
    )


def remove(user: User, topology: Topology, *, typed_name: str = "") -> Teardown:
    """Delete what our plan created.

    Raises Refusal while others are bound to it, or while messages are in it unless its name was
    typed; BrokerError when the broker fails, and then what is left can be torn down again.
    """
    broker = topology.broker
    forced = typed_name == topology.name
    with (
        audit.recorded(
            user,
            "topology torn down",
            broker=broker,
            what=topology.name,
            details={"even_with_messages": forced},
        ),
        Management(broker.address) as management,
    ):
        teardown = teardown_for(topology, observe(management))
        _refuse(teardown, forced=forced, is_production=broker.is_production)
        _delete(topology, teardown, management, forced=forced)
        Topology.objects.filter(pk=topology.pk).update(state=State.TORN_DOWN)
    topology.refresh_from_db()
    return teardown


def occupied_sentence(teardown: Teardown) -> str:
    """How many messages are in the way, where, and until when the last of them waits."""
    parts = []
    for held in teardown.occupied:
        until = f", the last due by {held.latest_due_at:%H:%M:%S} UTC" if held.latest_due_at else ""
        parts.append(f"{held.messages} in {held.queue}{until}")
    return (
        f"{teardown.messages} messages are still in it ({'; '.join(parts)}). Drain or park them "
        "first, or type the topology's name to delete them with it."
    )


def _refuse(teardown: Teardown, *, forced: bool, is_production: bool) -> None:
    if teardown.foreign:
        raise Refusal(f"Others are bound to it: {'; '.join(teardown.foreign_sentences)}.")
    if teardown.occupied and not forced:
        raise Refusal(occupied_sentence(teardown))
    if is_production and not forced:
        raise Refusal("This broker is a production one: type the topology's name.")


def _delete(
    topology: Topology, teardown: Teardown, management: Management, *, forced: bool
) -> None:
    """What is deleted is no longer ours, also when the broker fails half-way."""
    gone: list[Identity] = []
    try:
        tear_down(
            teardown,
            management,
            lambda done, total: gone.append(teardown.deletes[done - 1].identity),
            disposable=[topology.tap_queue],
            even_with_messages=forced,
        )
    finally:
        _disown(topology, gone)


def _own(topology: Topology, identities: list[Identity]) -> None:
    with transaction.atomic():
        row = Topology.objects.select_for_update().get(pk=topology.pk)
        row.own(identities)
        row.state = State.APPLYING
        row.save(update_fields=["owned", "state"])


def _disown(topology: Topology, identities: list[Identity]) -> None:
    with transaction.atomic():
        row = Topology.objects.select_for_update().get(pk=topology.pk)
        row.disown(identities)
        row.save(update_fields=["owned"])
