from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from django.urls import reverse
from django.utils import timezone
from pytest_django import Settings

from delayboard.models import BackgroundTask
from delayboard.models.background_task import CLEANING
from tests.analytics.builders import NOON, an_entry, write_log
from tests.site.page_setup import signed_in, text_of
from topology.models import Role

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def log(settings: Settings, tmp_path: Path) -> Path:
    settings.EVENT_LOG = tmp_path / "log"
    return tmp_path / "log"


def page() -> str:
    return text_of(signed_in().get(reverse("retention")))


def test_the_page_shows_the_table_and_what_there_is(log: Path, settings: Settings) -> None:
    settings.KEEP_DAYS = settings.KEEP_DAYS | {"KEEP_REPORTS_DAYS": None}
    write_log(log, [an_entry(at=NOON)])
    text = page()
    for reported in ("KEEP_LOG_DAYS", "90 days", "1 file<", "forever", "2026-11-20"):
        assert reported in text
    assert "The worker is not running, so Delayboard deletes no data." in text


@pytest.mark.parametrize("role", [None, Role.VIEWER])
def test_where_the_log_lies_is_told_to_those_who_see_every_broker(
    log: Path, role: Role | None
) -> None:
    text = text_of(signed_in(role).get(reverse("retention")))
    assert (str(log) in text) == (role is not None)


def test_the_page_says_when_it_was_cleaned_and_what_was_deleted() -> None:
    now = timezone.now()
    reported = {"cleaned_at": now.isoformat(), "removed_at": now.isoformat()}
    background_task = BackgroundTask.objects.create(
        key=CLEANING,
        name="Cleaning",
        beat_at=now,
        details=reported | {"removed": {"Event log": 77}},
    )
    text = page()
    assert "and every hour" in text
    assert "77" in text
    assert "Delayboard deletes no data" not in text
    background_task.last_error = (
        "Delayboard cannot delete old days of the event log: permission denied."
    )
    background_task.save()
    assert f"The last cleanup failed: {background_task.last_error}" in page()


@pytest.mark.parametrize("odd", ["", "yesterday", 7, None, []])
def test_an_odd_moment_in_the_background_task_is_no_error(odd: object) -> None:
    details = {"cleaned_at": odd, "removed_at": odd, "removed": {}}
    BackgroundTask.objects.create(
        key=CLEANING, name="Cleaning", beat_at=datetime.now(UTC), details=details
    )
    assert "never" in page()


def test_what_nobody_measured_is_not_called_nothing() -> None:
    assert "not measured yet" in page()
    details = {"parked_messages_bytes": 0}
    BackgroundTask.objects.create(
        key=CLEANING, name="Cleaning", beat_at=timezone.now(), details=details
    )
    text = page()
    assert "not measured yet" not in text
    assert "0\u00a0B" in text
