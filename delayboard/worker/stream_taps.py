"""Recorders of stream taps that are behind."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from delayboard.models import BackgroundTask
from delayboard.models.background_task import task_key
from topology.delays import format_span
from topology.findings.rules.live import BEHIND
from topology.models import Broker, State, Topology
from topology.snapshot import Report

# So many seconds a recorder may read full batches.
LONG_BEHIND = 60


class StreamTaps:
    """Since when the recorder of each stream tap reads full batches, by the tap's name.

    RabbitMQ keeps what was read in a stream and does not report how far a reader is.
    """

    def __init__(self) -> None:
        self._since: dict[tuple[int, str], datetime] = {}

    def find_behind(self, broker: Broker, now: datetime) -> Iterator[Report]:
        rows = Topology.objects.filter(broker=broker, state=State.APPLIED, tap_type="stream")
        details = dict(BackgroundTask.objects.values_list("key", "details"))
        for topology in rows:
            place = (broker.pk, topology.tap_queue)
            if details.get(task_key("record", topology.slug), {}).get("caught_up") is not False:
                self._since.pop(place, None)
                continue
            seconds = (now - self._since.setdefault(place, now)) // timedelta(seconds=1)
            if seconds >= LONG_BEHIND:
                sentence = (
                    f"The recorder of the stream tap “{topology.tap_queue}” has been behind for "
                    f"{format_span(timedelta(seconds=seconds))}."
                )
                yield Report(BEHIND.id, topology.tap_queue, seconds, sentence)
