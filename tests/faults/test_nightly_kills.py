"""Workers that are killed in the middle of nightly runs leave the figures of one that was not."""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from django.db.models.functions import Now

from analytics import compacted, nightly
from analytics.models import DayFigures, Run, UnexplainedMessage
from analytics.models.run import RunState
from analytics.results.load import forget_day
from tests.analytics import job_cases, report_oracle
from tests.analytics.builders import NOON, write_log
from tests.builders import eventually
from tests.faults.forking import forked_call
from topology.models import Work

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.long]

DAY = NOON.date()
KILLS = 30
# A run takes ten seconds and more; a worker of a slower machine is killed in its first part.
LATEST_KILL = 15.0
SECONDS = 300.0
ENDED = (RunState.DONE, RunState.FAILED, RunState.NO_DATA)


def work() -> int:
    """What the worker's task of nightly runs does, until nothing is requested."""
    nightly.run_requested(Event())
    return 0


def rows() -> list[tuple[Any, ...]]:
    """All that the day left in the database, without primary keys and the order of JSON."""
    found: list[tuple[Any, ...]] = []
    for model in (DayFigures, UnexplainedMessage):
        names = [field.name for field in model._meta.fields if field.name != "id"]
        for row in model._default_manager.filter(day=DAY).values(*names):
            if text := row.pop("figures", ""):
                row["figures"] = {
                    name: sorted(map(str, of)) for name, of in json.loads(text).items()
                }
            found.append(tuple(sorted(row.items())))
    return sorted(found, key=str)


def is_over() -> bool:
    """Whether the run ended well."""
    run = Run.objects.get(day=DAY)
    assert run.state != RunState.FAILED, run.error
    return run.state in ENDED


def folders(url: str) -> list[Path]:
    return list(Path(url.removeprefix("file://")).glob(f"**/date={DAY}/run=*"))


def test_a_worker_killed_at_any_moment_of_a_nightly_run_leaves_the_same_figures(
    settings: Any, tmp_path: Path
) -> None:
    log = settings.EVENT_LOG = tmp_path / "log"
    for case in (job_cases.odd_ends, job_cases.retried, job_cases.repeats):
        write_log(log, case(), case.__name__)
    write_log(log, report_oracle.a_log(), "truth")
    nightly.run_day(DAY)
    assert list(Path(sys.prefix).glob("spark-classes-*.jsa")), "the archive of classes"
    expected = rows()
    assert len(expected) > 10
    seen = set()
    for number in range(KILLS):
        if number % 3 == 0:
            forget_day(DAY)
            (log / f"date={DAY}" / compacted.MANIFEST).unlink(missing_ok=True)
        nightly.request_run(DAY)
        with forked_call(work):
            eventually(
                lambda: not Run.objects.filter(day=DAY, state="requested").exists(), "it began"
            )
            # The moment is the point of this test: nothing tells it.
            time.sleep(random.uniform(0, LATEST_KILL))
        seen.add(Run.objects.get(day=DAY).state)
        assert rows() in ([], expected)
        # As after its lease.
        Work.objects.update(leased_until_at=Now())
    nightly.request_run(DAY)
    with forked_call(work):
        eventually(is_over, "the day is computed", seconds=SECONDS)
    assert rows() == expected
    assert compacted.input_of(log, DAY).files == ()
    assert len(folders(settings.LOG_URL)) == 1
    assert len(folders(settings.RESULTS_URL)) == 1
    assert "running" in seen
