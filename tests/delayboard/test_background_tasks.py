from __future__ import annotations

import threading
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import time_machine
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from analytics.models import Firehose, Run
from delayboard.models import BackgroundTask
from delayboard.models.background_task import LATE, task_key
from delayboard.worker import tasks
from delayboard.worker.schedule import due_day, find_missing_days, request_due_runs, settled_at
from delayboard.worker.supervise import LONGEST_PAUSE, pause
from delayboard.worker.tasks import repeat
from tests.builders import make_broker, make_pair
from topology import work
from topology.models import State, Work
from topology.models.work import WorkState

pytestmark = pytest.mark.both_databases


@pytest.mark.parametrize(
    ("now", "day"),
    [
        (datetime(2026, 11, 21, 0, 9, 59, tzinfo=UTC), date(2026, 11, 19)),
        (datetime(2026, 11, 21, 0, 10, tzinfo=UTC), date(2026, 11, 20)),
        (datetime(2026, 11, 21, 23, 59, tzinfo=UTC), date(2026, 11, 20)),
        (datetime(2027, 1, 1, 0, 10, tzinfo=UTC), date(2026, 12, 31)),
        (datetime(2028, 3, 1, 12, tzinfo=UTC), date(2028, 2, 29)),
    ],
)
def test_the_due_day_is_the_last_one_that_is_over_and_settled(now: datetime, day: date) -> None:
    assert due_day(now) == day


@pytest.mark.parametrize(
    ("day", "at"),
    [
        # 02:30 does not exist in Berlin on 29 March 2026: it runs when the clock goes on.
        (date(2026, 3, 28), datetime(2026, 3, 29, 1, 0, tzinfo=UTC)),
        # 02:30 comes twice on 25 October 2026: it runs once.
        (date(2026, 10, 24), datetime(2026, 10, 25, 0, 30, tzinfo=UTC)),
        (date(2026, 7, 1), datetime(2026, 7, 2, 0, 30, tzinfo=UTC)),
    ],
)
def test_the_schedule_follows_its_time_zone_through_daylight_saving(
    day: date, at: datetime, settings: Any
) -> None:
    settings.NIGHTLY_CRON, settings.NIGHTLY_TIME_ZONE = "30 2 * * *", "Europe/Berlin"
    assert settled_at(day) == at
    assert due_day(at) == day
    assert due_day(at - timedelta(minutes=1)) == day - timedelta(days=1)


def test_a_weekly_schedule_runs_all_days_of_the_week_at_once(settings: Any) -> None:
    settings.NIGHTLY_CRON, settings.NIGHTLY_TIME_ZONE = "0 7 * * MON", "UTC"
    monday = datetime(2026, 11, 23, 7, tzinfo=UTC)
    assert {settled_at(date(2026, 11, day)) for day in range(16, 23)} == {monday}


@pytest.mark.django_db
def test_the_schedule_wants_each_day_once(monkeypatch: pytest.MonkeyPatch) -> None:
    beats: list[object] = []

    class Rounds(threading.Event):
        """Lets three rounds pass."""

        def wait(self, timeout: float | None = None) -> bool:
            if len(beats) == 3:
                self.set()
            return self.is_set()

    with time_machine.travel(datetime(2026, 11, 21, 12, tzinfo=UTC), tick=False):
        repeat(
            request_due_runs,
            0,
            stop=Rounds(),
            beat=lambda details: beats.append(details["last_day"]),
        )
    assert beats == ["2026-11-20"] * 3
    assert [run.day for run in Run.objects.all()] == [date(2026, 11, 20)]


@pytest.mark.parametrize("failures", [0, 1, 2, 5, 10, 1100, 10**6])
def test_pauses_double_up_to_half_a_minute_however_long_it_goes_on(failures: int) -> None:
    expected = min(LONGEST_PAUSE, 0.25 * 2 ** min(failures, 20))
    for _ in range(20):
        assert 0.75 * expected <= pause(failures) <= 1.25 * expected


def test_pauses_differ_so_that_background_tasks_do_not_come_back_together() -> None:
    assert len({pause(3) for _ in range(10)}) > 1


@pytest.mark.django_db
def test_a_background_task_without_a_recent_sign_of_life_is_late() -> None:
    now = timezone.now()
    background_task = BackgroundTask(key="k", name="BackgroundTask", beat_at=now)
    assert [BackgroundTask().is_late, background_task.is_late, background_task.is_failing] == [
        True,
        False,
        False,
    ]
    with time_machine.travel(now + LATE + timedelta(seconds=1)):
        assert BackgroundTask(beat_at=now).is_late
    assert BackgroundTask(last_error="x").is_failing


@pytest.mark.django_db
def test_what_is_wanted_follows_the_rows() -> None:
    topology = make_pair(make_broker())
    always = {
        "facts",
        "addresses",
        "bindings",
        "findings",
        "index",
        "replay",
        "schedule",
        "nightly",
        "cleaning",
    }
    always |= {"parking", "parked_messages", "parked-message-index", "replay-2", "replay-3"}
    always |= {"replay-prepare", "replay-outcomes", "samples", "nightly-reports", "replacements"}
    always |= {"queue-changes", "migrations", "alerts", "publish-jobs", "publish-jobs-2"}
    always.add("imports")
    assert set(tasks.list_tasks("me")) == always
    topology.state = State.APPLIED
    topology.save()
    wanted = tasks.list_tasks("me")
    task = wanted[task_key("record", topology.slug)]
    assert (task.name, task.broker_id) == ("Recorder of orders", topology.broker_id)
    assert set(tasks.list_tasks("me", only="recorder")) == {task.key, "facts", "index"}
    topology.state = State.DELETED
    topology.save()
    assert task.key not in tasks.list_tasks("me")


@pytest.mark.django_db
def test_a_firehose_that_is_wanted_is_recorded() -> None:
    broker = make_broker()
    assert task_key("firehose", broker.slug) not in tasks.list_tasks("me")
    row = Firehose.objects.create(broker=broker, switched_on_by="ada")
    task = tasks.list_tasks("me", only="recorder")[task_key("firehose", broker.slug)]
    assert (task.name, task.broker_id) == ("Firehose of Test broker", broker.pk)
    row.delete()
    # One that is wanted no longer ends at once.
    task.run(stop=threading.Event(), beat=lambda details: None)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("key", "kind", "does"),
    [
        ("replay", "replay", "send_batch.replay"),
        ("replay-2", "replay", "send_batch.replay"),
        ("replay-prepare", "replay-prepare", "make_draft.prepare_draft"),
    ],
)
def test_the_replay_background_tasks_carry_out_what_they_claim(
    monkeypatch: pytest.MonkeyPatch, key: str, kind: str, does: str
) -> None:
    work.create(kind, 1, broker=None, user=None)
    work.create("other", 2, broker=None, user=None)
    stop = threading.Event()
    done: list[int] = []

    def do(claimed: Work, *, stop: threading.Event, alive: Any) -> None:
        done.append(claimed.subject)

    monkeypatch.setattr(f"delayboard.dead_letters.replay.{does}", do)
    monkeypatch.setattr(tasks, "_free", tasks._FreeKinds())

    def beat(details: Any) -> None:
        stop.set()

    tasks.list_tasks("me")[key].run(stop=stop, beat=beat)
    assert done == [1]


@pytest.mark.django_db
def test_tasks_that_wait_for_work_ask_for_it_together(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    work.create("replay", 1, broker=None, user=None)
    ended = work.create("park", 2, broker=None, user=None)
    ended.state = WorkState.DONE
    ended.save()
    free = tasks._FreeKinds()
    with django_assert_num_queries(1):
        assert [free.has(kind) for kind in ("replay", "park", "other")] == [True, False, False]


@pytest.mark.django_db
def test_a_day_is_wanted_until_it_was_run_after_its_end(tmp_path: Path) -> None:
    now = datetime(2026, 11, 20, 12, tzinfo=UTC)
    yesterday, before = date(2026, 11, 19), date(2026, 11, 18)
    assert find_missing_days(now, tmp_path) == [yesterday]
    (tmp_path / "date=2026-11-18").mkdir()
    assert find_missing_days(now, tmp_path) == [before, yesterday]
    early = settled_at(yesterday) - timedelta(hours=3)
    Run.objects.create(day=yesterday, state="done", finished_at=early)
    Run.objects.create(day=before, state="done", finished_at=settled_at(before))
    assert find_missing_days(now, tmp_path) == [yesterday]
    Run.objects.filter(day=yesterday).update(finished_at=settled_at(yesterday))
    assert find_missing_days(now, tmp_path) == []
