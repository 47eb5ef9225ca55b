"""The free destinations of a topology: list, unbind, restore the missing binding of one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from django.utils import timezone

from topology import audit, snapshots
from topology.broker.management.client import Management
from topology.broker.management.observe import observe
from topology.definitions import Binding, Definitions
from topology.models import Broker, MissingBinding, Topology
from topology.operations.ownership import Refusal, changing, disown, refuse_unapplied
from topology.operations.provision import count_messages, create_owned
from topology.operations.topology_rows import User
from topology.patterns.pattern import ParamsError
from topology.provisioning.destinations import SHORTEST, has_free_destinations
from topology.snapshot import Snapshot
from topology.transfer.interception import explain_open


def destinations_of(topology: Topology, snapshot: Snapshot) -> list[Binding]:
    """The bindings of its free destinations, those that others made too."""
    return list(topology.pattern.destinations(topology.parsed, snapshot.definitions) or ())


def unbind(
    user: User, topology: Topology, routing_key: str, destination: str, *, typed_name: str = ""
) -> Binding:
    """Unbind one destination.

    Raises Refusal when there is none such, or, unless its name was typed, while messages wait in
    the delays, of which some may be for it; BrokerError when the broker fails.
    """
    broker = topology.broker
    with (
        audit.recorded(user, "destination unbound", broker=broker, what=destination),
        Management(broker.address) as management,
    ):
        snapshot = observe(management).without_interceptions()
        if destination in snapshot.intercepted.values():
            raise Refusal(explain_open(destination))
        wanted = (routing_key, destination)
        bound = destinations_of(topology, snapshot)
        found = [b for b in bound if (b.routing_key, b.destination) == wanted]
        if not found:
            raise Refusal(
                f"{destination} is not bound to this topology with the key {routing_key}."
            )
        if broker.is_production and typed_name != destination:
            raise Refusal(
                f"{broker.name} is a production broker. Type the destination name to confirm."
            )
        if (
            waiting := _count_waiting(topology, management, snapshot)
        ) and typed_name != destination:
            raise Refusal(
                f"{waiting} Delayboard cannot see their destinations, and messages without a "
                "binding get stuck or lost. Type the destination name to unbind anyway."
            )
        management.unbind(found[0])
        disown(topology, [found[0].identity])
    return found[0]


def _count_waiting(topology: Topology, management: Management, snapshot: Snapshot) -> str:
    """A sentence about what waits in its delay queues; "" when nothing does."""
    found = topology.pattern.delay_queues(topology.parsed, topology.definitions.queues)
    waits = [queue.name for queue in found]
    numbers = count_messages(topology, management, snapshot, waits).numbers
    total = sum(numbers[name].messages or 0 for name in waits if name in numbers)
    return f"{total} messages wait in the delay queues." if total else ""


@dataclass(frozen=True)
class Restored:
    """How many bindings were created, and whether their destination is a queue without consumers.

    RabbitMQ counts consumers every few seconds.
    """

    destination: str
    created: int
    has_no_consumer: bool

    @property
    def sentence(self) -> str:
        """What was done, and what becomes of the stuck messages."""
        state = "is restored" if self.created else "already existed"
        wait = f" They wait in “{self.destination}”, which has no consumer."
        return (
            f"The binding of {self.destination} {state}. RabbitMQ routes stuck messages to it at "
            f"its next retry, within three minutes.{wait if self.has_no_consumer else ''}"
        )


def restore_binding(user: User, topology: Topology, destination: str) -> Restored:
    """Bind a destination that exists to the topology.

    Raises Refusal when the topology is not applied, or when the destination or the exchange that
    it is bound to does not exist; BrokerError when the broker fails.
    """
    broker = topology.broker
    with changing(user, topology, "binding restored", what=destination) as management:
        refuse_unapplied(topology)
        wanted = _bindings(topology, destination)
        snapshot = snapshots.for_action(broker, management, wanted)
        bindings = _to_what_exists(wanted, broker, snapshot)
        created = create_owned(topology, bindings, management, snapshot).created
    rows = MissingBinding.objects.filter(topology=topology, destination=destination)
    rows.filter(restored_at=None).update(restored_at=timezone.now(), is_bound=True)
    numbers = snapshot.numbers.get(destination)
    is_queue = any(one.destination_is_queue for one in bindings.bindings)
    return Restored(destination, created, bool(is_queue and numbers and numbers.consumers == 0))


def obstacle_to(row: MissingBinding, snapshot: Snapshot) -> str:
    """Why its binding cannot be restored now, and the next step; "" when it can."""
    if not row.destination:
        return (
            "Compare the destinations that publishers use with those below. Bind the missing one. "
            "If none is missing, a full queue rejected the messages. RabbitMQ tries again within "
            "minutes."
        )
    if row.restored_at is not None:
        return "Wait for the next retry."
    if row.is_bound:
        return f"“{row.destination}” leads to no queue. Bind a queue to it."
    return _absence(row.topology.broker, row.destination, snapshot.definitions)


def _absence(broker: Broker, name: str, found: Definitions) -> str:
    """The sentence that there is neither a queue nor an exchange of this name; "" when there is
    one.
    """
    if found.queue(name) is not None or found.exchange(name) is not None:
        return ""
    return (
        f"{broker.name} has no queue and no exchange “{name}”. "
        "Declare it, then restore the binding."
    )


def _bindings(topology: Topology, destination: str) -> list[Binding]:
    """What a message for this destination declares. Raises Refusal where that is nothing."""
    params = topology.parsed
    try:
        if not destination or not has_free_destinations(topology.pattern, params):
            raise Refusal("The topology has no binding for this destination.")
        declares = topology.pattern.route(params, SHORTEST, destination).declares
    except ParamsError as error:
        raise Refusal(str(error)) from error
    return [obj for obj in declares if isinstance(obj, Binding)]


def _to_what_exists(wanted: list[Binding], broker: Broker, snapshot: Snapshot) -> Definitions:
    """The bindings, to the exchange of that name where there is no such queue, and vice versa."""
    found = snapshot.definitions
    bindings = []
    for binding in wanted:
        name = binding.destination
        if absence := _absence(broker, name, found):
            raise Refusal(absence)
        is_queue, is_exchange = found.queue(name) is not None, found.exchange(name) is not None
        leads_to_queue = is_queue if binding.destination_is_queue else not is_exchange
        bindings.append(replace(binding, destination_is_queue=leads_to_queue))
    return Definitions.of(bindings)
