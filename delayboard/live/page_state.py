"""The messages to a live page, computed from the state of brokers and the database."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict
from weakref import WeakValueDictionary

from django.template.defaultfilters import floatformat

from analytics.models import Run
from delayboard.dead_letters.replay.summary import make_page_version
from delayboard.models import PublishJob, ReplayBatch
from delayboard.publishing.publish_job import make_job_version
from delayboard.publishing.track import Track
from topology.content.text import count_text
from topology.delays import format_span
from topology.graph.live_values import (
    snapshot_cells,
    snapshot_marks,
    snapshot_version,
)
from topology.snapshots import Latest

# Of a page: the largest shows five hundred things, each with some values, by a name of 255 bytes.
MOST_KEYS = 6_000
LONGEST_KEY = 400
# Seconds: after a year the display shows that there is no end.
LONGEST_REMAINING = 31_536_000
# One object for all pages that show the same: to compare it takes no time.
_key_sets: WeakValueDictionary[frozenset[str], frozenset[str]] = WeakValueDictionary()


class State(TypedDict):
    """A subject's live values: all of them in the feed; to a page those that it does not have.

    `cells` are texts by key, `marks` states by key; `at` is the reference time of ages in ISO
    format, `error` a sentence while the numbers are old, `reading` one while the broker is read for
    the first time. A `version` other than the page's means that the page must be loaded again,
    because more than a text changed.
    """

    type: Literal["state"]
    seq: int
    at: str
    error: str
    reading: str
    cells: dict[str, str]
    marks: dict[str, str]
    version: str
    done: bool


@dataclass(frozen=True, eq=False)
class Newest:
    """A state, and the messages with which it was sent, by what their pages show and have."""

    state: State
    messages: dict[tuple[Any, ...], str] = field(default_factory=dict)


class Shown:
    """The values on one page, and the state that it has received: only changes are sent.

    A page sends the keys of its values first, and again when they change:
    {"type": "watch", "keys": […]}.
    """

    def __init__(self) -> None:
        self._keys: frozenset[str] = frozenset()
        # The keys of which it has the values of the state before.
        self._had: frozenset[str] = frozenset()
        self._before = state(at=None, cells={})

    def watch(self, request: object) -> bool:
        """Read the page's request; False when invalid. More than MOST_KEYS keys are cut."""
        if not isinstance(request, dict) or request.get("type") != "watch":
            return False
        keys = request.get("keys")
        if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
            return False
        shown = frozenset(key for key in keys[:MOST_KEYS] if len(key) <= LONGEST_KEY)
        self._keys = _key_sets.setdefault(shown, shown)
        self._had &= self._keys
        return True

    @property
    def keys(self) -> frozenset[str]:
        """What the page shows."""
        return self._keys

    def write_changes(self, newest: Newest) -> str:
        """The message to the page, written once for all pages that show and have the same."""
        place = (self._keys, self._had, self._before["seq"])
        if place in newest.messages:
            self._receive(newest.state)
        else:
            newest.messages[place] = json.dumps(self.select_changes(newest.state))
        return newest.messages[place]

    def select_changes(self, newest: State) -> State:
        """The state with those values alone that the page shows and has not; it has them now."""
        cells = self._find_changed(newest["cells"], self._before["cells"])
        marks = self._find_changed(newest["marks"], self._before["marks"])
        self._receive(newest)
        return {**newest, "cells": cells, "marks": marks}

    def _receive(self, newest: State) -> None:
        self._had, self._before = self._keys, newest

    def _find_changed(self, values: Mapping[str, str], before: Mapping[str, str]) -> dict[str, str]:
        found = ((key, values[key]) for key in self._keys if key in values)
        return {
            key: value for key, value in found if key not in self._had or before.get(key) != value
        }


def state(
    *,
    at: datetime | None,
    cells: Mapping[str, str],
    marks: Mapping[str, str] | None = None,
    error: str = "",
    reading: str = "",
    version: str = "",
    done: bool = False,
) -> State:
    return {
        "type": "state",
        "seq": 0,
        "at": at.isoformat() if at else "",
        "error": error,
        "reading": reading,
        "cells": dict(cells),
        "marks": dict(marks or {}),
        "version": version,
        "done": done,
    }


def broker_state(latest: Latest) -> State:
    """Depths and rates of every queue and exchange of a broker."""
    snapshot = latest.snapshot
    if snapshot is None:
        reading = latest.error if latest.reading_since else ""
        return state(at=None, cells={}, error=latest.trouble, reading=reading)
    messages = sum(numbers.messages or 0 for numbers in snapshot.numbers.values())
    cells = {
        "broker/version": snapshot.version,
        "broker/alarms": ", ".join(snapshot.alarms) or "none",
        "broker/messages": count_text(messages),
    }
    return state(
        at=snapshot.taken_at,
        cells=snapshot_cells(snapshot) | cells,
        marks=snapshot_marks(snapshot),
        error=latest.error,
        version=snapshot_version(snapshot),
    )


def track_state(track: Track, at: datetime) -> State:
    """How far a publication is."""
    cells = {"publication/status": track.sentence, "publication/lateness": track.lateness_text}
    return state(at=at, cells=cells, marks={"publication": track.mark}, done=track.is_settled)


def batch_state(batch: ReplayBatch, at: datetime, *, pace: float | None = None) -> State:
    """The counts of a replay; `pace` is how many a second are settled. Done when it has ended."""
    work = batch.work
    cells = {f"replay/{name}": count_text(count) for name, count in batch.counts().items()}
    cells |= {
        "replay/settled": count_text(batch.settled),
        "replay/prepared": count_text(work.done if work else 0),
        "replay/to-prepare": count_text(work.total if work else 0),
        "replay/doubled": count_text(batch.doubled),
        "replay/delivered": count_text(batch.delivered),
        "replay/died": count_text(batch.died),
        "replay/pace": "" if pace is None else f"{pace:.{0 if pace >= 10 else 1}f} per second",
        "replay/remaining": _describe_remaining(batch.pending, pace),
        "replay/state": batch.get_state_display(),
    }
    version = make_page_version(batch)
    return state(at=at, cells=cells, version=version, done=batch.is_ended)


def _describe_remaining(pending: int, pace: float | None) -> str:
    if not pace or not pending:
        return ""
    seconds = timedelta(seconds=math.ceil(min(pending / pace, LONGEST_REMAINING)))
    return f"about {format_span(seconds)} left"


def job_state(job: PublishJob, at: datetime) -> State:
    """How far a publish job is."""
    rate = job.measured_rate
    cells = {
        "job/published": count_text(job.published),
        "job/returned": count_text(job.returned),
        "job/unknown": count_text(job.unknown),
        "job/answered": count_text(job.answered),
        "job/repeated": count_text(job.repeated),
        "job/rate": "–" if rate is None else f"{floatformat(rate)} per second",
        "job/remaining": format_span(job.remaining),
    }
    return state(at=at, cells=cells, version=make_job_version(job), done=job.work.is_ended)


def run_state(run: Run | None, at: datetime) -> State:
    """How far a nightly run is; done when nobody is at it."""
    if run is None:
        return state(at=at, cells={}, done=True)
    cells = {"run/done": count_text(run.steps_done), "run/steps": count_text(run.steps)}
    return state(at=at, cells=cells, done=not run.is_at_work)
