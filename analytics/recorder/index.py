"""The index: what the events of the log change in the database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from django.db import connection

from analytics import facts, minutes, observation
from analytics.events import PROBE, MessageEvent
from analytics.models import Firehose
from analytics.scheduled.rows import projection
from topology.models import Topology


def index(topology: Topology, events: Sequence[MessageEvent]) -> None:
    """Bring the scheduled messages and the minutes up to these events.

    Within the caller's transaction.
    """
    if connection.features.has_select_for_update:
        # An entry and its exit may be in the logs of two hosts: neither may miss the other.
        list(Topology.objects.select_for_update(no_key=True).filter(pk=topology.pk).values("pk"))
    observed = [event for event in events if event.source not in (facts.SOURCE, PROBE)]
    stated = [event for event in events if event.source == facts.SOURCE]
    if stated and is_seen_by_nobody(topology):
        observed += [as_entry(event) for event in stated if is_delayed(event)]
    fresh = projection.without_repeats(topology, observed)
    closed = projection.project(topology, fresh)
    minutes.count(topology, fresh, closed)


def is_seen_by_nobody(topology: Topology) -> bool:
    """Whether what Delayboard publishes into its delays is all that is known of its entries."""
    is_untapped = "entry" in observation.untapped(topology)
    return is_untapped and not Firehose.objects.filter(broker_id=topology.broker_id).exists()


def is_delayed(event: MessageEvent) -> bool:
    return event.kind == "published" and event.requested_delay_ms > 0


def as_entry(event: MessageEvent) -> MessageEvent:
    """Delayboard's own publishing of a delayed message, as a tap would have seen it."""
    due_at = event.recorded_at + timedelta(milliseconds=event.requested_delay_ms)
    return replace(event, kind="scheduled", attempt=1, due_at=due_at)
