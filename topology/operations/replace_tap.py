"""Replaces a tap that can harm what it records: for new messages at once, unread copies later.

A classic tap on a cluster has RabbitMQ refuse publishes when its node is down: a user replaces it.
A stream, which earlier versions made, breaks by a decimal header: the recorder replaces it. A queue
cannot change its type, so the new one has another name. It is bound before the old one is unbound,
so that no message passes unrecorded. The recorder reads the old one to its end and deletes it
(analytics/recorder/retired_taps.py).
"""

from __future__ import annotations

from topology import audit, snapshots
from topology.access import User
from topology.broker.errors import NotFound
from topology.broker.management.client import Management
from topology.definitions import TAP_PREFIX, is_tap
from topology.models import State, Topology
from topology.operations.ownership import Refusal, alone_with, disown, refuse_unapplied
from topology.operations.provision import create_owned, safest_tap
from topology.snapshot import Snapshot


def is_on_one_node(topology: Topology, snapshot: Snapshot) -> bool:
    """Whether its tap is on one node of a cluster, and would do no harm on several.

    Raises ParamsError on a row that no longer reads.
    """
    is_classic = topology.tap_type == "classic" and topology.state == State.APPLIED
    return is_classic and topology.has_tap and safest_tap(topology, snapshot) != "classic"


def replace_tap(user: User | None, topology: Topology) -> str:
    """Replace the tap from now on; returns a sentence on the new one.

    Raises Refusal when the tap does no harm here, the topology is not applied, or the tap is not
    ours; BrokerError when the broker fails: calling again completes it.
    """
    with (
        audit.recorded(user, "tap replaced", broker=topology.broker, what=topology.name),
        alone_with(topology),
    ):
        if not topology.has_tap:
            raise Refusal("This topology has no tap.")
        refuse_unapplied(topology)
        with Management(topology.broker.address) as management:
            _replace(topology, management)
    topology.refresh_from_db()
    return f"{topology.name} now records into a {topology.tap_type} queue."


def _replace(topology: Topology, management: Management) -> None:
    """The row changes last: until then the warning stays, and the same button completes it."""
    old = topology.tap_queue
    _refuse_foreign(topology, old, management)
    snapshot = snapshots.for_action(topology.broker, management, topology.tap)
    chosen = safest_tap(topology, snapshot)
    if topology.tap_type in (chosen, "quorum"):
        raise Refusal("This topology has a tap that does no harm on this broker.")
    if topology.retired_tap:
        raise Refusal(
            f"The worker still reads the tap “{topology.retired_tap}”, which was replaced before. "
            "Wait until it is deleted."
        )
    # No slug holds a dot, so that no other topology's tap has this name.
    name = f"{TAP_PREFIX}{topology.slug}.{chosen}"
    create_owned(topology, topology.with_tap(chosen, name).tap, management)
    for binding in topology.tap.bindings:
        management.unbind(binding)
    Topology.objects.filter(pk=topology.pk).update(tap_type=chosen, tap_name=name, retired_tap=old)


def _refuse_foreign(topology: Topology, tap: str, management: Management) -> None:
    if ("queue", tap) in topology.owned_identities:
        return
    try:
        management.queue(tap)
    except NotFound:
        return
    raise Refusal(
        f"Delayboard did not create the {topology.tap_type} tap “{tap}”, so it does not delete it. "
        "Delete the queue in the broker."
    )


def unbind_retired(topology: Topology, management: Management) -> None:
    """Unbind the retired tap once more: before 4.0 one that is down has bindings nobody sees."""
    for binding in topology.as_retired("classic").tap.bindings:
        management.unbind(binding)


def close_retired(topology: Topology) -> None:
    """The retired tap was read to its end; `delete_read_taps` then deletes it."""
    Topology.objects.filter(pk=topology.pk, retired_tap=topology.retired_tap).update(retired_tap="")


def read_taps(topology: Topology) -> list[str]:
    """The taps of ours that were replaced and read to their end, and not deleted yet."""
    known = {topology.tap_queue, topology.retired_tap}
    names = (identity[1] for identity in topology.owned_identities if identity[0] == "queue")
    return sorted(name for name in names if is_tap(name) and name not in known)


def delete_read_taps(topology: Topology, management: Management) -> None:
    """Raises BrokerError; another call continues."""
    for name in read_taps(topology):
        management.delete_queue(name, only_if_empty=False)
        disown(topology, [obj.identity for obj in topology.with_tap("classic", name).tap])
