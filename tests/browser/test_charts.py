"""The charts of Reports in a browser: one day in all of them, Zoom, and the keys of a heat map."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from django.contrib.auth.models import User
from django.urls import reverse
from playwright.sync_api import Page, expect

from tests.analytics import result_rows
from tests.browser.album import Album
from tests.browser.sign_in import sign_in
from tests.builders import make_broker


def test_a_day_is_shown_in_all_charts_and_one_is_zoomed(
    page: Page, album: Album, ada: User, site_url: str
) -> None:
    yesterday = datetime.now(UTC).date() - timedelta(days=1)
    days = [yesterday - timedelta(days=back) for back in (0, 1, 3)]
    result_rows.days(days, [{"broker": make_broker().slug, "topology": "orders"}])
    sign_in(page.context, ada, site_url)
    page.goto(reverse("analytics:reports") + "?range=7")
    chart = page.locator(".chart").first
    expect(chart.locator(".drawn")).to_be_visible()
    # A chart needs no library before it is zoomed.
    assert not page.evaluate("'Plotly' in window")

    chart.locator(f"circle[data-x='{days[1]}']").first.hover()
    expect(page.locator(".crosshair-text")).to_contain_text(str(days[1]))
    assert {cell.get_attribute("data-x") for cell in page.locator("td[data-at]").all()} == {
        str(days[1])
    }
    page.mouse.move(0, 0)
    expect(page.locator(".crosshair-text")).to_have_count(0)

    page.get_by_role("button", name="Zoom").first.click()
    expect(chart.locator(".main-svg").first).to_be_visible(timeout=60_000)
    page.get_by_role("button", name="Close zoom").click()
    expect(chart.locator(".drawn")).to_be_visible()

    links = page.locator("table.heat a")
    assert [link.get_attribute("tabindex") for link in links.all()].count("-1") == (
        links.count() - 1
    )
    links.first.focus()
    first = links.first.get_attribute("aria-label")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") != first
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == first
    assert (album.defects, album.violations, album.errors) == ([], [], [])
