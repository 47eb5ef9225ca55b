"""The supervisor and its threads: real threads, real rows, events instead of sleeping."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext
from pytest_django import DjangoAssertNumQueries, Settings

from analytics.log import LogError
from delayboard.models import BackgroundTask
from delayboard.models.background_task import Beat
from delayboard.worker import supervise
from delayboard.worker.heartbeats import Heartbeats, keep_heartbeats
from delayboard.worker.supervise import Supervisor, keep_one_running, keep_running
from delayboard.worker.tasks import Task
from tests.builders import eventually
from topology import work
from topology.broker.errors import Unreachable
from topology.models.work import TASK, Work
from topology.work import Leases

SOON = 10.0


class Tasks:
    """What a test wants to run, in place of the table."""

    def __init__(self) -> None:
        self.tasks: dict[str, Task] = {}

    def add(self, key: str, run: Callable[[threading.Event, Beat], None]) -> None:
        self.tasks[key] = Task(key, f"BackgroundTask {key}", run)

    def add_exclusive(self, key: str, run: Callable[[threading.Event, Beat], None]) -> None:
        self.tasks[key] = Task(key, f"BackgroundTask {key}", run, is_exclusive=True)

    def list_tasks(self, owner: str, *, only: str = "") -> dict[str, Task]:
        return dict(self.tasks)


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Tasks:
    kept = Tasks()
    monkeypatch.setattr(supervise, "list_tasks", kept.list_tasks)
    monkeypatch.setattr(supervise, "read_rows", lambda: (object(),))
    monkeypatch.setattr(supervise, "pause", lambda failures: 0.01)
    return kept


@pytest.fixture
def supervisor(transactional_db: None, table: Tasks) -> Iterator[Supervisor]:
    found = Supervisor()
    yield found
    assert found.end()


class Patient:
    """A task that beats, says that it has begun and waits for its end."""

    def __init__(self) -> None:
        self.began = threading.Semaphore(0)
        self.ended = threading.Event()

    def __call__(self, stop: threading.Event, beat: Beat) -> None:
        beat({"n": 1})
        self.began.release()
        stop.wait(SOON)
        self.ended.set()


def test_what_is_wanted_is_started_once_and_seen(supervisor: Supervisor, table: Tasks) -> None:
    background_task = Patient()
    table.add("a", background_task)
    supervisor.check()
    assert background_task.began.acquire(timeout=SOON)
    supervisor.check()
    supervisor.heartbeats.write()
    row = BackgroundTask.objects.get()
    assert (row.key, row.name, row.details, row.is_late) == (
        "a",
        "BackgroundTask a",
        {"n": 1},
        False,
    )
    assert row.started_at is not None
    assert [t.name for t in threading.enumerate()].count("a") == 1


def test_a_worker_whose_database_hangs_is_alive(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, settings: Settings, tmp_path: Path
) -> None:
    settings.VAR = tmp_path
    file, stop, answers = tmp_path / "worker.heartbeat", threading.Event(), threading.Event()
    monkeypatch.setattr(supervise, "CHECK_SECONDS", 0.01)
    monkeypatch.setattr(supervisor, "check", lambda: answers.wait(SOON))
    worker = threading.Thread(target=supervisor.run, args=(stop,))
    worker.start()
    eventually(file.exists, "the file is made")
    before = file.stat().st_mtime_ns
    eventually(lambda: file.stat().st_mtime_ns > before, "the file is touched")
    stop.set()
    answers.set()
    worker.join()


def test_a_background_task_that_is_no_longer_wanted_ends_and_is_forgotten(
    supervisor: Supervisor, table: Tasks
) -> None:
    background_task, other = Patient(), Patient()
    table.add("a", background_task)
    table.add("b", other)
    supervisor.check()
    assert background_task.began.acquire(timeout=SOON)
    assert other.began.acquire(timeout=SOON)
    del table.tasks["a"]
    supervisor.check()
    assert background_task.ended.wait(SOON)
    assert not other.ended.is_set()
    assert list(BackgroundTask.objects.values_list("key", flat=True)) == ["b"]


@pytest.mark.usefixtures("table")
def test_a_row_that_a_dead_worker_left_is_forgotten_unless_others_may_keep_it(
    supervisor: Supervisor,
) -> None:
    BackgroundTask.objects.create(key="record:gone", name="Recorder of what is torn down")
    Supervisor(only="recorder").check()
    assert BackgroundTask.objects.exists()
    supervisor.check()
    assert not BackgroundTask.objects.exists()


class Failing:
    """Fails with each error in turn, then works."""

    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)
        self.recovered = threading.Event()

    def __call__(self, stop: threading.Event, beat: Beat) -> None:
        if self._errors:
            raise self._errors.pop(0)
        beat({})
        self.recovered.set()
        stop.wait(SOON)


def failed_row(supervisor: Supervisor) -> BackgroundTask | None:
    supervisor.heartbeats.write()
    return BackgroundTask.objects.filter(key="a").exclude(last_error="").first()


@pytest.mark.parametrize(
    ("error", "reported", "has_traceback"),
    [
        (Unreachable("Nothing listens."), "Nothing listens.", False),
        (KeyError("odd"), "KeyError: 'odd'", True),
    ],
)
def test_an_error_is_written_down_and_the_background_task_begins_again(
    supervisor: Supervisor,
    table: Tasks,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    reported: str,
    has_traceback: bool,
) -> None:
    go_on = threading.Event()
    failing = Failing(error)

    def run(stop: threading.Event, beat: Beat) -> None:
        if not failing._errors:
            go_on.wait(SOON)
        failing(stop, beat)

    table.add("a", run)
    with caplog.at_level(logging.WARNING):
        supervisor.check()
        row = eventually(lambda: failed_row(supervisor), "the error")
    assert (row.last_error, row.is_failing) == (reported, True)
    assert row.last_error_at is not None
    assert any(bool(record.exc_info) == has_traceback for record in caplog.records)
    go_on.set()
    assert failing.recovered.wait(SOON)
    supervisor.heartbeats.write()
    row.refresh_from_db()
    assert not row.is_failing


@pytest.mark.django_db(transaction=True)
def test_pauses_grow_with_the_failures_and_a_stop_ends_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stop = threading.Event()
    paused: list[int] = []

    def no_pause(failures: int) -> float:
        paused.append(failures)
        if len(paused) == 4:
            stop.set()
        return 0

    monkeypatch.setattr(supervise, "pause", no_pause)
    failing = Failing(*(Unreachable("no") for _ in range(9)))
    keep_one_running(Task("a", "A", failing), stop)
    assert paused == [1, 2, 3, 4]


@pytest.mark.django_db(transaction=True)
def test_a_task_whose_row_cannot_be_written_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stop = threading.Event()
    began: list[str] = []

    def no_database(task: Task) -> None:
        began.append(task.key)
        if len(began) == 2:
            stop.set()
        raise RuntimeError("no database")

    heartbeats = Heartbeats()
    monkeypatch.setattr(heartbeats, "begin", no_database)
    monkeypatch.setattr(supervise, "pause", lambda failures: 0)
    keep_running(Task("a", "A", Patient()), stop, heartbeats)
    assert began == ["a", "a"]
    assert not BackgroundTask.objects.exists()


@pytest.mark.django_db
def test_what_all_tasks_reported_is_written_by_one_statement(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    heartbeats = Heartbeats()
    for key in "abc":
        heartbeats.begin(Task(key, key, Patient()))
    with django_assert_num_queries(0):
        heartbeats.beat("a", {"n": 1})
        heartbeats.beat("a", {"n": 2})
        heartbeats.beat("b", {"m": 1})
        heartbeats.fail("c", "Nothing listens.")
    assert heartbeats.urgent.is_set()
    with CaptureQueriesContext(connection) as statements:
        heartbeats.write()
        heartbeats.write()
    assert sum("UPDATE" in query["sql"] for query in statements) == 1
    rows = BackgroundTask.objects.values_list("key", "details", "last_error")
    assert list(rows) == [("a", {"n": 2}, ""), ("b", {"m": 1}, ""), ("c", {}, "Nothing listens.")]


@pytest.mark.django_db
def test_a_failure_is_news_and_so_is_the_first_heartbeat_but_not_the_next() -> None:
    heartbeats = Heartbeats()
    heartbeats.begin(Task("a", "A", Patient()))
    news = []
    reports = [partial(heartbeats.beat, "a", {})] * 4
    reports[2] = partial(heartbeats.fail, "a", "Nothing listens.")
    for report in reports:
        heartbeats.urgent.clear()
        report()
        news.append(heartbeats.urgent.is_set())
    assert news == [True, False, True, True]


@pytest.mark.django_db
def test_a_failure_is_still_written_after_the_task_has_begun_again() -> None:
    heartbeats = Heartbeats()
    task = Task("a", "A", Patient())
    heartbeats.begin(task)
    heartbeats.fail("a", "Nothing listens.")
    heartbeats.begin(task)
    heartbeats.write()
    assert BackgroundTask.objects.get().last_error == "Nothing listens."


@pytest.mark.django_db
def test_heartbeats_go_to_the_row_of_a_task_that_was_deleted_and_made_again() -> None:
    heartbeats = Heartbeats()
    task = Task("a", "A", Patient())
    for _ in range(2):
        BackgroundTask.objects.all().delete()
        BackgroundTask.objects.create(key="a", name="A")
        heartbeats.begin(task)
        heartbeats.beat("a", {"n": 1})
        heartbeats.write()
        row = BackgroundTask.objects.get()
        assert (row.is_late, row.details) == (False, {"n": 1})


@pytest.mark.django_db
def test_what_another_host_wrote_to_the_same_row_does_not_stay() -> None:
    task = Task("a", "A", Patient())
    ours, others = Heartbeats(), Heartbeats()
    for heartbeats in (ours, others):
        heartbeats.begin(task)
    ours.beat("a", {"n": 1})
    ours.write()
    others.fail("a", "Nothing listens.")
    others.write()
    assert BackgroundTask.objects.get().is_failing
    ours.beat("a", {"n": 1})
    ours.write()
    row = BackgroundTask.objects.get()
    assert (row.last_error, row.last_error_at, row.details) == ("", None, {"n": 1})


@pytest.mark.django_db
def test_what_could_not_be_written_is_written_the_next_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heartbeats = Heartbeats()
    heartbeats.begin(Task("a", "A", Patient()))
    heartbeats.beat("a", {"n": 1})
    with monkeypatch.context() as broken:
        broken.setattr(BackgroundTask.objects, "bulk_update", Mock(side_effect=OperationalError))
        with pytest.raises(OperationalError):
            heartbeats.write()
    heartbeats.write()
    assert BackgroundTask.objects.get().details == {"n": 1}


@pytest.mark.django_db(transaction=True)
def test_the_writer_goes_on_after_a_failure_and_writes_a_last_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried = threading.Semaphore(0)

    def fail(*_: object) -> None:
        tried.release()
        raise RuntimeError("no database")

    with keep_heartbeats() as heartbeats:
        heartbeats.begin(Task("a", "A", Patient()))
        with monkeypatch.context() as broken:
            broken.setattr(BackgroundTask.objects, "bulk_update", fail)
            heartbeats.beat("a", {"n": 1})
            assert tried.acquire(timeout=SOON)
    assert "could not store the heartbeats" in caplog.text
    assert BackgroundTask.objects.get().details == {"n": 1}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_died_is_replaced(
    supervisor: Supervisor, table: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaths = [SystemExit(), None]
    alive = threading.Event()

    def run(stop: threading.Event, beat: Beat) -> None:
        error = deaths.pop(0)
        if error:
            raise error
        alive.set()
        stop.wait(SOON)

    table.add("a", run)
    supervisor.check()
    first = supervisor._running["a"].thread
    assert first is not None
    first.join(SOON)
    supervisor.check()
    assert alive.wait(SOON)


def test_the_supervisor_goes_on_when_it_cannot_tell_what_is_wanted(
    supervisor: Supervisor, table: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, looked = threading.Event(), threading.Event()
    background_task = Patient()
    table.add("a", background_task)
    calls: list[int] = []

    def wanted(owner: str, *, only: str = "") -> dict[str, Task]:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("no database")
        looked.set()
        return table.list_tasks(owner)

    monkeypatch.setattr(supervise, "list_tasks", wanted)
    monkeypatch.setattr(supervise, "CHECK_SECONDS", 0.01)
    thread = threading.Thread(target=supervisor.run, args=(stop,))
    thread.start()
    assert looked.wait(SOON)
    assert background_task.began.acquire(timeout=SOON)
    stop.set()
    thread.join(SOON)
    assert not thread.is_alive()
    assert background_task.ended.is_set()


def test_a_thread_that_hangs_is_left_and_said_so(
    transactional_db: None, table: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, began = threading.Event(), threading.Event()

    def hang(stop: threading.Event, beat: Beat) -> None:
        began.set()
        release.wait(SOON)

    monkeypatch.setattr(supervise, "JOIN_SECONDS", 0.05)
    table.add("a", hang)
    supervisor = Supervisor()
    supervisor.check()
    assert began.wait(SOON)
    assert not supervisor.end()
    release.set()
    monkeypatch.setattr(supervise, "JOIN_SECONDS", SOON)
    assert supervisor.end()


def test_a_lease_is_released_and_its_task_begun_again_only_after_the_thread_has_ended(
    supervisor: Supervisor, table: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "RENEWED_AFTER_SECONDS", 0.0)
    began, may_end, times = threading.Semaphore(0), threading.Event(), []

    def run(stop: threading.Event, beat: Beat) -> None:
        times.append(1)
        began.release()
        stop.wait(SOON)
        may_end.wait(SOON)

    table.add_exclusive("a", run)
    supervisor.check()
    assert began.acquire(timeout=SOON)
    first = supervisor._running["a"].thread
    assert first is not None
    # Its lease becomes another's share.
    assert supervisor._leases is not None
    subject = BackgroundTask.objects.get(key="a").pk
    supervisor._leases._leaving = frozenset({subject})
    supervisor.check()
    supervisor.check()
    assert "a" not in supervisor._running
    assert work.leased(TASK) == {subject}
    assert Work.objects.get(kind=TASK).fence == 1
    assert len(times) == 1
    may_end.set()
    first.join(SOON)
    supervisor.check()
    assert began.acquire(timeout=SOON)
    assert Work.objects.get(kind=TASK).fence == 2


def test_no_second_thread_of_a_task_begins_beside_one_that_stops(
    supervisor: Supervisor, table: Tasks
) -> None:
    began, may_end = threading.Semaphore(0), threading.Event()

    def run(stop: threading.Event, beat: Beat) -> None:
        began.release()
        stop.wait(SOON)
        may_end.wait(SOON)

    table.add("a", run)
    supervisor.check()
    assert began.acquire(timeout=SOON)
    del table.tasks["a"]
    supervisor.check()
    table.add("a", run)
    supervisor.check()
    (stopping,) = supervisor._stopping
    assert stopping.thread is not None
    assert not supervisor._running
    may_end.set()
    stopping.thread.join(SOON)
    supervisor.check()
    assert began.acquire(timeout=SOON)


def test_while_the_log_cannot_be_written_what_another_process_does_is_not_done_too(
    supervisor: Supervisor, table: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise, "Slot", Mock(side_effect=LogError("It is full.")))
    alone = Patient()
    table.add_exclusive("a", alone)
    supervisor.check()
    assert alone.began.acquire(timeout=SOON)
    subject = BackgroundTask.objects.get(key="a").pk
    assert Leases(TASK, "another").hold([subject]) == {subject}
    supervisor.check()
    assert alone.ended.wait(SOON)
    supervisor.check()
    assert not supervisor._running


def test_exclusive_tasks_stop_when_their_leases_cannot_be_renewed(
    supervisor: Supervisor, table: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    exclusive, other = Patient(), Patient()
    table.add_exclusive("a", exclusive)
    table.add("b", other)
    supervisor.check()
    assert exclusive.began.acquire(timeout=SOON)
    assert other.began.acquire(timeout=SOON)
    supervisor._stop_what_is_over()
    assert set(supervisor._running) == {"a", "b"}
    stop = threading.Event()

    def fail() -> None:
        stop.set()
        raise OperationalError

    with monkeypatch.context() as lost:
        lost.setattr(supervisor, "check", fail)
        lost.setattr(supervisor, "end", lambda: True)
        lost.setattr("topology.work.monotonic", lambda: time.monotonic() + 21)
        supervisor._run(stop)
    assert exclusive.ended.wait(SOON)
    assert not other.ended.is_set()
    (stopping,) = supervisor._stopping
    assert stopping.thread is not None
    stopping.thread.join(SOON)
    supervisor.check()
    assert exclusive.began.acquire(timeout=SOON)
