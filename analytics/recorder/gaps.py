"""When copies may have been lost: what is written down, so that no count is silently short."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from analytics.models import Gap, Recording
from topology.broker.errors import BrokerError, NotFound
from topology.broker.management import PATIENCE_SECONDS, Management
from topology.models import Topology

AWAY = timedelta(seconds=10)
FULL_SHARE = 0.9


def before_reading(topology: Topology) -> str:
    """Why copies may have been lost since the tap was last read; "" when none can be.

    A classic tap keeps its copies while nobody reads, up to its bound. To be asked before
    the tap is read, which empties it. A stream says by its offsets what it dropped.
    """
    recording = Recording.objects.filter(topology=topology).first()
    if recording is None:
        return ""
    if why := absence(topology):
        return why
    if datetime.now(UTC) - recording.read_at < AWAY:
        return ""
    return _while_away(topology)


def absence(topology: Topology) -> str:
    """The reason of a gap when the tap was found absent and not read since; else ""."""
    absent = Recording.objects.filter(topology=topology, lost_since__isnull=False)
    return f"The tap queue “{topology.tap_queue}” did not exist." if absent.exists() else ""


def note(topology: Topology, why: str) -> None:
    """The tap is being read from now on; write the gap before it down, if there was one."""
    now = datetime.now(UTC)
    recording = Recording.objects.filter(topology=topology).first()
    if recording is not None and why:
        Gap.objects.create(topology=topology, from_at=recording.read_at, until_at=now, why=why)
    Recording.objects.update_or_create(
        topology=topology, defaults={"read_at": now, "lost_since": None}
    )


def was_read(topology: Topology) -> None:
    Recording.objects.filter(topology=topology).update(read_at=datetime.now(UTC))


def tap_is_absent(topology: Topology) -> None:
    now = datetime.now(UTC)
    Recording.objects.get_or_create(topology=topology, defaults={"read_at": now})
    Recording.objects.filter(topology=topology, lost_since=None).update(lost_since=now)


def _while_away(topology: Topology) -> str:
    try:
        with Management(topology.broker.address, seconds=PATIENCE_SECONDS) as management:
            queue = management.queue(topology.tap_queue)
    except NotFound:
        return f"The tap queue “{topology.tap_queue}” did not exist."
    except BrokerError as error:
        return f"Nobody read the tap, and whether it was full cannot be told: {error}"
    bound = queue.get("arguments", {}).get("x-max-length-bytes")
    held = queue.get("message_bytes")
    if not isinstance(bound, int):
        return ""
    if not isinstance(held, int):
        return "Nobody read the tap, and the broker does not say how full it was."
    if held < bound * FULL_SHARE:
        return ""
    return f"Nobody read the tap until it was full ({held} of {bound} bytes) and dropped copies."
