"""Apply the remedy of a finding: what is missing is created, then its policies are set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from topology import audit, snapshots
from topology.broker.management.client import Management
from topology.broker.management.policies import put_in_force
from topology.findings.hit import Policy
from topology.findings.remedy import Remedy, describe_policies
from topology.models import Broker, Topology
from topology.operations.ownership import (
    Refusal,
    changing,
    owning,
    refuse_deleted,
    refuse_replacing,
)
from topology.operations.topology_rows import User
from topology.provisioning.plan import Plan, conflict_sentences, make_plan


def apply_remedy(
    user: User, broker: Broker, title: str, remedy: Remedy, owner: Topology | None
) -> Plan:
    """The objects are those of `owner`, where the finding is about a topology of Delayboard.

    Raises Refusal on a conflict, BrokerError when the broker fails; what was created before stays,
    and another call creates the rest.
    """
    details = {"policies": list(describe_policies(remedy))}
    with _session(user, broker, title, owner, details) as management:
        snapshot = snapshots.for_action(broker, management, remedy.objects)
        plan = make_plan(remedy.objects, snapshot)
        if not plan.is_applicable:
            raise Refusal(f"{' '.join(conflict_sentences(plan))} Delayboard changed nothing.")
        _refuse_other_policies(management, remedy.policies)
        created = [change.object for change in plan.select("create")]
        details["created"] = [change.title for change in plan.select("create")]
        if owner is None:
            management.declare(created)
        else:
            with owning(owner, remedy.objects, snapshot.definitions) as declared:
                management.declare(created)
                declared()
        for policy in remedy.policies:
            management.set_policy(policy.name, policy.pattern, policy.definition)
    return plan


def _refuse_other_policies(management: Management, policies: Sequence[Policy]) -> None:
    """RabbitMQ applies one policy to a queue, so a queue that got one meanwhile keeps it."""
    found = management.policies() if policies else []
    named = {one.get("name"): one for one in found}
    for policy in policies:
        there = named.get(policy.name, {})
        given = (there.get("pattern"), there.get("definition"))
        # The details of a queue name a new policy some seconds later.
        queue = management.queue(policy.queue)
        put_in_force([queue], found, [])
        in_force = queue["policy"]
        if given != (policy.pattern, dict(policy.definition)) and (there or in_force):
            raise Refusal(
                f"The policy {in_force or policy.name} was set since the plan was made. "
                "Delayboard changed nothing. Open the finding again."
            )


@contextmanager
def _session(
    user: User, broker: Broker, title: str, owner: Topology | None, details: dict[str, list[str]]
) -> Iterator[Management]:
    action = "finding remedied"
    if owner is not None:
        with changing(user, owner, action, what=title, details=details) as management:
            refuse_deleted(owner)
            refuse_replacing(owner)
            yield management
        return
    with (
        audit.recorded(user, action, broker=broker, what=title, details=details),
        Management(broker.address) as management,
    ):
        yield management
