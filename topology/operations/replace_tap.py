"""Replaces a stream tap by a bounded classic queue: for new messages at once, unread copies later.

A queue cannot change its type, so the classic queue has another name. It is bound before the
stream is unbound, so that no message passes unrecorded. The recorder reads the stream to its end
and deletes it (analytics/recorder/retired_taps.py).
"""

from __future__ import annotations

from collections.abc import Iterable

from topology import access, audit
from topology.access import User
from topology.broker.errors import NotFound
from topology.broker.management.client import Management
from topology.definitions import TAP_PREFIX, is_tap
from topology.models import Broker, Role, State, Topology
from topology.operations.ownership import Refusal, alone_with, disown
from topology.operations.provision import create_owned
from topology.provisioning.taps import DEFAULT_TAP

# No slug holds a dot, so that no other topology's tap has this name.
SUFFIX = ".classic"


def list_stream_taps(user: User, brokers: Iterable[Broker]) -> list[tuple[Topology, bool]]:
    """The topologies on these brokers that a stream records, and whether the user may replace it.

    One that is only planned warns on its own page.
    """
    operated = set(access.visible_brokers(user, Role.OPERATOR).values_list("pk", flat=True))
    rows = Topology.objects.filter(broker__in=brokers, tap_type="stream")
    rows = rows.exclude(state=State.PLANNED).select_related("broker")
    return [(row, row.broker_id in operated) for row in rows if row.has_stream_tap]


def replace_tap(user: User | None, topology: Topology) -> None:
    """Replace stream tap from now on.

    Raises Refusal when it has no stream tap, is being applied, or the stream is not ours;
    BrokerError when the broker fails: calling again completes it.
    """
    with (
        audit.recorded(user, "stream tap replaced", broker=topology.broker, what=topology.name),
        alone_with(topology),
    ):
        if not topology.has_stream_tap:
            raise Refusal("This topology has no stream tap.")
        if topology.state == State.PLANNED:
            Topology.objects.filter(pk=topology.pk).update(tap_type=DEFAULT_TAP)
        elif topology.state == State.APPLIED:
            with Management(topology.broker.address) as management:
                _replace(topology, management)
        else:
            raise Refusal("The last apply did not finish. Apply the topology again first.")
    topology.refresh_from_db()


def _replace(topology: Topology, management: Management) -> None:
    """The row changes last: until then the warning stays, and the same button completes it."""
    stream = topology.tap_queue
    _refuse_foreign(topology, stream, management)
    name = TAP_PREFIX + topology.slug + SUFFIX
    create_owned(topology, topology.with_tap(DEFAULT_TAP, name).tap, management)
    for binding in topology.tap.bindings:
        management.unbind(binding)
    Topology.objects.filter(pk=topology.pk).update(
        tap_type=DEFAULT_TAP, tap_name=name, retired_tap=stream
    )


def _refuse_foreign(topology: Topology, stream: str, management: Management) -> None:
    if ("queue", stream) in topology.owned_identities:
        return
    try:
        management.queue(stream)
    except NotFound:
        return
    raise Refusal(
        f"Delayboard did not create the stream “{stream}”, so it does not delete it. Delete the "
        "stream in the broker, then change the tap."
    )


def close_retired(topology: Topology) -> None:
    """The retired stream was read to its end; `delete_read_streams` then deletes it."""
    Topology.objects.filter(pk=topology.pk, retired_tap=topology.retired_tap).update(retired_tap="")


def read_streams(topology: Topology) -> list[str]:
    """The streams of ours that were replaced and read to their end, and not deleted yet."""
    known = {topology.tap_queue, topology.retired_tap}
    names = (identity[1] for identity in topology.owned_identities if identity[0] == "queue")
    return sorted(name for name in names if is_tap(name) and name not in known)


def delete_read_streams(topology: Topology, management: Management) -> None:
    """Raises BrokerError; another call continues."""
    for name in read_streams(topology):
        management.delete_queue(name, only_if_empty=False)
        disown(topology, [obj.identity for obj in topology.with_tap("stream", name).tap])
