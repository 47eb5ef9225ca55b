"""The keys of every page: search of everything, search of the page, jumps, the list of keys."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Locator, Page, expect

from tests.browser.album import Album
from tests.browser.sign_in import sign_in
from tests.builders import make_broker, make_demo, make_pair
from tests.delayboard.builders import a_message, parked

pytestmark = pytest.mark.django_db(transaction=True)


def test_keys_search_jump_and_list_themselves(page: Page, ada: User, site_url: str) -> None:
    make_pair(make_broker(), name="orders")
    make_pair(make_broker(name="Other broker"), name="invoices")
    sign_in(page.context, ada, site_url)
    page.goto("/audit/")
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox", name="Action, object or user")).to_be_focused()
    page.keyboard.type("?/")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.locator("h1").click()
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keys")
    expect(dialog).to_contain_text("g sScheduled")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    page.keyboard.press("Control+k")
    found = page.locator("[data-found]")
    expect(found.get_by_role("link", name="Publish message")).to_be_visible()
    page.keyboard.type("orders")
    expect(found.get_by_role("link")).to_have_text(["orders"])
    page.keyboard.press("ArrowDown")
    expect(found.get_by_role("link")).to_be_focused()
    page.keyboard.press("Escape")
    expect(found).to_be_hidden()
    page.keyboard.type(" ")
    expect(found).to_be_visible()
    page.keyboard.press("Enter")
    page.wait_for_url("**/topologies/orders/")
    page.keyboard.press("g")
    page.keyboard.press("s")
    page.wait_for_url("**/scheduled/?broker=test-broker")
    page.locator(".menu-broker > summary").click()
    page.get_by_role("link", name="All brokers").click()
    page.wait_for_url("**/scheduled/")
    menu = page.locator("details.menu:has(> summary:text-is('ada'))")
    sign_out = menu.get_by_role("button", name="Sign out")
    menu.locator("summary").click()
    menu.get_by_role("paragraph").click()
    expect(sign_out).to_be_visible()
    page.locator("h1").click()
    expect(sign_out).to_be_hidden()
    menu.locator("summary").press("Enter")
    expect(sign_out).to_be_visible()
    page.keyboard.press("Tab")
    page.keyboard.press("Escape")
    expect(sign_out).to_be_hidden()
    expect(menu.locator("summary")).to_be_focused()


def test_the_tour_is_walked_and_left_by_keys(
    page: Page, ada: User, site_url: str, album: Album
) -> None:
    make_demo()
    sign_in(page.context, ada, site_url)
    page.goto("/demo/")
    expect(page.get_by_role("button", name="Remove demo")).to_be_disabled()
    album.take(page, "demo")
    page.get_by_role("button", name="Start tour").press("Enter")
    tour = page.get_by_role("complementary", name="Now")
    expect(tour).to_be_focused()
    album.take(page, "tour")
    page.get_by_role("button", name="Next step").press("Enter")
    tour = page.get_by_role("complementary", name="Topologies")
    expect(tour).to_be_focused()
    page.goto("/audit/")
    expect(tour).to_be_focused()
    page.keyboard.press("Escape")
    page.wait_for_url("**/audit/")
    expect(tour).to_have_count(0)
    assert album.defects + album.violations == []


def tab_to(page: Page, wanted: Locator) -> None:
    """Move the focus as somebody without a mouse does."""
    for _ in range(80):
        page.keyboard.press("Tab")
        if wanted.evaluate("element => element === document.activeElement"):
            return
    raise AssertionError(f"the focus does not reach {wanted}")


def test_a_message_is_found_discarded_and_restored_by_keys_alone(
    page: Page, ada: User, site_url: str
) -> None:
    parked(make_broker(), a_message(b"1"), a_message(b"2"))
    sign_in(page.context, ada, site_url)
    page.goto("/")
    page.keyboard.press("Control+k")
    page.keyboard.type("search parked")
    expect(page.locator("[data-found]").get_by_role("link")).to_have_count(1)
    page.keyboard.press("Enter")
    page.wait_for_url("**/parked/")
    for state, button in (("parked", "Discard messages"), ("discarded", "Restore messages")):
        page.keyboard.press("/")
        page.keyboard.type(f"state:{state}")
        page.keyboard.press("Enter")
        page.wait_for_url(f"**/parked/?q=state%3A{state}")
        tab_to(page, page.locator("input[data-select]").first)
        page.keyboard.press("Space")
        tab_to(page, page.get_by_role("button", name=button))
        page.keyboard.press("Enter")
        expect(
            page.get_by_text(re.compile(r"1 parked message (discarded|restored)"))
        ).to_be_visible()
    expect(page.get_by_text("1 parked message restored")).to_be_visible()


def test_a_theme_is_chosen_from_the_search(page: Page, ada: User, site_url: str) -> None:
    sign_in(page.context, ada, site_url)
    page.goto("/system/")
    page.keyboard.press("Control+k")
    page.keyboard.type("dark theme")
    found = page.locator("[data-found]")
    expect(found.get_by_role("link")).to_have_text(["Dark theme"])
    page.keyboard.press("Enter")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    expect(found).to_be_hidden()
    assert page.url == f"{site_url}/system/"
