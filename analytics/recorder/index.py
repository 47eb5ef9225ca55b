"""The index: what the events of a tap change in the database."""

from __future__ import annotations

from collections.abc import Sequence

from analytics import minutes, scheduled
from analytics.events import MessageEvent
from topology.models import Topology


def index(topology: Topology, events: Sequence[MessageEvent]) -> None:
    """Bring the scheduled messages and the minutes up to these events.

    Within the caller's transaction.
    """
    fresh = scheduled.without_repeats(topology, events)
    closed = scheduled.project(topology, fresh)
    minutes.count(topology, fresh, closed)
