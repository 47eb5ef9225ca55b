"""What an operator does with a topology: plan, apply, verify, tear down; each one call.

`DriftCheck` writes which topologies differ from their definitions, from a broker's snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from time import monotonic, sleep

from django.utils import timezone

from topology import audit, snapshots, work
from topology.broker.amqp.depths import live_depths
from topology.broker.management.client import Management
from topology.broker.management.observe import newest_numbers, observe
from topology.definitions import Definitions, Identity, Queue, is_own_queue
from topology.models import Broker, Drift, Probing, State, Topology, Work
from topology.models.work import PROBES
from topology.operations.ownership import (
    Refusal,
    begin,
    changing,
    disown,
    own,
    refuse_deleted,
    refuse_replacing,
    unconfirmed,
)
from topology.operations.topology_rows import User
from topology.patterns.pattern import ParamsError
from topology.provisioning.destinations import count_stuck
from topology.provisioning.plan import Plan, conflict_sentences, make_plan
from topology.provisioning.teardown import Teardown, plan_teardown, tear_down, with_depths
from topology.provisioning.verify import Verification, verify
from topology.snapshot import Snapshot
from topology.structure.taps import DEFAULT_TAP, TapType, choose_tap

# Seconds for which stuck messages are counted again: the broker counts every five seconds, and what
# expires at one moment looks stuck in one count.
SETTLE_SECONDS = 7.0
CHECK_AGAIN_SECONDS = 0.5
# Topology, parameters, tap and probes of a stored comparison.
_Key = tuple[int, str, str, str, str]


@dataclass(frozen=True)
class Applied:
    """How many objects were created, and the plan that listed them."""

    created: int
    plan: Plan

    @property
    def sentence(self) -> str:
        done = f"{self.created} created" if self.created else "all objects exist"
        return f"Applied: {done}."


def plan_for(topology: Topology, snapshot: Snapshot) -> Plan:
    """The plan of a topology. Once applied, it has no queues that RabbitMQ deleted because nobody
    used them: their clients declare them again (Symfony Messenger, Laravel).
    """
    wanted = topology.definitions_with(tap_type_for(topology, snapshot))
    if topology.state == State.APPLIED:
        # The missing queues with `x-expires`, and the bindings to them.
        names = {
            queue.name
            for queue in wanted.queues
            if "x-expires" in queue.arguments
            and not is_own_queue(queue.name)
            and snapshot.declared.queue(queue.name) is None
        }
        bound = (one for one in wanted.bindings if one.destination_is_queue)
        lost = {one.identity for one in bound if one.destination in names}
        wanted = wanted.without(lost | {("queue", name) for name in names})
    return make_plan(wanted, snapshot)


def tap_type_for(topology: Topology, snapshot: Snapshot) -> str:
    """The type of the topology's tap; without a tap, the type that does no harm here.

    No stream of an earlier version is created again.
    """
    if topology.tap_type == "stream" and snapshot.declared.queue(topology.tap_queue) is None:
        return safest_tap(topology, snapshot)
    return topology.tap_type or safest_tap(topology, snapshot)


def safest_tap(topology: Topology, snapshot: Snapshot) -> TapType:
    """Raises ParamsError on a row that no longer reads."""
    return choose_tap(snapshot.nodes, topology.pattern.definitions(topology.parsed))


def obstacle_for(topology: Topology, snapshot: Snapshot) -> str:
    """Why this broker cannot hold it, whatever else is there; "" when it can."""
    return topology.pattern.obstacle(snapshot.version_tuple, topology.parsed)


def preview_plan(topology: Topology) -> tuple[Plan, str]:
    """The plan as of now, and why `apply` refuses it; "" when it does not. Raises BrokerError."""
    broker = topology.broker
    with Management(broker.address) as management:
        snapshot = snapshots.for_action(broker, management, topology.definitions)
    plan = plan_for(topology, snapshot)
    return plan, refusal_of_plan(topology, snapshot, plan)


def refusal_of_plan(topology: Topology, snapshot: Snapshot, plan: Plan) -> str:
    """Why `apply` refuses this plan; "" when it does not."""
    if wrong := obstacle_for(topology, snapshot):
        return wrong
    return "" if plan.is_applicable else "The plan conflicts with existing objects."


def apply(user: User, topology: Topology) -> Applied:
    """Compare, plan, record what will be ours, create what is missing.

    Raises Refusal on a conflict or after a teardown, BrokerError when the broker fails; objects
    created before the failure are in `owned`, and another apply completes the topology.
    """
    broker = topology.broker
    with changing(user, topology, "topology applied") as management:
        refuse_deleted(topology)
        refuse_replacing(topology)
        snapshot = snapshots.for_action(broker, management, topology.definitions)
        plan = plan_for(topology, snapshot)
        if wrong := refusal_of_plan(topology, snapshot, plan):
            raise Refusal(f"{wrong} Delayboard changed nothing.")
        begin(topology, plan, tap_type_for(topology, snapshot))
        created = plan.select("create")
        management.declare(change.object for change in created)
        Topology.objects.filter(pk=topology.pk).update(
            state=State.APPLIED, applied_at=timezone.now()
        )
        Drift.objects.filter(topology=topology).delete()
    return Applied(len(created), plan)


def start_recording(user: User, topology: Topology) -> Applied:
    """Tap one that was adopted; nothing else of it is made, should it be incomplete.

    Raises Refusal when it has a tap, can have none, is not applied, or lacks what the tap is
    bound to; BrokerError when the broker fails, and then it has no tap yet, what there is of one
    is in `owned`, and this completes it.
    """
    with changing(user, topology, "recording enabled") as management:
        if not topology.is_recordable or topology.state != State.APPLIED:
            raise Refusal("This topology has no more messages to record.")
        tapped = topology.tap_with(DEFAULT_TAP)
        snapshot = snapshots.for_action(topology.broker, management, tapped)
        chosen = safest_tap(topology, snapshot)
        applied = create_owned(topology, topology.tap_with(chosen), management, snapshot)
        Topology.objects.filter(pk=topology.pk).update(tap_type=chosen, applied_at=timezone.now())
    return applied


def create_owned(
    topology: Topology,
    objects: Definitions,
    management: Management,
    snapshot: Snapshot | None = None,
) -> Applied:
    """Create objects beside those of the pattern, such as a tap, and own them.

    Raises Refusal when they cannot be created, BrokerError when the broker fails.
    """
    snapshot = snapshot or snapshots.for_action(topology.broker, management, objects)
    plan = make_plan(objects, snapshot)
    if not plan.is_applicable:
        raise Refusal(f"{' '.join(conflict_sentences(plan))} Delayboard changed nothing.")
    created = [change.object for change in plan.select("create")]
    own(topology, [obj.identity for obj in created])
    management.declare(created)
    return Applied(len(created), plan)


def check(user: User, topology: Topology) -> Verification:
    """Verify against the current state of the broker. Raises BrokerError."""
    broker = topology.broker
    with (
        audit.recorded(user, "topology verified", broker=broker, what=topology.name),
        Management(broker.address) as management,
    ):
        snapshot = snapshots.for_action(broker, management, topology.definitions)
        snapshot = _await_routing(topology, management, snapshot)
        return verify(
            topology.pattern,
            topology.parsed,
            topology.definitions,
            snapshot,
            is_read_by_others=topology.is_read_by_others,
            problems={row.destination: row.sentence for row in topology.missing_bindings.all()},
        )


def _await_routing(topology: Topology, management: Management, snapshot: Snapshot) -> Snapshot:
    """Returns the snapshot with newer numbers of queues in which messages look stuck.

    Looks again until none is stuck, for SETTLE_SECONDS at most. Raises BrokerError.
    """
    queues = queues_of(topology, snapshot)
    until = monotonic() + SETTLE_SECONDS
    while (stuck := count_stuck(queues, snapshot)) and monotonic() < until:
        sleep(CHECK_AGAIN_SECONDS)
        numbers = {**snapshot.numbers, **newest_numbers(management, stuck)}
        snapshot = replace(snapshot, numbers=numbers)
    return snapshot


def teardown_for(topology: Topology, snapshot: Snapshot) -> Teardown:
    """What routes declared for it is ours too: bound destinations, hold queues."""
    wanted = topology.definitions
    beside = topology.owned_identities - {obj.identity for obj in wanted}
    declared = snapshot.declared.only(beside)
    return plan_teardown(
        wanted | declared,
        topology.owned_identities,
        snapshot,
        disposable=_own_taps(topology),
    )


def _own_taps(topology: Topology) -> set[str]:
    """The queues that Delayboard itself reads: the tap, others while one replaces another, and that
    of probes."""
    queues = (identity[1] for identity in topology.owned_identities if identity[0] == "queue")
    own = (name for name in queues if is_own_queue(name))
    return {topology.tap_queue, *own}


def remove(user: User, topology: Topology, *, typed_name: str = "") -> Teardown:
    """Delete what our plan created.

    Raises Refusal while others are bound to it or dead-letter into it, or while it contains
    messages, unless its name was typed; BrokerError when the broker fails: another teardown then
    deletes the rest.
    """
    forced = typed_name == topology.name
    details = {"even_with_messages": forced}
    with changing(user, topology, "topology deleted", details=details) as management:
        refuse_replacing(topology)
        teardown = _count_teardown(topology, management)
        if wrong := refusal_of_teardown(topology, teardown, typed_name):
            raise Refusal(wrong)
        _delete(topology, teardown, management, forced=forced)
        Topology.objects.filter(pk=topology.pk).update(state=State.DELETED, probing=Probing.OFF)
        for row in Work.objects.filter(kind=PROBES, subject=topology.pk):
            work.cancel(row)
    return teardown


def preview_removal(topology: Topology) -> Teardown:
    """What `remove` would delete now. Raises BrokerError."""
    with Management(topology.broker.address) as management:
        return _count_teardown(topology, management)


def _count_teardown(topology: Topology, management: Management) -> Teardown:
    snapshot = observe(management).without_interceptions()
    queues = [t.name for t in teardown_for(topology, snapshot).deletes if isinstance(t, Queue)]
    return teardown_for(topology, count_messages(topology, management, snapshot, queues))


def count_messages(
    topology: Topology, management: Management, snapshot: Snapshot, names: Sequence[str]
) -> Snapshot:
    """With the depths of this moment: those of a snapshot are seconds old, or not known yet.

    What a quorum queue keeps back for its next attempt (4.3 on), or holds for want of a route, is
    not ready: only the API counts it.
    """
    types = {queue.name: queue.type for queue in snapshot.definitions.queues}
    quorum = newest_numbers(management, (name for name in names if types.get(name) == "quorum"))
    newer = replace(snapshot, numbers={**snapshot.numbers, **quorum})
    return with_depths(newer, live_depths(topology.broker.address, names))


def queues_of(topology: Topology, snapshot: Snapshot) -> list[Queue]:
    """The queues of the topology, those that come and go with use included."""
    names = {queue.name for queue in topology.definitions.queues}
    passing = topology.pattern.members(topology.parsed, snapshot.definitions)
    names |= {queue.name for queue in passing}
    return [queue for queue in snapshot.definitions.queues if queue.name in names]


def describe_occupied(teardown: Teardown) -> str:
    """How many messages are in the way, where, and until when the last of them waits."""
    parts = []
    for occupied in teardown.occupied:
        last = occupied.latest_due_at
        until = f", the last leaves it at {last:%Y-%m-%d %H:%M:%S} UTC" if last else ""
        number = "an unknown number" if occupied.messages is None else occupied.messages
        parts.append(f"{number} in {occupied.queue}{until}")
    return (
        f"The topology holds {teardown.messages_text} ({'; '.join(parts)}). Drain or park "
        "them, or confirm with the name of the topology to delete them."
    )


def refusal_of_teardown(topology: Topology, teardown: Teardown, typed_name: str = "") -> str:
    """Why `remove` refuses to delete these; "" when it does not."""
    if teardown.obstacles:
        return " ".join(teardown.obstacles)
    if typed_name == topology.name:
        return ""
    if teardown.occupied:
        return describe_occupied(teardown)
    return unconfirmed(topology, typed_name)


def _delete(
    topology: Topology, teardown: Teardown, management: Management, *, forced: bool
) -> None:
    """What is deleted is no longer ours, also when the broker fails half-way."""
    deleted: list[Identity] = []
    try:
        tear_down(
            teardown,
            management,
            lambda done, total: deleted.append(teardown.deletes[done - 1].identity),
            disposable=_own_taps(topology),
            even_with_messages=forced,
        )
    finally:
        disown(topology, deleted)


class DriftCheck:
    """Compares a topology only when it or what its broker declares changed.

    Comparing 142 objects takes milliseconds.
    """

    def __init__(self) -> None:
        self._plans: dict[int, tuple[Definitions, dict[_Key, Plan]]] = {}

    def update_rows(self, broker: Broker, snapshot: Snapshot) -> int:
        """Update the rows of a broker's topologies; returns how many are not in sync.

        A row whose parameters are no longer valid is skipped.
        """
        applied = Topology.objects.filter(broker=broker, state=State.APPLIED)
        drifted = [
            _write(topology, plan, snapshot)
            for topology, plan in self._compare(broker, list(applied), snapshot)
            if not plan.is_empty
        ]
        Drift.objects.filter(topology__broker=broker).exclude(topology__in=drifted).delete()
        return len(drifted)

    def _compare(
        self, broker: Broker, topologies: list[Topology], snapshot: Snapshot
    ) -> list[tuple[Topology, Plan]]:
        declared, before = self._plans.get(broker.pk, (Definitions(), {}))
        if declared is not snapshot.declared and declared != snapshot.declared:
            before = {}
        now: dict[_Key, Plan] = {}
        found = []
        for topology in topologies:
            # The snapshot is older than what was applied since.
            if topology.applied_at is not None and topology.applied_at > snapshot.taken_at:
                continue
            tap = (topology.tap_type, topology.tap_name)
            key = (topology.pk, str(topology.params), *tap, topology.probing)
            with suppress(ParamsError):
                now[key] = before.get(key) or plan_for(topology, snapshot)
                found.append((topology, now[key]))
        self._plans[broker.pk] = (snapshot.declared, now)
        return found


def _write(topology: Topology, plan: Plan, snapshot: Snapshot) -> Topology:
    missing, changed = len(plan.select("create")), 0
    for change in plan.select("conflict"):
        # A binding between objects that nobody makes is in conflict, and it is missing.
        is_missing = snapshot.declared.get(change.object.identity) is None
        missing, changed = missing + is_missing, changed + (not is_missing)
    numbers = {"objects_count": len(plan.changes), "missing": missing, "changed": changed}
    if not Drift.objects.filter(topology=topology).update(**numbers):
        Drift.objects.create(topology=topology, since_at=snapshot.taken_at, **numbers)
    return topology
