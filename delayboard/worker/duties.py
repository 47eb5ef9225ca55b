"""The one table of what the worker runs, filled from rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from threading import Event

from analytics import nightly
from analytics.models import Firehose
from analytics.recorder.drain import drain
from analytics.recorder.firehose import record_firehose
from analytics.recorder.follow import follow
from analytics.recorder.record import record
from delayboard.dead_letters.replay import batch, send
from delayboard.models.duty import CLEANING, INDEX, firehose_key, recorder_key, waiter_key
from delayboard.worker.cleaning import keep_clean
from delayboard.worker.schedule import keep_schedule
from topology import work
from topology.models import State, Topology
from topology.transfer.waiter import Passing, wait

Beat = Callable[[Mapping[str, object]], None]
IDLE_SECONDS = 0.5


@dataclass(frozen=True)
class Task:
    """A duty to be run in a thread of its own until `stop` is set.

    `key` is the same as long as the duty is; `run` may raise, and is called again after a
    pause; it calls `beat` at least every few seconds.
    """

    key: str
    name: str
    broker_id: int | None
    run: Callable[[Event, Beat], None]


def wanted(owner: str, *, only: str = "") -> dict[str, Task]:
    """The duties that should run now, by key. `only` "recorder" leaves the rest to others."""
    applied = list(Topology.objects.filter(state=State.APPLIED))
    tasks = [
        Task(
            recorder_key(topology.slug),
            f"Recorder of {topology.name}",
            topology.broker_id,
            partial(_record, topology.pk),
        )
        for topology in applied
        if topology.has_tap
    ]
    tasks += [
        Task(
            firehose_key(row.broker.slug),
            f"Firehose of {row.broker.name}",
            row.broker_id,
            partial(_record_firehose, row.broker_id),
        )
        for row in Firehose.objects.select_related("broker")
    ]
    tasks.append(Task(INDEX, "Index of what waits", None, _follow))
    tasks.append(Task("facts", "Writes Delayboard's own facts into the log", None, _drain))
    if not only:
        tasks += [waiter_of(row) for row in applied if row.waiters]
        tasks.append(Task("replay", "Replays", None, partial(_replay, owner)))
        tasks.append(Task(CLEANING, "Deletes what is past its keeping", None, keep_clean))
        tasks.append(Task("schedule", "Wants a nightly run every day", None, keep_schedule))
        tasks.append(Task("nightly", "Nightly runs", None, _run_nightly))
    return {task.key: task for task in tasks}


def waiter_of(topology: Topology) -> Task:
    """The duty that passes on what is due; several may share one topology's."""
    return Task(
        waiter_key(topology.slug),
        f"Waiter of {topology.name}",
        topology.broker_id,
        partial(_wait, topology.pk, Passing()),
    )


def _wait(topology_id: int, passing: Passing, stop: Event, beat: Beat) -> None:
    topology = Topology.objects.select_related("broker").get(pk=topology_id)
    (waiter,) = topology.waiters
    wait(topology.broker.address, waiter, stop=stop, beat=beat, passing=passing)


def _record(topology_id: int, stop: Event, beat: Beat) -> None:
    record(topology_id, stop=stop, beat=beat)


def _record_firehose(broker_id: int, stop: Event, beat: Beat) -> None:
    record_firehose(broker_id, stop=stop, beat=beat)


def _follow(stop: Event, beat: Beat) -> None:
    follow(stop=stop, beat=beat)


def _drain(stop: Event, beat: Beat) -> None:
    drain(stop=stop, beat=beat)


def _replay(owner: str, stop: Event, beat: Beat) -> None:
    done = 0
    while not stop.is_set():
        claimed = work.claim((batch.KIND,), owner)
        if claimed is None:
            beat({"replays": done})
            stop.wait(IDLE_SECONDS)
            continue
        send.replay(claimed, alive=lambda: beat({}))
        done += 1


def _run_nightly(stop: Event, beat: Beat) -> None:
    def alive() -> None:
        beat({})

    while not stop.is_set():
        nightly.run_wanted(stop, alive=alive)
        alive()
        stop.wait(IDLE_SECONDS)
