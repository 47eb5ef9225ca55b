"""Every link leads somewhere and every form does its work in a browser that runs no script."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from urllib.parse import parse_qs, urljoin, urlsplit

import pytest
from django.contrib.auth.models import User
from django.urls import resolve
from playwright.sync_api import Browser, Page, expect
from pytest_django import Settings

from delayboard.models import Publication, ReplayBatch
from delayboard.models.background_task import PARKING
from tests.brokers import Vhost
from tests.browser import contents, scenes
from tests.browser.at_work import background_tasks_at_work
from tests.browser.conftest import PATIENCE_MS
from tests.browser.sign_in import sign_in
from tests.builders import address_of, eventually
from topology import snapshots
from topology.models import Broker, State, Topology

pytestmark = pytest.mark.django_db(transaction=True)
PASSWORD = "a long enough password"
# Their links lead on from day to day, or from filter to filter.
ENDLESS = ("/reports/", "/scheduled/?", "/retrying/", "/dead-letters/?", "/parked/?")


@pytest.fixture(autouse=True)
def quiet_site(settings: Settings, tmp_path: Path) -> None:
    settings.EVENT_LOG = tmp_path / "log"


@pytest.fixture
def plain(browser: Browser, site_url: str) -> Iterator[Page]:
    context = browser.new_context(
        base_url=site_url, java_script_enabled=False, viewport={"width": 1280, "height": 800}
    )
    context.set_default_timeout(PATIENCE_MS)
    yield context.new_page()
    context.close()


def links(text: str, address: str, site_url: str) -> set[str]:
    """Where the page's links lead inside the site, without fragments and Django's admin."""
    stated = re.findall(r'<a\s[^>]*?href="([^"]*)"', text)
    found = {urljoin(address, unescape(link)) for link in stated}
    inside = {link.partition("#")[0] for link in found if link.startswith(site_url)}
    return {link for link in inside if not urlsplit(link).path.startswith("/admin/")}


def alike(address: str) -> tuple[str, frozenset[str]]:
    """What differs by a row or by the value of a filter has the same."""
    parts = urlsplit(address)
    return resolve(parts.path).view_name, frozenset(parse_qs(parts.query))


@pytest.mark.parametrize("at_most", [2, pytest.param(10_000, marks=pytest.mark.long)])
def test_every_link_leads_somewhere(
    plain: Page, ada: User, vhost: Vhost, site_url: str, at_most: int
) -> None:
    """Asked by the browser's own requests: to draw a thousand pages takes minutes.

    Of alike addresses that pages link to, so many are asked.
    """
    scene = scenes.normal(ada, vhost)
    sign_in(plain.context, ada, site_url)
    waiting = {site_url + sight.address for sight in scene.sights}
    seen = set(waiting)
    asked = Counter[tuple[str, frozenset[str]]]()
    while waiting:
        address = waiting.pop()
        answer = plain.request.get(address)
        assert answer.status == 200, address
        if answer.headers["content-type"].partition(";")[0] != "text/html":
            continue
        text = answer.text()
        assert text.count("<h1") == 1, address
        if any(listed in address for listed in ENDLESS):
            continue
        for link in sorted(links(text, address, site_url) - seen):
            seen.add(link)
            asked[alike(link)] += 1
            if asked[alike(link)] <= at_most:
                waiting.add(link)
    assert len(asked) > 20


def test_what_is_behind_a_fold_can_be_unfolded(plain: Page, ada: User, site_url: str) -> None:
    sign_in(plain.context, ada, site_url)
    plain.goto("/")
    plain.locator(".menu-account > summary").click()
    expect(plain.get_by_role("button", name="Sign out")).to_be_visible()
    plain.set_viewport_size({"width": 390, "height": 800})
    plain.get_by_text("Menu", exact=True).click()
    plain.locator(".menu-pages").get_by_role("link", name="Replays").click()
    expect(plain).to_have_url(f"{site_url}/replays/")


def press(page: Page, name: str | re.Pattern[str]) -> None:
    page.get_by_role("button", name=name).first.click()


def add_a_broker(page: Page, vhost: Vhost) -> None:
    address = address_of(vhost)
    page.goto("/brokers/add/")
    page.get_by_label("Name", exact=True).fill("Rabbit")
    page.get_by_label("AMQP address").fill(address.amqp_name)
    page.get_by_label("Virtual host").fill(address.vhost)
    page.get_by_text("More: management API").click()
    page.get_by_label("Management address").fill(address.management_url)
    page.locator("[name=username]").fill(address.username)
    page.locator("[name=password]").fill(address.password)
    press(page, "Save and test broker")
    expect(page.get_by_text("AMQP: Connected to the virtual host")).to_be_visible()
    press(page, "Finish setup")
    press(page, "Test connection")
    expect(page.get_by_text("AMQP: Connected to the virtual host")).to_be_visible()


def plan_apply_and_verify(page: Page) -> None:
    page.goto("/topologies/add/?kind=retry_pair")
    page.get_by_label("Name", exact=True).fill("orders")
    page.get_by_label("Delay", exact=True).fill("2s")
    press(page, "Create plan")
    press(page, re.compile("^Apply"))
    expect(page.get_by_text(re.compile(r"Applied: \d+ created"))).to_be_visible()
    press(page, "Verify")
    expect(page.get_by_text("Verified.")).to_be_visible()


def predict_and_publish(page: Page) -> None:
    page.goto("/topologies/orders/")
    page.get_by_role("link", name="Publish message").click()
    page.get_by_role("textbox", name="Body").fill("{}")
    press(page, "Predict")
    page.locator("#prediction button").click()
    expect(page.get_by_role("heading", name="Published message")).to_be_visible()
    assert Publication.objects.count() == 1


def look_choose_and_replay(page: Page, vhost: Vhost) -> None:
    contents.declare(vhost, [scenes.PARKED])
    contents.dead_letters(vhost, scenes.PARKED, ["orders", "orders"], deaths=1)
    snapshots.forget(Broker.objects.get().pk)
    page.goto("/dead-letters/")
    page.get_by_role("link", name=scenes.PARKED).click()
    press(page, "Mark as dead-letter queue")
    press(page, "Peek messages")
    page.locator("li.message-item summary").first.click()
    expect(page.get_by_role("heading", name="History").first).to_be_visible()
    page.get_by_role("checkbox", name="Select message 1").check()
    with background_tasks_at_work(PARKING, "replay-prepare"):
        press(page, "Park and replay messages")

        def is_prepared() -> bool:
            page.goto(page.url)
            return page.get_by_role("heading", name="Dry run of replay").count() == 1

        eventually(is_prepared, "its dry run is there")
    page.get_by_text("Options", exact=True).click()
    page.get_by_label("Undo time").fill("30m")
    press(page, "Update dry run")
    press(page, "Start replay of 1 message")
    press(page, "Cancel replay")
    expect(page.get_by_text("The replay published no message.")).to_be_visible()
    assert ReplayBatch.objects.get().cancelled == 1


def filter_the_lists(page: Page) -> None:
    page.goto("/audit/")
    page.get_by_label("Action, object or user").fill("applied")
    press(page, "Search")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.goto("/topologies/")
    page.get_by_label("Include deleted topologies").check()
    press(page, "Filter")
    assert "deleted=yes" in page.url
    page.goto("/reports/")
    press(page, "Compute day")
    expect(page.locator(".messages")).to_contain_text("The worker computes")


def tear_down(page: Page) -> None:
    """Its message is still somewhere in it, so that its name must be typed."""

    def asks() -> bool:
        page.goto("/topologies/orders/settings/")
        return page.locator("#typed").count() == 1

    eventually(asks, "the page knows of the message")
    page.locator("#typed").fill("orders")
    page.locator("button.danger", has_text="Delete topology").click()
    expect(page.get_by_text(re.compile(r"orders: \d+ objects deleted"))).to_be_visible()
    assert Topology.objects.get().state == State.DELETED


def change_the_password_and_leave(page: Page) -> None:
    page.goto("/password/")
    page.get_by_label("Old password").fill(PASSWORD)
    page.get_by_label("New password", exact=True).fill(PASSWORD + "!")
    page.get_by_label("New password confirmation").fill(PASSWORD + "!")
    press(page, "Change password")
    expect(page.get_by_text("Your password was changed.")).to_be_visible()
    page.locator(".menu-account > summary").click()
    press(page, "Sign out")
    expect(page.get_by_role("button", name="Sign in", exact=True)).to_be_visible()


def test_every_form_does_its_work(plain: Page, ada: User, vhost: Vhost) -> None:
    plain.goto("/")
    plain.get_by_label("Username").fill("ada")
    plain.get_by_label("Password").fill(PASSWORD)
    press(plain, "Sign in")
    add_a_broker(plain, vhost)
    plan_apply_and_verify(plain)
    predict_and_publish(plain)
    look_choose_and_replay(plain, vhost)
    filter_the_lists(plain)
    tear_down(plain)
    change_the_password_and_leave(plain)
