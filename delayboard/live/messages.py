"""What a live page is sent, and how it is worked out from what the lower floors know."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Literal, TypedDict

from analytics.models import Run
from delayboard.flows import FlowLine
from delayboard.models import ItemState, ReplayBatch
from delayboard.now import Waits
from delayboard.publishing.track import Track
from topology.graph.cells import count_text, snapshot_cells, snapshot_marks
from topology.latest import Latest
from topology.snapshot import Snapshot


class State(TypedDict):
    """The whole of a page's live values; the newest one replaces all before it.

    `cells` are texts by key, `marks` states by key; `at` is the age's
    zero point in ISO format, `error` a sentence while the numbers are old.
    """

    type: Literal["state"]
    seq: int
    at: str
    error: str
    cells: dict[str, str]
    marks: dict[str, str]
    done: bool


def state(
    *,
    at: datetime | None,
    cells: Mapping[str, str],
    marks: Mapping[str, str] | None = None,
    error: str = "",
    done: bool = False,
) -> State:
    return {
        "type": "state",
        "seq": 0,
        "at": at.isoformat() if at else "",
        "error": error,
        "cells": dict(cells),
        "marks": dict(marks or {}),
        "done": done,
    }


def broker_state(latest: Latest) -> State:
    """Depths and rates of every queue and exchange of a broker."""
    snapshot = latest.snapshot
    if snapshot is None:
        return state(at=None, cells={}, error=latest.error)
    return state(
        at=snapshot.taken_at,
        cells=snapshot_cells(snapshot) | _broker_cells(snapshot),
        marks=snapshot_marks(snapshot),
        error=latest.error,
    )


def _broker_cells(snapshot: Snapshot) -> dict[str, str]:
    return {
        "broker/version": snapshot.version,
        "broker/alarms": ", ".join(snapshot.alarms) or "none",
        "broker/messages": count_text(sum(n.messages or 0 for n in snapshot.numbers.values())),
    }


def track_state(track: Track, at: datetime) -> State:
    """How far a publication is."""
    cells = {"publication/status": track.sentence, "publication/lateness": track.lateness_text}
    return state(at=at, cells=cells, marks={"publication": track.mark}, done=track.is_settled)


def batch_state(batch: ReplayBatch, at: datetime) -> State:
    """The counts of a replay by state, and the state of each of its items."""
    work = batch.work
    cells = {f"replay/{name}": count_text(count) for name, count in batch.counts().items()}
    cells["replay/state"] = work.get_state_display() if work else "draft"
    cells["replay/error"] = work.error if work else ""
    marks = {}
    for position, value in batch.items.values_list("position", "state"):
        cells[f"replay/item/{position}"] = ItemState(value).label
        marks[f"replay/item/{position}"] = value
    return state(at=at, cells=cells, marks=marks, done=batch.is_ended)


def run_state(run: Run | None, at: datetime) -> State:
    """How far a nightly run is; done when nobody is at it."""
    if run is None:
        return state(at=at, cells={}, done=True)
    cells = {"run/done": count_text(run.steps_done), "run/steps": count_text(run.steps)}
    return state(at=at, cells=cells, done=not run.is_at_work)


def now_state(waits: Waits, lines: Iterable[FlowLine], at: datetime) -> State:
    """What waits, and what passed each topology in the last minutes."""
    cells = {
        "now/waiting": count_text(waits.waiting),
        "now/overdue": count_text(waits.overdue),
    }
    marks = {}
    for line in lines:
        cells |= line.cells
        marks[line.key] = line.mark
    return state(at=at, cells=cells, marks=marks)
