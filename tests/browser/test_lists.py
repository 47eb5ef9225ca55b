"""Lists of messages while they are open: what is selected, and rows that change meanwhile."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth.models import User
from django.urls import reverse
from playwright.sync_api import Page, expect

from analytics.models import ScheduledMessage
from analytics.scheduled.projection import project
from delayboard.models import ParkedMessage, ParkedState
from tests.analytics.builders import an_entry
from tests.browser.sign_in import sign_in
from tests.builders import make_broker, make_pair
from tests.delayboard.builders import a_message, parked
from topology.models import State, Topology

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_range_and_all_that_match_are_selected(page: Page, ada: User, site_url: str) -> None:
    broker = make_broker()
    made = parked(broker, *(a_message(b"%d" % number) for number in range(60)))
    sign_in(page.context, ada, site_url)
    page.goto(reverse("parked_messages", args=[broker.slug]))
    rows, status = page.locator("input[data-select]"), page.locator("[data-selected-count]")
    discard = page.get_by_role("button", name="Discard messages")
    expect(discard).to_be_hidden()
    rows.nth(1).click()
    rows.nth(4).click(modifiers=["Shift"])
    expect(status).to_have_text("4 selected")
    match = page.get_by_role("checkbox", name="Select all 60 messages")
    match.check()
    expect(status).to_have_text("All 60 messages selected")
    rows.nth(7).uncheck()
    # Those of the page.
    expect(status).to_have_text("29 selected")
    expect(match).not_to_be_checked()
    match.check()
    discard.click()
    expect(page.get_by_text("60 parked messages discarded.")).to_be_visible()
    assert ParkedMessage.objects.filter(state=ParkedState.DISCARDED).count() == len(made)


def test_rows_are_reached_selected_and_opened_by_keys(page: Page, ada: User, site_url: str) -> None:
    pair = make_pair(make_broker())
    Topology.objects.update(state=State.APPLIED)
    due = datetime.now(UTC) + timedelta(hours=1)
    project(pair, [an_entry("first", due), an_entry("second", due + timedelta(hours=1))])
    sign_in(page.context, ada, site_url)
    page.goto("/scheduled/")
    bar = page.get_by_role("button", name="Cancel messages")
    expect(bar).to_be_hidden()
    for key in "jjx":
        page.keyboard.press(key)
    expect(page.locator("[data-selected-count]")).to_have_text("1 selected")
    expect(bar).to_be_visible()
    page.keyboard.press("Escape")
    expect(bar).to_be_hidden()
    for key in ("j", "x", "c"):
        page.keyboard.press(key)
    page.wait_for_url("**/scheduled/changes/new/**")
    page.goto("/scheduled/")
    for key in ("j", "k", "Enter"):
        page.keyboard.press(key)
    expect(page.get_by_role("heading", name="first")).to_be_visible()


def test_updates_pause_and_are_taken_over_afterwards(page: Page, ada: User, site_url: str) -> None:
    pair = make_pair(make_broker())
    project(pair, [an_entry("leaves", datetime.now(UTC) + timedelta(hours=1))])
    sign_in(page.context, ada, site_url)
    with page.expect_websocket() as connected:
        page.goto("/scheduled/")
    page.get_by_role("button", name="Pause updates").click()
    ScheduledMessage.objects.update(left_at=datetime.now(UTC))
    for _ in range(2):
        connected.value.wait_for_event("framereceived")
    changed = page.locator("tbody tr[data-state=changed]")
    expect(changed).to_have_count(0)
    page.get_by_role("button", name="Resume updates").click()
    expect(changed).to_have_count(1)


def test_what_changes_meanwhile_stays_in_its_place_and_is_greyed(
    page: Page, ada: User, site_url: str
) -> None:
    pair = make_pair(make_broker())
    kept, gone = parked(pair.broker, a_message(b"1"), a_message(b"2"))
    due = datetime.now(UTC) + timedelta(hours=1)
    project(pair, [an_entry("stays", due), an_entry("leaves", due)])
    sign_in(page.context, ada, site_url)
    page.goto("/scheduled/")
    changed = page.locator("tbody tr[data-state=changed]")
    ScheduledMessage.objects.filter(message_id="leaves").update(left_at=datetime.now(UTC))
    expect(changed).to_have_count(1)
    expect(changed).to_contain_text("leaves")
    expect(changed).to_contain_text("left the delay")
    expect(page.locator("tbody tr[data-key]")).to_have_count(2)
    page.goto(reverse("parked_messages", args=[pair.broker.slug]))
    ParkedMessage.objects.filter(pk=gone.pk).update(state=ParkedState.DISCARDED)
    expect(changed).to_contain_text("discarded")
    ParkedMessage.objects.filter(pk=kept.pk).delete()
    expect(changed).to_have_count(2)
    expect(changed.last).to_contain_text("deleted")
    page.reload()
    expect(page.get_by_role("heading", name="No parked messages")).to_be_visible()
