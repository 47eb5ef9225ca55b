"""Replaces queues whose arguments differ from the definition, in steps done by the worker.

The row names a step before the broker gets its request, and every step is idempotent: whoever
finds a step unfinished repeats it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from threading import Event

from django.db import transaction
from django.utils import timezone

from topology import snapshots, work
from topology.broker.amqp.depths import live_depths
from topology.broker.errors import Conflict, NotFound, Refused
from topology.broker.management.client import PATIENCE_SECONDS, Management
from topology.broker.management.observe import declared_queue
from topology.broker.management.policies import put_in_force
from topology.definitions import Definitions, Queue
from topology.models import QueueReplacement, ReplacementStep, State, Topology, Work
from topology.models.work import REPLACE_QUEUE
from topology.operations.ownership import (
    Refusal,
    changing,
    disown,
    refuse_replacing,
    refuse_unapplied,
    unconfirmed,
)
from topology.operations.provision import plan_for
from topology.operations.topology_rows import User
from topology.patterns.pattern import ParamsError
from topology.provisioning.edit import Reroute, carry_out
from topology.provisioning.plan import compare
from topology.provisioning.replacement import (
    Replacement,
    StandIn,
    is_switched,
    plan_replacements,
    switch_back,
    switch_to,
)
from topology.snapshot import Snapshot
from topology.transfer.interception import explain_open

KIND = REPLACE_QUEUE
# Time without a message after which a queue is empty: the broker reports every five seconds.
REPORTED = timedelta(seconds=6)
# The same for a quorum queue, which counts messages of at-least-once dead-lettering every five
# seconds besides.
REPORTED_BY_QUORUM = timedelta(seconds=12)
CHECK_AGAIN_AFTER = timedelta(seconds=1)


def replacements_for(topology: Topology, snapshot: Snapshot) -> tuple[Replacement, ...]:
    """One for each queue whose arguments differ, with the reason why it cannot be replaced."""
    if topology.state != State.APPLIED:
        return ()
    found = plan_replacements(plan_for(topology, snapshot), topology.owned_identities, snapshot)
    return tuple(
        replace(one, refusal=explain_open(one.queue.name))
        if not one.refusal and one.queue.name in snapshot.intercepted.values()
        else one
        for one in found
    )


def preview(topology: Topology) -> tuple[Replacement, ...]:
    """What `request` would begin now. Raises BrokerError."""
    with Management(topology.broker.address) as management:
        return find_replacements(
            topology,
            snapshots.for_action(topology.broker, management, topology.definitions),
            management,
        )


def request(user: User, topology: Topology, *, typed_name: str = "") -> Sequence[str]:
    """Let the worker replace every queue that can be replaced, and return their names.

    Raises Refusal when there is none, on a production broker unless its name was typed, or while
    some are being replaced; BrokerError when the broker fails. Changes nothing in the broker.
    """
    with changing(user, topology, "queues replaced") as management:
        refuse_replacing(topology)
        refuse_unapplied(topology)
        snapshot = snapshots.for_action(topology.broker, management, topology.definitions)
        found = find_replacements(topology, snapshot, management)
        queues = [one.queue.name for one in found if not one.refusal]
        if not queues:
            reasons = " ".join(one.refusal for one in found)
            raise Refusal(reasons or "No queue of this topology has other arguments.")
        if problem := unconfirmed(topology, typed_name):
            raise Refusal(problem)
        begin(user, topology, queues)
    return queues


def describe_request(queues: Iterable[str]) -> str:
    return f"Replacement requested for {', '.join(queues)}. The worker carries it out."


def begin(
    user: User, topology: Topology, queues: Iterable[str], reroutes: Iterable[Reroute] = ()
) -> None:
    """Let the worker replace these queues, and delete those that the definition has no more."""
    rows = [
        *(
            QueueReplacement(queue=one.old, step=ReplacementStep.REROUTING, reroute=one.stored)
            for one in reroutes
        ),
        *(QueueReplacement(queue=queue) for queue in queues),
    ]
    with transaction.atomic():
        for row in rows:
            row.topology = topology
            row.work = work.create(KIND, topology.pk, broker=topology.broker, user=user)
            row.save()


def find_replacements(
    topology: Topology, snapshot: Snapshot, management: Management
) -> tuple[Replacement, ...]:
    """`replacements_for` with what policies forbid. Raises BrokerError."""
    return tuple(
        one if one.refusal else replace(one, refusal=_policy_problem(one.queue, management))
        for one in replacements_for(topology, snapshot)
    )


def _policy_problem(queue: Queue, management: Management) -> str:
    """The sentence that policies give the temporary queue other arguments than the queue; "" if
    they do not.
    """
    temporary = StandIn(queue).name
    rows = [{"name": name, "type": queue.type} for name in (queue.name, temporary)]
    try:
        unread = put_in_force(rows, management.policies(), management.operator_policies())
    except Refused:
        own = management.queue(queue.name)
        unread = [str(own[key]) for key in ("policy", "operator_policy") if own.get(key)]
    if unread:
        return (
            f"Delayboard cannot compare what the policy “{unread[0]}” sets for “{queue.name}” and "
            f"for “{temporary}”. Use an account with the tag policymaker."
        )
    ours, theirs = (row["effective_policy_definition"] for row in rows)
    if ours == theirs:
        return ""
    return (
        f"Policies set other arguments for “{temporary}” than for “{queue.name}”. Let the pattern "
        "of the policy match both names."
    )


def attend(claimed: Work, *, stop: Event, alive: Callable[[], None]) -> None:
    """Do the next steps of a replacement. Raises as `work.attempt` expects: Later while it waits.

    A step that failed is repeated.
    """
    row = QueueReplacement.objects.select_related("topology__broker").get(work=claimed)
    lease = work.lease_of(claimed)

    def step() -> None:
        lease.pulse(0, 0)
        alive()

    try:
        with Management(row.topology.broker.address, seconds=PATIENCE_SECONDS) as management:
            management.before_change = step
            replacing = _begin(row, management, step)
            if not replacing.has_begun():
                work.refuse_beginning(claimed)
            while replacing.advance() and not stop.is_set():
                pass
    except (ParamsError, Refusal) as error:
        raise work.Later(str(error)) from error
    if not replacing.is_done:
        raise work.Later(replacing.obstacle, after=CHECK_AGAIN_AFTER)


def _begin(
    row: QueueReplacement, management: Management, step: Callable[[], None]
) -> _Rerouting | _Replacing | _Removing:
    if row.step == ReplacementStep.REROUTING:
        return _Rerouting(row, management)
    wanted = row.topology.definitions.queue(row.queue)
    if wanted:
        return _Replacing(row, management, step, wanted)
    return _Removing(row, management, step)


class _Rerouting:
    """Lets a key lead to another queue, in one go."""

    def __init__(self, row: QueueReplacement, management: Management) -> None:
        self._management = management
        self._reroute = Reroute.read(row.queue, row.reroute or ())
        self.is_done = False
        self.obstacle = ""

    def has_begun(self) -> bool:
        """Whether one that died within it left its detour."""
        with suppress(NotFound):
            return bool(self._management.exchange(self._reroute.detour.into))
        return False

    def advance(self) -> bool:
        """Do it; there is no next step. Raises BrokerError, Stopped."""
        carry_out(self._reroute, self._management)
        self.is_done = True
        return False


class _Emptying:
    """`obstacle` is what the work waits for beside time; "" when nothing."""

    def __init__(
        self, row: QueueReplacement, management: Management, step: Callable[[], None]
    ) -> None:
        self._row = row
        self._management = management
        self._step = step
        self.is_done = False
        self.obstacle = ""

    def has_begun(self) -> bool:
        """Whether something of the broker may have been changed for it."""
        return self._row.step != ReplacementStep.SWITCHING

    def _is_empty(self, queue: str) -> bool:
        """Whether the broker has reported it empty for long enough, or it no longer exists."""
        try:
            there = self._management.queue(queue)
        except NotFound:
            return True
        messages = there.get("messages")
        self._row.waiting = messages if isinstance(messages, int) else None
        since = self._row.empty_since_at or timezone.now()
        self._row.empty_since_at = since if self._row.waiting == 0 else None
        self._step()
        self._row.save(update_fields=["waiting", "empty_since_at"])
        if there.get("consumers"):
            self.obstacle = f"“{queue}” has consumers, and messages leave it early. Stop them."
            return False
        lag = REPORTED if there.get("type") == "classic" else REPORTED_BY_QUORUM
        return self._row.empty_since_at is not None and timezone.now() - since > lag

    def _remove(self, queue: Queue) -> bool:
        """Delete the queue if it is empty; returns whether it was.

        A classic queue is deleted with if-empty; quorum queues do not support it (540, 3.10.8 to
        4.3.5), so their messages are counted just before. No route leads there at that point.
        """
        if live_depths(self._row.topology.broker.address, [queue.name]).get(queue.name, 0):
            return False
        is_classic = queue.type == "classic"
        try:
            self._management.delete_queue(
                queue.name, only_if_empty=is_classic, only_if_unused=is_classic
            )
        except Conflict:
            return False
        return True

    def _set(self, step: ReplacementStep) -> bool:
        self._step()
        self._row.step, self._row.empty_since_at, self._row.waiting = step, None, None
        self._row.save(update_fields=["step", "empty_since_at", "waiting"])
        return True


class _Removing(_Emptying):
    """Deletes a queue that the definition has no more, once RabbitMQ has emptied it."""

    def advance(self) -> bool:
        """Do one step; whether the next one can be done at once. Raises BrokerError, Stopped."""
        name, topology = self._row.queue, self._row.topology
        identity = ("queue", name)
        if identity not in topology.owned_identities:
            self.is_done = True
        elif self._row.step == ReplacementStep.SWITCHING:
            return self._set(ReplacementStep.DRAINING)
        elif source := self._source(name):
            self.obstacle = f"“{name}” still receives messages from “{source}”."
        elif self._is_empty(name) and self._is_deleted(name):
            disown(topology, [identity])
            self.is_done = True
        return False

    def _source(self, name: str) -> str:
        """An exchange that is bound to it; "" for none."""
        with suppress(NotFound):
            found = (str(raw.get("source")) for raw in self._management.bindings_to_queue(name))
            return next(filter(None, found), "")
        return ""

    def _is_deleted(self, name: str) -> bool:
        try:
            return self._remove(declared_queue(self._management.queue(name)))
        except NotFound:
            return True


class _Replacing(_Emptying):
    """Replaces a queue by the wanted one."""

    def __init__(
        self,
        row: QueueReplacement,
        management: Management,
        step: Callable[[], None],
        wanted: Queue,
    ) -> None:
        super().__init__(row, management, step)
        self._wanted = wanted
        self._stand_in = StandIn(wanted)

    def has_begun(self) -> bool:
        """Whether the temporary queue exists: then the switch may be repeated."""
        with suppress(NotFound):
            return super().has_begun() or bool(self._management.queue(self._stand_in.name))
        return False

    def advance(self) -> bool:
        """Do one step; whether the next one can be done at once. Raises BrokerError, Stopped."""
        match self._row.step:
            case ReplacementStep.SWITCHING:
                switch_to(self._stand_in, self._management)
                return self._set(ReplacementStep.DRAINING)
            case ReplacementStep.DRAINING:
                if not is_switched(self._stand_in, self._management):
                    return self._set(ReplacementStep.SWITCHING)
                if not self._is_empty(self._row.queue):
                    return False
                return self._set(ReplacementStep.DELETING)
            case ReplacementStep.DELETING:
                return self._delete()
            case ReplacementStep.RETURNING:
                return self._return()
        temporary = replace(self._wanted, name=self._stand_in.name)
        self.is_done = self._is_empty(temporary.name) and self._remove(temporary)
        return False

    def _delete(self) -> bool:
        """Delete the old queue; not a new one, since the last worker may have died after its
        declaration.
        """
        try:
            there = declared_queue(self._management.queue(self._row.queue))
        except NotFound:
            return self._set(ReplacementStep.RETURNING)
        is_new = compare(Definitions.of([self._wanted]), Definitions.of([there])).is_empty
        if is_new or self._remove(there):
            return self._set(ReplacementStep.RETURNING)
        return self._set(ReplacementStep.DRAINING)

    def _return(self) -> bool:
        try:
            self._management.declare_queue(self._wanted)
        except Conflict:
            # Somebody declared it with other arguments meanwhile.
            return self._set(ReplacementStep.DRAINING)
        switch_back(self._stand_in, self._management)
        return self._set(ReplacementStep.SETTLING)
