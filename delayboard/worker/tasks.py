"""The one table of what the worker runs, filled from rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from threading import Event, Lock
from time import monotonic

from django.conf import settings
from django.db.models import QuerySet, TextField
from django.db.models.functions import Cast

from analytics import nightly
from analytics.facts import write_facts
from analytics.importing import requested
from analytics.models import Firehose
from analytics.probes.keep_probing import keep_probing
from analytics.recorder.follow import follow
from analytics.recorder.record import record
from analytics.recorder.record_firehose import record_firehose
from analytics.results.nightly_report import store_due
from delayboard.alerts.task import keep_alerting
from delayboard.changes import intercept, read_queue
from delayboard.changes.request import READ
from delayboard.changes.take import ChangedMessages
from delayboard.dead_letters import discard
from delayboard.dead_letters.parked import park_queue
from delayboard.dead_letters.parked.park_queue import park_automatically
from delayboard.dead_letters.parked.store_batch import SpaceCheck
from delayboard.dead_letters.queues.failures import note_failures
from delayboard.dead_letters.replay import batch_state, make_draft, outcome, send_batch
from delayboard.dead_letters.search.index import keep_indexed
from delayboard.delay_migration import migrate
from delayboard.delay_migration.migrate import KIND as MIGRATE
from delayboard.models import DeadLetterQueue, Interception, InterceptionState
from delayboard.models.background_task import (
    CHANGES,
    CLEANING,
    INDEX,
    MIGRATIONS,
    PARKED_MESSAGES,
    PARKING,
    PUBLISH_JOBS,
    REPLAYS,
    SENDING,
    Beat,
    task_key,
)
from delayboard.publishing import publish_job
from delayboard.worker import check_brokers
from delayboard.worker.check_brokers import (
    CHECK_SECONDS,
    EVERY_SECONDS,
    BindingWatch,
    BrokerCheck,
    Sampling,
)
from delayboard.worker.cleaning import keep_clean
from delayboard.worker.keep_sending import keep_sending
from delayboard.worker.schedule import request_due_runs
from topology import work
from topology.models import State, Topology, Work
from topology.models.read_only import finishing
from topology.models.work import ALERTS
from topology.operations import replace_queue
from topology.operations.answers import NackCheck
from topology.operations.probes import open_work
from topology.transfer.forwarder import ForwarderCounts, wait

# Function of a task, called with `stop` and `beat` by these names.
Run = Callable[..., None]
IDLE_SECONDS = 0.5
# Replays that are sent at the same time.
REPLAYERS = 3
# Publish jobs that are sent at the same time.
PUBLISHERS = 2

BEAT_SECONDS = 2.0


@dataclass(frozen=True)
class Task:
    """A task to be run in a thread of its own until `stop` is set.

    `key` is the same as long as the task is; `run` may raise, and is called again after a
    pause; it calls `beat` at least every few seconds. One process of all hosts does what
    `is_exclusive`; each host has its own of what `is_local`.
    """

    key: str
    name: str
    run: Run
    broker_id: int | None = None
    is_exclusive: bool = False
    is_local: bool = False


def read_rows() -> tuple[object, ...]:
    """What the tasks are made of: while it is the same, the tasks are. Cheaper than the tasks."""
    topologies = Topology.objects.filter(state=State.APPLIED).order_by("pk")
    names = ("pk", "slug", "name", "kind", "tap_type", "tap_name", "probing")
    return (
        list(topologies.values_list(*names, Cast("params", TextField()))),
        list(Firehose.objects.order_by("pk").values_list("pk", "broker__slug", "broker__name")),
        list(_parked_automatically().order_by("pk").values_list("pk", "queue")),
        list(_open_interceptions().order_by("pk").values_list("pk", "queue", "work")),
    )


def _parked_automatically() -> QuerySet[DeadLetterQueue]:
    return DeadLetterQueue.objects.filter(is_confirmed=True, parks_automatically=True)


def _open_interceptions() -> QuerySet[Interception]:
    return Interception.objects.exclude(state=InterceptionState.CLOSED)


def list_tasks(owner: str, *, only: str = "") -> dict[str, Task]:
    """The tasks that should run now, by key. `only` "recorder" leaves the rest to others."""
    applied = list(Topology.objects.filter(state=State.APPLIED))
    tasks = [recorder_of(row) for row in applied if row.has_tap]
    tasks += [firehose_of(row) for row in Firehose.objects.select_related("broker")]
    tasks.append(Task(INDEX, "Index of waiting messages", follow, is_local=True))
    tasks.append(Task("facts", "Event log writer", write_facts, is_exclusive=True))
    if settings.SHARED_LOG_URL:
        tasks.append(Task(SENDING, "Transfer to LOG_URL", keep_sending, is_local=True))
    if not only:
        tasks += [probes_of(row, owner) for row in applied if row.probing]
        tasks += [forwarder_of(row) for row in applied if row.forwarders]
        tasks += [parker_of(row) for row in _parked_automatically()]
        kept = _open_interceptions().select_related("work")
        tasks += [interception_of(row, owner) for row in kept]
        tasks += [replayer(owner, number) for number in range(1, REPLAYERS + 1)]
        tasks += [_publisher(owner, number) for number in range(1, PUBLISHERS + 1)]
        tasks += [Task(key, name, run) for key, name, run in _always(owner)]
        tasks += [Task(key, name, run, is_exclusive=True) for key, name, run in _once()]
        tasks.append(Task(CLEANING, "Data retention", keep_clean, is_local=True))
    return {task.key: task for task in tasks}


def _always(owner: str) -> Iterable[tuple[str, str, Run]]:
    prepared = partial(_work_off, batch_state.KIND_PREPARE, owner, make_draft.prepare_draft)
    parked = partial(_work_off, park_queue.KIND, owner, park_queue.park)
    changed = partial(_work_off, discard.KIND, owner, discard.run)
    read = partial(_work_off, READ, owner, read_queue.attend)
    migrated = partial(_work_off, MIGRATE, owner, migrate.attend)
    imported = partial(
        _work_off, requested.KIND, owner, requested.attend, claim=requested.claim_own
    )
    replaced = partial(_work_off, replace_queue.KIND, owner, replace_queue.attend)
    watched = partial(repeat, check_brokers.watch_addresses, check_brokers.ADDRESSES_EVERY_SECONDS)
    return (
        ("replay-prepare", "Replay preparation", prepared),
        (PARKING, "Parking", parked),
        (PARKED_MESSAGES, "Discard and restore", changed),
        (MIGRATIONS, "Migrations", migrated),
        (CHANGES, "Changes of messages in delay queues", read),
        ("replacements", "Replacement of queues", replaced),
        # In each process: connections to a node that lost its cluster are cut by what it finds.
        ("addresses", "Check of cluster addresses", watched),
        ("imports", "Imports of logs", imported),
        ("nightly", "Nightly runs", partial(repeat, nightly.run_requested, BEAT_SECONDS)),
        (ALERTS, "Alerts", partial(keep_alerting, owner)),
    )


def _once() -> Iterable[tuple[str, str, Run]]:
    """What would only be done again by a second process."""
    return (
        ("replay-outcomes", "Replay outcomes", outcome.follow_batches),
        ("parked-message-index", "Index of parked messages", keep_indexed),
        ("bindings", "Binding check", partial(_check_often, BindingWatch)),
        ("findings", "Check of findings and drift", partial(_check_often, BrokerCheck)),
        ("samples", "Queue depths and counters", _sample),
        ("schedule", "Nightly scheduler", partial(repeat, request_due_runs, CHECK_SECONDS)),
        ("nightly-reports", "Nightly reports", partial(repeat, store_due, CHECK_SECONDS)),
    )


def _sample(*, stop: Event, beat: Beat) -> None:
    repeat(Sampling().sample, EVERY_SECONDS, stop=stop, beat=beat)


def recorder_of(row: Topology) -> Task:
    """The task that records what a topology's tap copies."""
    run = partial(record, row.pk)
    name = f"Recorder of {row.name}"
    return Task(task_key("record", row.slug), name, run, row.broker_id, is_exclusive=True)


def firehose_of(row: Firehose) -> Task:
    """The task that records the firehose of a vhost."""
    run = partial(record_firehose, row.broker_id, note_failures)
    key, name = task_key("firehose", row.broker.slug), f"Firehose of {row.broker.name}"
    return Task(key, name, run, row.broker_id, is_exclusive=True)


def probes_of(row: Topology, owner: str) -> Task:
    """The task of a topology's probes; whoever holds the lease of its work does it."""
    run = partial(_probe, row.pk, owner)
    return Task(task_key("probe", row.slug), f"Probes of {row.name}", run, row.broker_id)


def forwarder_of(row: Topology) -> Task:
    """The task that passes on what is due; several may share one topology's."""
    run = partial(_wait, row.pk, ForwarderCounts())
    return Task(task_key("wait", row.slug), f"Forwarder of {row.name}", run, row.broker_id)


def parker_of(row: DeadLetterQueue) -> Task:
    """The task that parks what comes into a queue; several may share one queue's."""
    run = partial(park_automatically, row.pk, space=SpaceCheck())
    return Task(task_key("park", row.pk), f"Parker of {row.queue}"[:200], run, row.broker_id)


def interception_of(row: Interception, owner: str) -> Task:
    """The task that changes messages for a queue; whoever holds the lease of its work does it."""
    run = partial(_work_off, "", owner, intercept.attend, claim=partial(_claim_own, row.work))
    return Task(
        task_key("intercept", row.pk),
        f"Changes of messages for {row.queue}"[:200],
        run,
        row.broker_id,
    )


def replayer(owner: str, number: int) -> Task:
    run = partial(_work_off, batch_state.KIND, owner, send_batch.replay)
    return _one_of_several(REPLAYS, "Replayer", number, run)


def _publisher(owner: str, number: int) -> Task:
    run = partial(_work_off, publish_job.KIND, owner, publish_job.attend)
    return _one_of_several(PUBLISH_JOBS, "Publisher", number, run)


def _one_of_several(key: str, name: str, number: int, run: Run) -> Task:
    """Slow work of one keeps no other waiting."""
    return Task(key if number == 1 else f"{key}-{number}", f"{name} {number}", run)


def _wait(topology_id: int, passing: ForwarderCounts, *, stop: Event, beat: Beat) -> None:
    topology = Topology.objects.select_related("broker").get(pk=topology_id)
    (forwarder,) = topology.forwarders
    changed = ChangedMessages(topology)

    def beat_and_check(counters: Mapping[str, object]) -> None:
        changed.reload()
        beat(counters)

    # Its messages are on their way to their receivers.
    with finishing():
        wait(
            topology.broker.address,
            forwarder,
            stop=stop,
            beat=beat_and_check,
            passing=passing,
            window=settings.MESSAGES_IN_FLIGHT,
            alter=changed.alter,
            explain_nack=NackCheck(topology.broker).settle,
        )


def _check_often(make: type[BindingWatch | BrokerCheck], *, stop: Event, beat: Beat) -> None:
    """With what it remembers from one check to the next; nothing after a failure."""
    repeat(make().check, CHECK_SECONDS, stop=stop, beat=beat)


def _claim_own(own: Work, owner: str) -> Work | None:
    own.refresh_from_db()
    return work.claim_this(own, owner)


def _probe(topology_id: int, owner: str, *, stop: Event, beat: Beat) -> None:
    def probe(*, stop: Event, alive: Callable[[], None]) -> None:
        topology = Topology.objects.select_related("broker").get(pk=topology_id)
        own = open_work(topology) if topology.probing else None
        if claimed := work.claim_this(own, owner) if own else None:
            do = partial(keep_probing, topology=topology)
            work.attempt(do, claimed, stop=stop, alive=alive)

    repeat(probe, IDLE_SECONDS, stop=stop, beat=beat)


def _work_off(
    kind: str,
    owner: str,
    do: Callable[..., None],
    *,
    stop: Event,
    beat: Beat,
    claim: Callable[[str], Work | None] | None = None,
) -> None:
    """Do work of a kind as it comes; `claim` takes it, if not by its kind alone."""
    alive = partial(beat, {})
    claim = claim or partial(work.claim, (kind,))
    while not stop.is_set():
        if not kind or _free.has(kind):
            claimed = claim(owner)
            if claimed is not None:
                work.attempt(do, claimed, stop=stop, alive=alive)
                continue
        alive()
        stop.wait(IDLE_SECONDS)


class _FreeKinds:
    """The kinds of work that can be claimed, read once for all tasks that wait for some."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._kinds: set[str] = set()
        self._read_at = -IDLE_SECONDS

    def has(self, kind: str) -> bool:
        with self._lock:
            if monotonic() - self._read_at >= IDLE_SECONDS:
                self._kinds, self._read_at = work.free_kinds(), monotonic()
            return kind in self._kinds


_free = _FreeKinds()


def repeat(do: Callable[..., object], seconds: float, *, stop: Event, beat: Beat) -> None:
    """Call `do`, and again after so many seconds, until `stop` is set.

    It gets `stop`, and `alive` to call at least every few seconds. `beat` gets the details that it
    returned last, if any.
    """
    details: Mapping[str, object] = {}
    while not stop.is_set():
        found = do(stop=stop, alive=partial(beat, details))
        details = found if isinstance(found, Mapping) else {}
        due_at = monotonic() + seconds
        is_due = False
        while not is_due:
            beat(details)
            stop.wait(min(BEAT_SECONDS, max(0.0, due_at - monotonic())))
            is_due = stop.is_set() or monotonic() >= due_at
