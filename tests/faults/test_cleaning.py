"""Killing the worker while it deletes what is past its keeping leaves nothing half counted."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from pytest_django import Settings

from analytics.models import LogPosition, ScheduledMessage
from analytics.scheduled import projection
from tests.analytics.builders import an_entry, write_log
from tests.analytics.day_lines import days
from tests.builders import eventually, make_broker, make_pair
from tests.faults.forking import forked

pytestmark = pytest.mark.django_db(transaction=True)
MESSAGES, DAYS, KILLS = 6000, 40, 3


def are_fewer(number: int) -> bool:
    return ScheduledMessage.objects.count() < number


@pytest.mark.both_databases
def test_a_cleaning_that_is_killed_again_and_again_is_completed_with_true_counts(
    settings: Settings, tmp_path: Path
) -> None:
    log = settings.EVENT_LOG = tmp_path / "log"
    topology = make_pair(make_broker())
    old = datetime.now(UTC) - timedelta(days=150)
    projection.project(topology, [an_entry(f"m{n}", old) for n in range(MESSAGES)])
    projection.project(topology, [an_entry("kept", datetime.now(UTC))])
    for ago in range(DAYS):
        at = old - timedelta(days=ago)
        write_log(log, [an_entry(at=at), an_entry(at=at + timedelta(hours=1))], "import.old")
    for path in log.rglob("*.jsonl"):
        os.utime(path, (old.timestamp(), old.timestamp()))
    for _ in range(KILLS):
        left = ScheduledMessage.objects.count()
        with forked("worker"):
            eventually(partial(are_fewer, left), "it deletes")
    with forked("worker"):
        eventually(lambda: ScheduledMessage.objects.count() == 1, "the rows are gone", seconds=60)
        eventually(lambda: not any(log.glob("*date=*")), "the old days are gone", seconds=60)
    assert ScheduledMessage.objects.get().key == "kept"
    assert days(log) == []
    assert not LogPosition.objects.exists()
