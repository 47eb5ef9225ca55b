"""Tables: cards on a phone or tablet, wholly in sight; on a screen with room for a scroll bar."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth.models import User
from django.urls import reverse
from playwright.sync_api import Page

from tests.browser import died, rows
from tests.browser.names import crowd
from tests.browser.sign_in import sign_in
from tests.builders import make_broker

pytestmark = pytest.mark.django_db(transaction=True)
SCROLLS = """
() => Array.from(document.querySelectorAll(".scroll:has(> table)"))
    .map((box) => { box.closest("details")?.setAttribute("open", ""); return box; })
    .map((box) => box.scrollWidth > box.clientWidth)
"""
# Chromium without a window has none.
SCROLL_BAR = 15


@pytest.mark.parametrize("width", [390, 768])
@pytest.mark.parametrize("view", ["dead_letters", "parked_messages"])
def test_nothing_is_wider_than_a_phone_or_tablet(
    page: Page, ada: User, site_url: str, view: str, width: int
) -> None:
    broker = make_broker()
    died.groups(broker, ada, "dead", ["shop.NoStock", *crowd(12)])
    sign_in(page.context, ada, site_url)
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(reverse(view, args=[broker.slug] if view == "parked_messages" else []))
    scrolls = page.evaluate(SCROLLS)
    assert scrolls
    assert not any(scrolls)
    cell = page.locator("table.stacks td[data-label]").first
    label = cell.evaluate("cell => getComputedStyle(cell, '::before').content")
    assert label == ('"Dead-lettered in"' if view == "parked_messages" else '"First failure in"')


@pytest.mark.parametrize("width", [1280, 1920])
@pytest.mark.parametrize("view", ["dead_letters", "analytics:reports"])
def test_tables_leave_room_for_a_scroll_bar(
    page: Page, ada: User, site_url: str, view: str, width: int
) -> None:
    broker = make_broker()
    died.groups(broker, ada, "dead", ["shop.NoStock", "shop.PriceMissing"])
    rows.report(datetime.now(UTC).date() - timedelta(days=1), broker, ["orders", "invoices"])
    sign_in(page.context, ada, site_url)
    page.set_viewport_size({"width": width - SCROLL_BAR, "height": 800})
    page.goto(reverse(view))
    scrolls = page.evaluate(SCROLLS)
    assert scrolls
    assert not any(scrolls)
