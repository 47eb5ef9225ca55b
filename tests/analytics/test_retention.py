"""What is kept for how long: real rows and files, also when it is killed in the middle."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path

import pytest
from pytest_django import Settings

from analytics.log import name_of
from analytics.models import (
    Gap,
    LogImport,
    LogPosition,
    Minute,
    Run,
    ScheduledBody,
    ScheduledMessage,
)
from analytics.models.imports import UPLOADS
from analytics.retention import rules
from analytics.retention import rules as batches
from analytics.retention.log_files import DELETING, LOG
from analytics.retention.rules import DELIVERED, GAPS, MINUTES, OVERDUE, clean
from analytics.retention.uploads import UPLOADED
from analytics.scheduled import projection
from analytics.scheduled.summaries import counts
from tests.analytics.builders import a_trip, an_entry, an_exit, write_log
from tests.analytics.day_lines import days
from topology import work
from topology.models import State, Topology

pytestmark = pytest.mark.both_databases

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
DAY = timedelta(days=1)
TABLE = (*rules.RULES, LOG)
RULES = [rule for rule in TABLE if rule.what]
NOTHING = dict.fromkeys([rule.what for rule in RULES], 0)


class Killed(Exception):
    """The process ended here."""


@pytest.fixture
def log(event_log: Path, db: None) -> Path:
    return event_log


def a_day(log: Path, ago: int, *, is_read: bool = True, run: str = "done") -> date:
    """A day of the log with two files, as old as it says, read by the index and by the night."""
    at = NOW - ago * DAY
    write_log(log, [an_entry(at=at)], "tap.orders.1")
    write_log(log, [an_entry(at=at + timedelta(hours=1))], "facts.1")
    for path in log.glob(f"date={at.date()}/hour=*/*.jsonl"):
        os.utime(path, (at.timestamp(), at.timestamp()))
        size = path.stat().st_size if is_read else 0
        LogPosition.objects.create(path=str(path.relative_to(log)), bytes_read=size)
    if run:
        Run.objects.create(day=at.date(), state=run)
    return at.date()


def waiting(topology: Topology) -> int:
    return counts.scope([topology.broker], NOW).rows().count()


def test_never_keeps_for_good(settings: Settings, log: Path) -> None:
    settings.KEEP_DAYS = dict.fromkeys(settings.KEEP_DAYS)
    a_day(log, 400)
    assert clean(TABLE, NOW) == NOTHING
    assert len(days(log)) == 1


def test_every_rule_has_a_name_of_its_own_and_days() -> None:
    assert len({rule.what for rule in RULES}) == len(RULES)
    assert [rule.days for rule in RULES] == [7, 90, 30, 28, 365, 365, 365, 90]


def test_old_days_of_the_log_are_deleted_whole_and_others_stay(log: Path) -> None:
    a_day(log, 91)
    kept = a_day(log, 90)
    assert clean(TABLE, NOW)[LOG.what] == 2
    assert days(log) == [kept]
    assert [path.name for path in log.iterdir() if path.is_dir()] == [f"date={kept}"]
    assert {
        path.partition("/")[0] for path in LogPosition.objects.values_list("path", flat=True)
    } == {f"date={kept}"}
    assert clean(TABLE, NOW)[LOG.what] == 0


@pytest.mark.parametrize("state", ["requested", "running"])
def test_a_day_that_a_nightly_run_wants_stays_with_those_behind_it(log: Path, state: str) -> None:
    a_day(log, 95)
    kept = [a_day(log, 94, run=state), a_day(log, 93)]
    assert clean(TABLE, NOW)[LOG.what] == 2
    assert days(log) == kept


def test_a_day_that_no_run_was_wanted_of_yet_stays(log: Path, settings: Settings) -> None:
    settings.KEEP_DAYS = settings.KEEP_DAYS | {LOG.setting: 1}
    kept = a_day(log, 3, run="")
    assert clean(TABLE, NOW)[LOG.what] == 0
    Run.objects.create(day=kept, state="done")
    assert clean(TABLE, NOW)[LOG.what] == 2


def test_a_day_that_the_index_has_not_read_stays(log: Path) -> None:
    a_day(log, 95, is_read=False)
    assert clean(TABLE, NOW)[LOG.what] == 0


def test_a_day_that_was_imported_into_lately_stays(log: Path) -> None:
    day = a_day(log, 95)
    write_log(log, [an_entry(at=datetime.combine(day, time(12), UTC))], "import.1")
    assert clean(TABLE, NOW)[LOG.what] == 0


def test_a_cleaning_that_was_killed_is_completed_by_the_next(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_day(log, 92)
    a_day(log, 91)

    def killed(folder: Path) -> None:
        next(folder.rglob("*.jsonl")).unlink()
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("shutil.rmtree", killed)
        with pytest.raises(Killed):
            clean(TABLE, NOW)
    assert days(log) == []
    assert len(list(log.glob(f"{DELETING}*"))) == 2
    assert LogPosition.objects.count() == 4
    assert clean(TABLE, NOW)[LOG.what] == 3
    assert not [path for path in log.iterdir() if path.is_dir()]
    assert not LogPosition.objects.exists()


def test_messages_that_have_left_go_and_the_counts_of_what_waits_stay_true(
    topology: Topology, log: Path
) -> None:
    old = NOW - 8 * DAY
    projection.project(topology, a_trip("left long ago", old))
    projection.project(topology, [an_exit("exit alone", old)])
    projection.project(topology, a_trip("tracked", old, tracking_id="t-1"))
    projection.project(topology, a_trip("left lately", NOW - DAY))
    projection.project(topology, [an_entry("overdue", old, body_base64="aGk=")])
    assert clean(TABLE, NOW) == NOTHING | {DELIVERED.what: 2}
    left = set(ScheduledMessage.objects.values_list("key", flat=True))
    assert left == {"tracked", "left lately", "overdue"}
    assert waiting(topology) == 1
    assert ScheduledBody.objects.count() == 1


def test_messages_long_overdue_go_with_their_counts_and_bodies(
    topology: Topology, log: Path
) -> None:
    projection.project(topology, [an_entry("gone", NOW - 91 * DAY, body_base64="aGk=")])
    projection.project(topology, [an_entry("kept", NOW - 89 * DAY)])
    long_delay = 200 * 86_400_000
    projection.project(
        topology, [an_entry("not due", NOW - 100 * DAY, requested_delay_ms=long_delay)]
    )
    assert clean(TABLE, NOW) == NOTHING | {OVERDUE.what: 1}
    assert set(ScheduledMessage.objects.values_list("key", flat=True)) == {"kept", "not due"}
    assert waiting(topology) == 2
    assert not ScheduledBody.objects.exists()


def test_where_nobody_sees_what_leaves_messages_go_some_days_after_they_were_due(
    topology: Topology, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Topology, "observes_arrivals", False)
    Topology.objects.update(state=State.APPLIED)
    projection.project(topology, [an_entry("due long ago", NOW - 8 * DAY)])
    projection.project(topology, [an_entry("due lately", NOW - 6 * DAY)])
    assert clean(TABLE, NOW) == NOTHING | {DELIVERED.what: 1}
    assert ScheduledMessage.objects.get().key == "due lately"


def test_minutes_and_gaps_go_by_their_own_settings(topology: Topology, log: Path) -> None:
    for ago in (29, 31):
        Minute.objects.create(topology=topology, minute_at=NOW - ago * DAY, entered=1)
    for ago in (364, 366):
        at = NOW - ago * DAY
        Gap.objects.create(topology=topology, from_at=at - 9 * DAY, until_at=at, why="Full.")
    assert clean(TABLE, NOW) == NOTHING | {MINUTES.what: 1, GAPS.what: 1}
    assert Minute.objects.get().minute_at == NOW - 29 * DAY
    assert Gap.objects.get().until_at == NOW - 364 * DAY


def killed_at(number: int) -> Callable[[], None]:
    calls = Counter[str]()

    def alive() -> None:
        calls["all"] += 1
        if calls["all"] == number:
            raise Killed

    return alive


def test_rows_go_in_batches_and_a_kill_between_them_loses_no_count(
    topology: Topology, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "BATCH", 3)
    old = NOW - 91 * DAY
    projection.project(topology, [an_entry(f"m{number}", old) for number in range(10)])
    assert waiting(topology) == 10
    with pytest.raises(Killed):
        clean(TABLE, NOW, killed_at(2))
    assert ScheduledMessage.objects.count() == waiting(topology) == 4
    assert clean(TABLE, NOW)[OVERDUE.what] == 4
    assert not ScheduledMessage.objects.exists()


def test_the_table_says_what_each_store_holds(topology: Topology, log: Path) -> None:
    day = a_day(log, 3)
    old = NOW - 8 * DAY
    projection.project(topology, a_trip("left", old))
    projection.project(topology, [an_entry("overdue", old)])
    held = {rule: rule.holding(NOW) for rule in RULES}
    assert (held[LOG].number, held[LOG].oldest_at) == (2, datetime.combine(day, time(), UTC))
    assert held[LOG].size == sum(path.stat().st_size for path in log.rglob("*.jsonl"))
    assert (held[DELIVERED].number, held[DELIVERED].oldest_at) == (1, old + timedelta(seconds=5))
    assert (held[OVERDUE].number, held[MINUTES].number, held[GAPS].oldest_at) == (1, 0, None)


def test_an_upload_that_nobody_imported_goes_with_its_file_on_its_own_host(
    settings: Settings, tmp_path: Path, db: None
) -> None:
    """An imported one stays, and so does one at work; a file without a row goes."""
    settings.EVENT_LOG = tmp_path / "log"
    folder = settings.EVENT_LOG / UPLOADS
    folder.mkdir(parents=True)
    host = name_of(settings.EVENT_LOG)
    old, begun = NOW - 31 * DAY, work.create("import_log", 1, broker=None, user=None)
    rows = {
        name: LogImport.objects.create(
            file_name=name, path=str(folder / name), host=host, created_at=old
        )
        for name in ("old", "new", "imported", "at work", "elsewhere")
    }
    LogImport.objects.update(created_at=old)
    LogImport.objects.filter(pk=rows["new"].pk).update(created_at=NOW)
    LogImport.objects.filter(pk=rows["imported"].pk).update(is_imported=True, path="")
    LogImport.objects.filter(pk=rows["at work"].pk).update(work=begun)
    LogImport.objects.filter(pk=rows["elsewhere"].pk).update(host="another")
    for name in ("old", "new", "at work", "left"):
        (folder / name).touch()
        os.utime(folder / name, (old.timestamp(), old.timestamp()))
    assert clean([UPLOADED], NOW) == {"Uploaded logs": 1}
    assert sorted(path.name for path in folder.iterdir()) == ["at work", "new"]
    assert {row.file_name for row in LogImport.objects.all()} == set(rows) - {"old"}
    assert clean([UPLOADED], NOW) == {"Uploaded logs": 0}
