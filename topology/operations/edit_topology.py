"""Other parameters for a topology: checked, planned, then carried out by the worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from django.db import transaction
from django.utils import timezone

from topology import audit, snapshots
from topology.broker.management.client import Management
from topology.models import State, Topology
from topology.operations import provision, replace_queue
from topology.operations.ownership import (
    Refusal,
    alone_with,
    own,
    refuse_deleted,
    refuse_replacing,
    unconfirmed,
)
from topology.operations.topology_rows import User
from topology.provisioning.edit import Edit, plan_edit
from topology.provisioning.plan import Plan

NOTHING = Edit(Plan(()))


def preview_edit(topology: Topology, values: Mapping[str, str]) -> Edit:
    """What `edit` would do now. Raises ParamsError, Refusal, BrokerError."""
    edited = _copy_with(topology, values)
    if topology.state == State.PLANNED:
        return NOTHING
    with Management(topology.broker.address) as management:
        return _plan(topology, edited, management)


def edit(
    user: User, topology: Topology, values: Mapping[str, str], *, typed_name: str = ""
) -> Edit:
    """Create the new objects, store the parameters, and let the worker replace queues.

    Of a topology that is only planned nothing else changes. Raises ParamsError; Refusal, and then
    nothing changed; BrokerError, and then what was created is in `owned`, the old parameters
    stay, and this completes it.
    """
    stored = dict(_copy_with(topology, values).params)
    with (
        audit.recorded(
            user, "topology edited", broker=topology.broker, what=topology.name, details=stored
        ),
        alone_with(topology) as extend,
    ):
        edited = _copy_with(topology, values)
        if topology.state == State.PLANNED:
            Topology.objects.filter(pk=topology.pk).update(params=stored)
            found = NOTHING
        else:
            with Management(topology.broker.address) as management:
                management.before_change = extend
                found = _carry_out(user, topology, edited, typed_name, management)
    topology.refresh_from_db()
    return found


def _carry_out(
    user: User,
    topology: Topology,
    edited: Topology,
    typed_name: str,
    management: Management,
) -> Edit:
    found = _plan(topology, edited, management)
    if found.refusals:
        raise Refusal(f"{' '.join(found.refusals)} Delayboard changed nothing.")
    if problem := unconfirmed(topology, typed_name):
        raise Refusal(problem)
    created = [change.object for change in found.plan.select("create")]
    own(
        topology,
        [*(obj.identity for obj in created), *(one.binding.identity for one in found.reroutes)],
    )
    management.declare(created)
    with transaction.atomic():
        Topology.objects.filter(pk=topology.pk).update(
            params=edited.params, applied_at=timezone.now()
        )
        queues = [one.queue.name for one in found.queues]
        replace_queue.begin(user, topology, queues, found.reroutes)
    return found


def refuse_without_parameters(topology: Topology) -> None:
    """Raises Refusal for a chain of others, which is as its application declares it."""
    if not topology.pattern.FIELDS:
        raise Refusal(
            "This topology has no parameters, because it consists of objects that others declared. "
            "Change the objects in the broker or in the application that declares them."
        )


def _copy_with(topology: Topology, values: Mapping[str, str]) -> Topology:
    """A copy with these parameters. Raises ParamsError, Refusal."""
    refuse_deleted(topology)
    refuse_without_parameters(topology)
    refuse_replacing(topology)
    if topology.state == State.APPLYING:
        raise Refusal("The last apply did not finish. Apply the topology again first.")
    if topology.forwarders and topology.state == State.APPLIED:
        raise Refusal("A topology with a forwarder cannot be edited. Create a new topology.")
    pattern = topology.pattern
    params = pattern.parse(values)
    if pattern.store(params) == pattern.store(topology.parsed):
        raise Refusal("The parameters are the same as before.")
    if (name := pattern.title(params)) != topology.title:
        raise Refusal(
            f"The topology would be named “{name}”, and its objects with it. Create a new topology."
        )
    return topology.with_params(pattern.store(params))


def _plan(topology: Topology, edited: Topology, management: Management) -> Edit:
    wanted, old = edited.definitions, topology.definitions
    snapshot = snapshots.for_action(topology.broker, management, [*wanted, *old])
    found = plan_edit(
        old,
        provision.plan_for(edited, snapshot),
        replace_queue.find_replacements(edited, snapshot, management),
        topology.owned_identities,
        snapshot,
    )
    wrong = provision.obstacle_for(edited, snapshot)
    return replace(found, refusals=(wrong,)) if wrong else found
