"""Apply the remedy of a finding: creates what is missing, sets policies, and declares again what
has other arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any

from topology import audit, snapshots
from topology.broker.address import Address
from topology.broker.amqp.depths import live_depths
from topology.broker.errors import BrokerError, NotFound
from topology.broker.management.client import Management
from topology.broker.management.observe import newest_numbers, read_binding
from topology.broker.management.policies import put_in_force
from topology.content.text import count_of
from topology.definitions import Definitions, Exchange, Queue
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
from topology.provisioning.plan import Change, Plan, compare, conflict_sentences, make_plan
from topology.snapshot import QueueNumbers, Snapshot
from topology.transfer.interception import explain_open


def apply_remedy(
    user: User, broker: Broker, title: str, remedy: Remedy, owner: Topology | None
) -> Plan:
    """The objects are those of `owner`, where the finding is about a topology of Delayboard.

    Raises Refusal on a conflict, and where a queue to be replaced holds messages or has consumers;
    BrokerError when the broker fails: what was created before stays, and another call creates the
    rest.
    """
    details: dict[str, Any] = {
        "policies": list(describe_policies(remedy)),
        "replaced": [" ".join(one.identity) for one in remedy.replaced],
    }
    with _session(user, broker, title, owner, details) as management:
        concerned = [*remedy.objects, *remedy.replaced]
        snapshot = snapshots.for_action(broker, management, concerned)
        plan = make_plan(remedy.objects, snapshot)
        if not plan.is_applicable:
            raise Refusal(f"{' '.join(conflict_sentences(plan))} Delayboard changed nothing.")
        policies = list(_complete(management, remedy.policies))
        queues = [one.name for one in remedy.replaced if isinstance(one, Queue)]
        depths = live_depths(broker.address, queues) if queues else {}
        if problems := explain_in_use(remedy, snapshot, depths):
            raise Refusal(f"{' '.join(problems)} Delayboard changed nothing.")
        created = [change.object for change in plan.select("create")]
        details["created"] = [change.title for change in plan.select("create")]
        if owner is None:
            management.declare(created)
        else:
            with owning(owner, remedy.objects, snapshot.definitions) as declared:
                management.declare(created)
                declared()
        for set_policy in policies:
            set_policy()
        for one in remedy.replaced:
            _replace(one, management, broker.address)
    return plan


def plan_replaced(remedy: Remedy, snapshot: Snapshot) -> tuple[Change, ...]:
    """What differs now in each object that is replaced."""
    return compare(Definitions.of(remedy.replaced), snapshot.declared).changes


def explain_in_use(
    remedy: Remedy, snapshot: Snapshot, depths: Mapping[str, int] = MappingProxyType({})
) -> list[str]:
    """Why what is replaced cannot be deleted now, a sentence for each.

    `depths` are what the queues themselves counted: the snapshot is some seconds old.
    """
    problems = []
    for name in (one.name for one in remedy.replaced if isinstance(one, Queue)):
        if name in snapshot.intercepted.values():
            problems.append(explain_open(name))
        numbers = snapshot.numbers.get(name, QueueNumbers())
        problems += _explain_use(name, numbers, depths.get(name, 0))
    return problems


def _explain_use(name: str, numbers: QueueNumbers, ready: int) -> Iterator[str]:
    """`ready` messages are counted by the queue, those that a consumer holds by the report."""
    if held := max(ready, numbers.messages or 0):
        yield f"“{name}” holds {count_of(held, 'message')}. Empty it first."
    elif numbers.messages is None:
        yield f"The number of messages of “{name}” is not known. Try again."
    if numbers.consumers is None:
        yield f"The number of consumers of “{name}” is not known. Try again."
    elif numbers.consumers:
        consumers = count_of(numbers.consumers, "consumer")
        yield f"“{name}” has {consumers}. Stop its consumers first."


def _replace(wanted: Exchange | Queue, management: Management, address: Address) -> None:
    """Delete it, and declare it as wanted with the bindings that it had.

    RabbitMQ refuses to delete a classic queue with messages or consumers. It deletes any other, so
    these are counted once more when no binding leads there. Raises Refusal; BrokerError, which says
    so where the object is gone and not declared again.
    """
    name = wanted.name
    try:
        if isinstance(wanted, Queue):
            raw, raws = management.queue(name), management.bindings_to_queue(name)
        else:
            raw, raws = management.exchange(name), management.bindings_from(name)
            raws += management.bindings_to_exchange(name)
    except NotFound as error:
        raise Refusal(f"“{name}” no longer exists. Open the finding again.") from error
    _refuse_nested(name, [raw, *raws])
    # A queue cannot be bound to the default exchange: RabbitMQ does that.
    bindings = [read_binding(one) for one in raws if one.get("source")]
    if isinstance(wanted, Exchange):
        management.delete_exchange(name)
    elif wanted.type == "classic":
        management.delete_queue(name, only_if_empty=True, only_if_unused=True)
    else:
        try:
            for one in bindings:
                management.unbind(one)
            ready = live_depths(address, [name]).get(name, 0)
            numbers = newest_numbers(management, [name]).get(name, QueueNumbers())
            if problems := list(_explain_use(name, numbers, ready)):
                raise Refusal(f"“{name}” was not replaced. {' '.join(problems)}")
            management.delete_queue(name, only_if_empty=False)
        except (Refusal, BrokerError):
            management.declare(bindings)
            raise
    try:
        management.declare([wanted, *bindings])
    except BrokerError as error:
        raise type(error)(
            f"“{name}” is deleted and not declared again, because the broker failed in between: "
            f"{error} Apply the remedy of the finding that reports it as missing."
        ) from error


def _refuse_nested(name: str, raws: Iterable[Mapping[str, Any]]) -> None:
    """Arguments with lists or tables, which `Arguments` has not. Raises Refusal."""
    if any(
        isinstance(value, list | dict)
        for raw in raws
        for value in dict(raw.get("arguments") or {}).values()
    ):
        raise Refusal(
            f"“{name}” was not replaced: an argument of it or of its bindings is a list or a "
            "table, which Delayboard cannot declare. Replace it by your own client."
        )


def _complete(management: Management, policies: Sequence[Policy]) -> Iterator[Callable[[], None]]:
    """What sets each policy, with the settings and above the priority of the one in its place.

    RabbitMQ applies one policy to a queue, so a queue that got another one meanwhile keeps it.
    Raises Refusal.
    """
    found = management.policies() if policies else []
    named = {str(one.get("name")): one for one in found}
    for policy in policies:
        there, over = named.get(policy.name, {}), named.get(policy.over, {})
        kept = {k: v for k, v in (over.get("definition") or {}).items() if k not in policy.removed}
        definition = {**kept, **policy.definition}
        # The details of a queue name a new policy some seconds later.
        queue = management.queue(policy.queue)
        put_in_force([queue], found, [])
        in_force = queue["policy"] or ""
        is_set = (there.get("pattern"), there.get("definition")) == (policy.pattern, definition)
        is_taken = bool(there) and policy.over != policy.name
        if not is_set and (is_taken or in_force != policy.over):
            raise Refusal(
                f"The policy {in_force or policy.name} was set since the plan was made. "
                "Delayboard changed nothing. Open the finding again."
            )
        priority = int(over.get("priority") or 0) + (policy.over not in ("", policy.name))
        yield partial(management.set_policy, policy.name, policy.pattern, definition, priority)


@contextmanager
def _session(
    user: User, broker: Broker, title: str, owner: Topology | None, details: dict[str, Any]
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
