"""Carry a plan out, one declaration after the other."""

from __future__ import annotations

from topology.broker.management.client import Management
from topology.broker.management.declare import declare
from topology.provisioning.plan import Plan


class PlanConflict(Exception):
    """The plan has conflicts: nothing was changed."""


def apply_plan(plan: Plan, management: Management) -> int:
    """Create what is missing and return how many were created.

    Raises PlanConflict before anything is changed, BrokerError when the broker fails in the
    middle: what was created then stays and is found present by the next plan.
    """
    if not plan.is_applicable:
        raise PlanConflict("The plan conflicts with existing objects. Delayboard changed nothing.")
    missing = plan.select("create")
    declare((change.object for change in missing), management)
    return len(missing)
