"""The one table of what the worker runs, filled from rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from threading import Event

from django.conf import settings

from analytics import nightly
from analytics.models import Firehose
from analytics.recorder.drain import drain
from analytics.recorder.firehose import record_firehose
from analytics.recorder.follow import follow
from analytics.recorder.record import record
from delayboard.dead_letters import discard
from delayboard.dead_letters.growth import keep_sampling
from delayboard.dead_letters.parking import once
from delayboard.dead_letters.parking.keep import Room
from delayboard.dead_letters.parking.watch import watch
from delayboard.dead_letters.replay import batch, outcome, prepare, send
from delayboard.dead_letters.search.texts import keep_indexed
from delayboard.models import DeadLetterQueue
from delayboard.models.duty import (
    CLEANING,
    INDEX,
    LETTERS,
    PARKING,
    REPLAYS,
    firehose_key,
    parker_key,
    recorder_key,
    waiter_key,
)
from delayboard.worker.cleaning import keep_clean
from delayboard.worker.schedule import keep_schedule
from delayboard.worker.watch_bindings import keep_watching_bindings
from topology import work
from topology.models import State, Topology
from topology.transfer.waiter import Passing, wait

Beat = Callable[[Mapping[str, object]], None]
IDLE_SECONDS = 0.5
# So many replays go at the same time.
REPLAYERS = 3


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
        watched = DeadLetterQueue.objects.filter(is_confirmed=True, is_watched=True)
        tasks += [parker_of(row) for row in watched]
        tasks += [replayer(owner, number) for number in range(1, REPLAYERS + 1)]
        tasks.append(
            Task(
                "replay-prepare",
                "Prepares replays",
                None,
                partial(_work_off, batch.KIND_PREPARE, owner, prepare.run),
            )
        )
        tasks.append(Task("replay-outcomes", "Follows what was replayed", None, _follow_replays))
        tasks.append(
            Task(
                PARKING,
                "Parks what was asked for",
                None,
                partial(_work_off, once.KIND, owner, once.park),
            )
        )
        tasks.append(
            Task(
                LETTERS,
                "Discards and restores",
                None,
                partial(_work_off, discard.KIND, owner, discard.run),
            )
        )
        tasks.append(Task("letter-index", "Index of parked letters", None, keep_indexed))
        tasks.append(Task(CLEANING, "Deletes what is past its keeping", None, keep_clean))
        tasks.append(Task("bindings", "Binding check", None, keep_watching_bindings))
        tasks.append(Task("depths", "Samples dead-letter queues", None, keep_sampling))
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


def parker_of(row: DeadLetterQueue) -> Task:
    """The duty that parks what comes into a queue; several may share one queue's."""
    return Task(
        parker_key(row.pk),
        f"Parker of {row.queue}"[:200],
        row.broker_id,
        partial(_watch, row.pk, Room()),
    )


def _watch(queue_id: int, room: Room, stop: Event, beat: Beat) -> None:
    watch(queue_id, stop=stop, beat=beat, room=room)


def _wait(topology_id: int, passing: Passing, stop: Event, beat: Beat) -> None:
    topology = Topology.objects.select_related("broker").get(pk=topology_id)
    (waiter,) = topology.waiters
    window = settings.MESSAGES_IN_FLIGHT
    wait(topology.broker.address, waiter, stop=stop, beat=beat, passing=passing, window=window)


def _record(topology_id: int, stop: Event, beat: Beat) -> None:
    record(topology_id, stop=stop, beat=beat)


def _record_firehose(broker_id: int, stop: Event, beat: Beat) -> None:
    record_firehose(broker_id, stop=stop, beat=beat)


def _follow(stop: Event, beat: Beat) -> None:
    follow(stop=stop, beat=beat)


def _drain(stop: Event, beat: Beat) -> None:
    drain(stop=stop, beat=beat)


def replayer(owner: str, number: int) -> Task:
    """One of several, so that a slow replay keeps no other one waiting."""
    key, name = (
        (REPLAYS, "Replays") if number == 1 else (f"{REPLAYS}-{number}", f"Replays, {number}")
    )
    return Task(key, name, None, partial(_work_off, batch.KIND, owner, send.replay))


def _follow_replays(stop: Event, beat: Beat) -> None:
    outcome.follow(stop=stop, beat=beat)


def _work_off(kind: str, owner: str, do: Callable[..., None], stop: Event, beat: Beat) -> None:
    def alive() -> None:
        beat({})

    while not stop.is_set():
        claimed = work.claim((kind,), owner)
        if claimed is not None:
            do(claimed, stop=stop, alive=alive)
            continue
        alive()
        stop.wait(IDLE_SECONDS)


def _run_nightly(stop: Event, beat: Beat) -> None:
    def alive() -> None:
        beat({})

    while not stop.is_set():
        nightly.run_wanted(stop, alive=alive)
        alive()
        stop.wait(IDLE_SECONDS)
