"""Reads a stream tap that was replaced to its end, and deletes it.

Nothing enters that stream any more: the change unbound it. What passed while both taps were bound
is in both, so that the copies which wait in the new queue are marked as redelivered, like those
that come again after a crash, until none is left of them.
"""

from __future__ import annotations

from datetime import UTC, datetime
from time import monotonic

from django.db import transaction

from analytics.models import Gap, Recording
from analytics.recorder import streams
from analytics.recorder.batches import StreamRecorder
from topology.broker.management.client import PATIENCE_SECONDS, Management
from topology.models import Topology
from topology.operations import replace_tap


class End:
    """Notices that a stream which nothing enters was read to its end."""

    def __init__(self) -> None:
        self._silent_since = monotonic()

    def close(self, topology: Topology, recorder: StreamRecorder, has_copies: bool) -> bool:
        """Whether all copies are in the log; then the classic queue is read instead.

        `has_copies`: some came just now, or could not be read. Raises BrokerError.
        """
        if has_copies or not recorder.is_sure:
            self._silent_since = monotonic()
        if monotonic() - self._silent_since < streams.SILENCE_SECONDS:
            return False
        if not _is_read(topology, recorder.position.offset):
            self._silent_since = monotonic()
            return False
        _close(topology)
        return True


def _is_read(topology: Topology, offset: int) -> bool:
    """Whether the newest copy of the stream is the one that was read last.

    Silence alone is no proof: a stalled member of the stream sends nothing either. The count of
    an empty one is seconds old, but nothing has entered since the change.
    """
    newest = streams.newest_offset(topology.as_retired())
    if newest is not None:
        return newest == offset
    with Management(topology.broker.address, seconds=PATIENCE_SECONDS) as management:
        messages = management.queue(topology.retired_tap).get("messages")
    return bool(messages == 0)


def _close(topology: Topology) -> None:
    with transaction.atomic():
        streams.forget(topology)
        replace_tap.close_retired(topology)


def close_absent(topology: Topology) -> None:
    """Somebody deleted the stream before its last copy was read: write the gap down."""
    with transaction.atomic():
        read = Recording.objects.filter(topology=topology).first()
        now = datetime.now(UTC)
        Gap.objects.create(
            topology=topology,
            from_at=read.read_at if read else topology.applied_at or now,
            until_at=now,
            why=(
                f"The stream “{topology.retired_tap}” was deleted before the recorder read it "
                "completely."
            ),
        )
        _close(topology)


def delete_read(topology: Topology) -> None:
    """Delete the stream that was read to its end. Raises BrokerError."""
    with Management(topology.broker.address, seconds=PATIENCE_SECONDS) as management:
        replace_tap.delete_read_streams(topology, management)
