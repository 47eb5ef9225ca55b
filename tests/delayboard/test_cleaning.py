"""The worker's task of cleaning: at its start and every hour, and what it says of it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from threading import Event

import pytest
from django.utils import timezone
from pytest_django import Settings

from analytics.models import Minute
from analytics.retention import rules
from delayboard.models import BackgroundTask
from delayboard.models.background_task import CLEANING
from delayboard.worker.cleaning import keep_clean
from delayboard.worker.tasks import list_tasks
from topology.models import Topology


@pytest.fixture(autouse=True)
def event_log(settings: Settings, tmp_path: Path) -> None:
    settings.EVENT_LOG = tmp_path / "log"


def cleaned() -> list[Mapping[str, object]]:
    """What it says until it has cleaned once."""
    stop = Event()
    said: list[Mapping[str, object]] = []

    def beat(details: Mapping[str, object]) -> None:
        said.append(dict(details))
        if "cleaned_at" in details:
            stop.set()

    keep_clean(stop, beat)
    return said


def test_it_cleans_at_its_start_and_says_what_it_deleted(pair: Topology) -> None:
    old = timezone.now() - timedelta(days=31)
    Minute.objects.create(topology=pair, minute_at=old)
    last = cleaned()[-1]
    assert not Minute.objects.exists()
    assert isinstance(last["removed"], dict)
    assert last["removed"]["Counts per minute"] == 1
    assert last["removed_at"] == last["cleaned_at"]


@pytest.mark.django_db
def test_what_was_deleted_last_stays_known_when_nothing_is_deleted() -> None:
    reported = {"removed": {"Event log": 5}, "removed_at": "2026-11-01T00:00:00+00:00"}
    BackgroundTask.objects.create(key=CLEANING, name="Cleaning", details=reported)
    last = cleaned()[-1]
    assert {name: last[name] for name in reported} == reported
    assert last["cleaned_at"] != reported["removed_at"]


def test_it_stops_in_the_middle_when_the_worker_does(
    pair: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "BATCH", 1)
    old = timezone.now() - timedelta(days=31)
    for number in range(3):
        Minute.objects.create(topology=pair, minute_at=old - number * timedelta(minutes=1))
    stop = Event()
    keep_clean(stop, lambda details: stop.set())
    assert Minute.objects.count() == 1


@pytest.mark.django_db
def test_the_worker_cleans_and_a_recorder_alone_does_not() -> None:
    assert CLEANING in list_tasks("me")
    assert CLEANING not in list_tasks("me", only="recorder")
