"""The first page's numbers, over the WebSocket alone: its fetching anew is cut off."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.utils import timezone
from playwright.sync_api import Page, expect
from pytest_django import Settings

from analytics.models import Minute, Recording
from tests.browser.sign_in import sign_in
from tests.builders import make_broker, make_pair
from topology.models import State

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def event_log(settings: Settings, tmp_path: Path) -> None:
    settings.EVENT_LOG = tmp_path / "log"


def test_the_counts_of_the_last_minutes_are_live_and_dashes_once_nobody_reads(
    page: Page, ada: User, site_url: str
) -> None:
    pair = make_pair(make_broker())
    pair.state = State.APPLIED
    pair.save()
    now = timezone.now()
    recording = Recording.objects.create(topology=pair, read_at=now + timedelta(hours=1))
    minute = Minute.objects.create(
        topology=pair, minute_at=now.replace(second=0, microsecond=0), entered=3
    )
    sign_in(page.context, ada, site_url)
    page.goto("/")
    page.route(
        "**/*",
        lambda route: (
            route.abort() if route.request.resource_type == "fetch" else route.continue_()
        ),
    )
    entered = page.locator(f"[data-live='flow/{pair.slug}/entered']")
    expect(entered).to_have_text("3")
    minute.entered = 1234
    minute.save()
    expect(entered).to_have_text("1\u202f234")
    expect(page.get_by_text("Up to date")).to_be_visible()
    recording.read_at = now - timedelta(minutes=2)
    recording.save()
    expect(entered).to_have_text("–")
    expect(page.get_by_text("Not recorded since")).to_be_visible()
