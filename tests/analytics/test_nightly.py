from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime, timedelta
from io import StringIO
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db.models import F
from django.db.models.functions import Now

from analytics import launch, nightly
from analytics.models import DayFigures, Run, UnexplainedMessage
from analytics.results import nightly_report
from analytics.results.load import forget_day
from tests.analytics import result_rows
from topology import work
from topology.models import Work
from topology.models.work import NIGHTLY

DAY = date(2026, 11, 20)
OTHER_DAY = date(2026, 11, 19)
GROUP = {"broker": "main", "topology": "orders"}
RESULT: dict[str, Any] = dict(result_rows.a_result(DAY, [GROUP]).tables)


@pytest.fixture(autouse=True)
def a_fake_job(monkeypatch: pytest.MonkeyPatch, event_log: Path, db: None) -> None:
    monkeypatch.setattr(launch, "JOBS", "tests.analytics.fake_job")
    monkeypatch.setenv("FAKE_RESULT", json.dumps(RESULT))


def test_a_run_leaves_its_rows_and_says_what_it_read() -> None:
    run = nightly.run_day(DAY)
    assert (run.state, run.lines, run.malformed, run.error) == ("done", 7, 1, "")
    assert run.duration is not None
    assert len(run.code_version) == 12
    names = ["Starting the job", "pretending", "Loading the results into the database"]
    assert [name for name, _ in run.step_seconds] == names
    assert run.spark_version == "9.9"
    assert run.peak_memory_bytes == 5000
    assert run.excluded == {"torn": 1, "repeat": 4, "backlog": 6}
    assert run.excluded_lines == 5
    assert UnexplainedMessage.objects.get().message == f"lost-{DAY}"
    assert DayFigures.objects.get(topology="orders", destination="").entered > 0


def test_running_a_day_again_replaces_its_rows_and_no_other_days(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nightly.run_day(OTHER_DAY)
    nightly.run_day(DAY)
    changed = RESULT | {"unexplained": [RESULT["unexplained"][0] | {"key": "other"}], "retries": []}
    monkeypatch.setenv("FAKE_RESULT", json.dumps(changed))
    nightly.run_day(DAY)
    lost = UnexplainedMessage.objects.values_list("day", "message").order_by("pk")
    assert list(lost) == [(OTHER_DAY, f"lost-{DAY}"), (DAY, "other")]
    sums = dict(
        DayFigures.objects.filter(topology="orders", destination="").values_list("day", "messages")
    )
    assert sums[OTHER_DAY] > 0
    assert sums[DAY] == 0
    assert Run.objects.count() == 2


def test_a_day_whose_log_is_gone_keeps_its_figures_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nightly.run_day(DAY)
    monkeypatch.setenv("FAKE_JOB", "no data")
    run = nightly.run_day(DAY)
    # The next run is compared with the lines of the figures, and the page shows none.
    assert (run.state, run.lines, run.lines_read) == ("no_data", 7, None)
    assert run.error == "Nothing was there. Delayboard kept the earlier figures."
    assert UnexplainedMessage.objects.get().message == f"lost-{DAY}"
    assert nightly.run_day(OTHER_DAY).error == "Nothing was there."
    assert Run.objects.get(day=OTHER_DAY).state == "no_data"


def test_a_day_of_which_the_log_holds_less_than_it_did_keeps_its_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nightly.run_day(DAY)
    Run.objects.update(lines=5000)
    changed = RESULT | {"unexplained": [RESULT["unexplained"][0] | {"key": "other"}]}
    monkeypatch.setenv("FAKE_RESULT", json.dumps(changed))
    run = nightly.run_day(DAY)
    assert (run.state, run.lines) == ("done", 5000)
    assert "has 7 lines, fewer than the 5000 of the earlier run" in run.error
    assert UnexplainedMessage.objects.get().message == f"lost-{DAY}"
    forget_day(DAY)
    assert nightly.run_day(DAY).error == ""
    assert UnexplainedMessage.objects.get().message == "other"


def test_a_failed_run_keeps_the_rows_and_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    nightly.run_day(DAY)
    monkeypatch.setenv("FAKE_JOB", "fail")
    with pytest.raises(launch.LaunchError):
        nightly.run_day(DAY)
    run = Run.objects.get()
    assert run.state == "failed"
    assert "the disk is on fire" in run.error
    assert run.output == "first complaint\nthe disk is on fire\n"
    assert [name for name, _ in run.step_seconds] == ["Starting the job", "pretending"]
    assert UnexplainedMessage.objects.get().message == f"lost-{DAY}"


def test_rows_that_cannot_be_stored_leave_the_old_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    nightly.run_day(DAY)
    broken = RESULT | {"unexplained": [RESULT["unexplained"][0] | {"broker": None}]}
    monkeypatch.setenv("FAKE_RESULT", json.dumps(broken))
    with pytest.raises(Exception, match=r"NOT NULL|null value"):
        nightly.run_day(DAY)
    assert UnexplainedMessage.objects.get().message == f"lost-{DAY}"
    assert Run.objects.get().state == "failed"


def running(lease: timedelta) -> None:
    """Another process runs it, whose lease ends then."""
    Run.objects.update_or_create(day=DAY, defaults={"state": "running"})
    own = Work.objects.create(kind=NIGHTLY, subject=DAY.toordinal())
    assert work.claim_this(own, "other", lease)


def test_a_day_that_another_process_runs_is_refused() -> None:
    running(timedelta(seconds=20))
    with pytest.raises(nightly.DayRefused, match="Another process computes"):
        nightly.run_day(DAY)
    assert Work.objects.get().owner == "other"


def test_a_day_that_another_process_takes_first_is_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    nightly.request_run(DAY)
    alone = work.alone

    def take_second(*arguments: Any, **named: Any) -> Any:
        running(timedelta(seconds=20))
        return alone(*arguments, **named)

    monkeypatch.setattr(work, "alone", take_second)
    assert nightly.run_requested(Event()) == 0
    assert Work.objects.get().owner == "other"
    assert caplog.records == []


def test_a_day_whose_process_was_killed_can_be_run_again() -> None:
    running(timedelta(seconds=-1))
    assert nightly.run_day(DAY).state == "done"


def test_a_run_that_was_taken_over_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def taken_over(*_: int) -> None:
        Work.objects.update(fence=F("fence") + 1)

    with pytest.raises(work.Stopped, match="took over"):
        nightly.run_day(DAY, progress=taken_over)
    assert Run.objects.get().state == "running"
    assert not DayFigures.objects.exists()


def test_the_lease_is_renewed_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nightly, "RENEW_SECONDS", 0.0)
    soon = datetime.now(UTC) + work.LEASE - timedelta(seconds=1)

    def almost_over(*_: int) -> None:
        Work.objects.update(leased_until_at=Now())

    reported = launch.run_day
    leases = []

    def pulsing(*arguments: Any, pulse: launch.Pulse, **named: Any) -> launch.Result:
        pulse(1, 2)
        leases.append(Work.objects.get().leased_until_at)
        return reported(*arguments, pulse=pulse, **named)

    monkeypatch.setattr(launch, "run_day", pulsing)
    nightly.run_day(DAY, progress=almost_over)
    assert leases[0] is not None
    assert leases[0] > soon
    assert Run.objects.get().steps == 2


def test_a_day_in_the_future_or_long_ago_is_refused() -> None:
    tomorrow = datetime.now(UTC).date() + timedelta(days=1)
    for ask in (nightly.run_day, nightly.request_run, nightly.compact):
        with pytest.raises(nightly.DayRefused, match="is in the future"):
            ask(tomorrow)
        with pytest.raises(nightly.DayRefused, match="is too long ago"):
            ask(date.min)
    assert not Run.objects.exists()


def test_the_worker_runs_what_is_wanted_and_what_a_dead_process_left() -> None:
    nightly.request_run(OTHER_DAY)
    running(timedelta(seconds=-1))
    Run.objects.create(day=date(2026, 11, 18), state="failed")
    signs = []
    assert nightly.run_requested(Event(), alive=lambda: signs.append(1)) == 2
    assert len(signs) >= 2
    assert list(Run.objects.order_by("day").values_list("state", flat=True)) == [
        "failed",
        "done",
        "done",
    ]
    assert nightly.run_requested(Event()) == 0


def test_wanting_a_day_that_runs_leaves_it_alone() -> None:
    running(timedelta(seconds=20))
    assert nightly.request_run(DAY).state == "running"


def test_a_stopped_worker_leaves_the_day_wanted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nightly.request_run(DAY)
    monkeypatch.setenv("FAKE_JOB", f"hang {tmp_path / 'pids'}")
    stop = Event()
    reported = launch.run_day

    def stopped_meanwhile(*arguments: Any, **named: Any) -> launch.Result:
        stop.set()
        return reported(*arguments, **named)

    monkeypatch.setattr(launch, "run_day", stopped_meanwhile)
    assert nightly.run_requested(stop) == 0
    assert Run.objects.get().state == "requested"


def test_a_wanted_day_that_fails_does_not_keep_the_worker_from_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nightly.request_run(DAY)
    nightly.request_run(OTHER_DAY)
    monkeypatch.setenv("FAKE_JOB", "fail")
    assert nightly.run_requested(Event()) == 2
    assert set(Run.objects.values_list("state", flat=True)) == {"failed"}


def test_the_command_says_its_steps_and_what_it_read(monkeypatch: pytest.MonkeyPatch) -> None:
    out = StringIO()
    monkeypatch.setattr(nightly_report, "NAMES", ())
    call_command("run_nightly", "--date", "2026-11-20", stdout=out)
    lines = [re.sub(r"\d+(\.\d)?m?s$", "N s", line) for line in out.getvalue().splitlines()]
    assert lines == [
        "Step 2 of 2: pretending",
        "Starting the job: N s",
        "pretending: N s",
        "Loading the results into the database: N s",
        "2026-11-20 is done: 7 lines read, 1 of them malformed.",
    ]


def test_the_command_runs_yesterday_by_default() -> None:
    call_command("run_nightly", stdout=StringIO())
    assert Run.objects.get().day == datetime.now(UTC).date() - timedelta(days=1)


def test_a_range_is_run_day_by_day_with_the_rest_of_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nightly_report, "NAMES", ())
    out = StringIO()
    call_command("run_nightly", "--from", "2026-11-18", "--to", "2026-11-20", stdout=out)
    assert Run.objects.filter(state="done").count() == 3
    lines = [line for line in out.getvalue().splitlines() if "day " in line]
    assert lines[0] == "2026-11-18, day 1 of 3"
    assert re.fullmatch(r"2026-11-20, day 3 of 3, about \w+ left", lines[2])


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--to", "2026-11-20"), "A range needs --from, and no --date"),
        (("--from", "2026-11-20", "--to", "2026-11-19"), "ends .2026-11-19. before it begins"),
        (("--from", "2026-11-20", "--date", "2026-11-20"), "and no --date"),
        (("--from", "2026-11-20", "--to", "2999-01-01"), "2999-01-01 is in the future"),
        (("--from", "0001-01-01", "--to", "2026-11-19"), "0001-01-01 is too long ago"),
    ],
)
def test_a_range_that_is_none_is_refused(arguments: tuple[str, ...], why: str) -> None:
    with pytest.raises(CommandError, match=why):
        call_command("run_nightly", *arguments)
    assert not Run.objects.exists()


def test_compacting_says_what_it_did_not_do(settings: Any, tmp_path: Path) -> None:
    settings.EVENT_LOG = tmp_path
    with pytest.raises(CommandError, match="2999-01-01 is in the future"):
        call_command("compact_log", "--date", "2999-01-01")
    complaints = StringIO()
    with pytest.raises(SystemExit) as end:
        call_command("compact_log", "--date", "2026-11-20", stderr=complaints)
    assert end.value.code == 4
    assert complaints.getvalue() == "The event log has no data for 2026-11-20.\n"


def test_a_range_goes_on_after_a_failed_day_and_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_JOB", "fail")
    complaints = StringIO()
    with pytest.raises(CommandError, match="2 of 2 days failed: 2026-11-18, 2026-11-19"):
        call_command(
            *("run_nightly", "--from", "2026-11-18", "--to", "2026-11-19"), stderr=complaints
        )
    assert complaints.getvalue().count("the disk is on fire") == 2


def test_the_command_ends_with_4_for_a_day_without_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_JOB", "no data")
    complaints = StringIO()
    with pytest.raises(SystemExit) as end:
        call_command("run_nightly", "--date", "2026-11-20", stderr=complaints)
    assert end.value.code == 4
    assert complaints.getvalue().strip() == "Nothing was there."


@pytest.mark.parametrize(
    ("day", "sentence"),
    [("20.11.2026", "is not a date. Enter a date such as"), ("2999-01-01", "is in the future")],
)
def test_the_command_refuses_a_bad_day_with_a_sentence(day: str, sentence: str) -> None:
    with pytest.raises(CommandError, match=sentence):
        call_command("run_nightly", "--date", day)
