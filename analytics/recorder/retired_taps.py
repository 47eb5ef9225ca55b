"""Reads a tap that was replaced to its end, and deletes it.

Nothing enters that tap any more: the change unbound it. What passed while both taps were bound
is in both, so that the copies which wait in the new queue are marked as redelivered, like those
that come again after a crash, until none is left of them. So are all of a retired queue, which is
read later than the new one if its node is down.
"""

from __future__ import annotations

from datetime import UTC, datetime
from time import monotonic

from django.db import transaction

from analytics.models import Gap, Recording
from analytics.recorder import gaps
from analytics.recorder.batches import offset_of
from topology.broker.amqp.consumer import Consumer, Start
from topology.broker.management.client import PATIENCE_SECONDS, Management
from topology.models import Topology
from topology.operations import replace_tap

# Type of a tap that cannot be read at present, because its node is down.
DOWN = "down"
# Seconds without a copy after which a tap has none: it delivers those that it has at once.
SILENCE_SECONDS = 5.0
QUIET_SECONDS = 1.0
LAST_CHUNK = 500


def find_type(topology: Topology) -> str:
    """The queue type of the retired tap, DOWN, or "" when somebody deleted it; unbinds it.

    Raises BrokerError.

    RabbitMQ 4.3 takes a minute to refuse the consumer of one that is down. Before 4.0 its bindings
    come back with its node.
    """
    with Management(topology.broker.address) as management:
        # Asked for one that is down, 3.10 finds none and 4.3 says that it runs.
        listed = management.queues()
        found = next((one for one in listed if one.get("name") == topology.retired_tap), None)
        if found is None:
            return ""
        if found.get("state") == DOWN:
            return DOWN
        replace_tap.unbind_retired(topology, management)
    return str(found.get("type") or "classic")


def find_start(topology: Topology) -> Start:
    """Where to go on in a retired stream: behind its last recorded copy. Raises BrokerError.

    One that ends before that copy is not the stream that was read: a gap says so.
    """
    recording, _ = Recording.objects.get_or_create(
        topology=topology, defaults={"read_at": topology.applied_at or datetime.now(UTC)}
    )
    newest = _newest_offset(topology)
    if newest is not None and newest < recording.offset:
        why = (
            f"The tap “{topology.retired_tap}” was recreated or truncated after a broker crash. "
            "Its unread copies are lost."
        )
        gaps.write(topology, recording.read_at, gaps.Loss(why))
        recording.offset = -1
        recording.save(update_fields=["offset"])
    return recording.offset + 1 if recording.offset >= 0 else "first"


def _newest_offset(topology: Topology) -> int | None:
    """The last offset of the retired stream, None where no copy comes. Raises BrokerError.

    Reads its last chunk: the broker's count of messages is seconds old, and a consumer that waits
    for a future offset gets none of the copies before it.
    """
    newest = None
    with Consumer(
        topology.broker.address, topology.retired_tap, prefetch=LAST_CHUNK, start="last"
    ) as consumer:
        while come := consumer.batch(
            limit=LAST_CHUNK, limit_bytes=10**7, wait=QUIET_SECONDS, linger=0
        ):
            consumer.ack(through=come[-1].tag)
            newest = offset_of(come[-1])
    return newest


class End:
    """Notices that a tap which nothing enters was read to its end."""

    def __init__(self) -> None:
        self._silent_since = monotonic()

    def close(self, topology: Topology, has_copies: bool) -> bool:
        """Whether all copies are in the log; then the new tap is read instead.

        `has_copies`: some came just now, or could not be read. Raises BrokerError.
        """
        if has_copies:
            self._silent_since = monotonic()
        if monotonic() - self._silent_since < SILENCE_SECONDS:
            return False
        if not _is_read(topology):
            self._silent_since = monotonic()
            return False
        _close(topology)
        return True


def _is_read(topology: Topology) -> bool:
    """Whether a tap is empty, or the newest copy of a stream is the one that was read last.

    Silence alone is no proof: a stalled member of the stream sends nothing either. The count of
    an empty one is seconds old, but nothing has entered since the change.
    """
    with Management(topology.broker.address, seconds=PATIENCE_SECONDS) as management:
        found = management.queue(topology.retired_tap)
    if found.get("type") == "stream" and (newest := _newest_offset(topology)) is not None:
        return Recording.objects.filter(topology=topology, offset__gte=newest).exists()
    return bool(found.get("messages") == 0)


def _close(topology: Topology) -> None:
    with transaction.atomic():
        Recording.objects.filter(topology=topology).update(offset=-1)
        replace_tap.close_retired(topology)


def close_absent(topology: Topology) -> None:
    """Somebody deleted the tap before its last copy was read: write the gap down."""
    with transaction.atomic():
        read = Recording.objects.filter(topology=topology).first()
        now = datetime.now(UTC)
        Gap.objects.create(
            topology=topology,
            from_at=read.read_at if read else topology.applied_at or now,
            until_at=now,
            why=(
                f"The tap “{topology.retired_tap}” was deleted before the recorder read it "
                "completely."
            ),
        )
        _close(topology)


def delete_read(topology: Topology) -> None:
    """Delete the tap that was read to its end. Raises BrokerError."""
    with Management(topology.broker.address, seconds=PATIENCE_SECONDS) as management:
        replace_tap.delete_read_taps(topology, management)
