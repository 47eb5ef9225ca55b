"""Pages whose lists change while they are open: a running replay, the diagram of a broker."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.contrib.auth.models import User
from django.urls import reverse
from playwright.sync_api import Page, Route, expect

from analytics.scheduled import projection
from delayboard.models import BatchState, ItemState, ParkedMessage, ParkedState, ReplayBatch
from tests.analytics.builders import an_entry
from tests.browser.sign_in import sign_in
from tests.builders import make_broker, make_pair
from tests.delayboard.builders import SHOP, a_message, parked
from tests.delayboard.replay_rows import a_batch
from tests.site.page_setup import know
from topology.definitions import Queue
from topology.models import Broker, State, Topology

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def broker(page: Page, ada: User, site_url: str) -> Broker:
    sign_in(page.context, ada, site_url)
    return make_broker()


def test_a_running_replay_lists_what_is_done_and_keeps_what_is_chosen(
    page: Page, broker: Broker
) -> None:
    know(broker, *SHOP)
    made = parked(broker, a_message(b"1"), a_message(b"2"))
    batch = a_batch(broker, made, BatchState.RUNNING)
    page.goto(reverse("replay_batch", args=[batch.pk]))
    show = page.get_by_label("Show")
    show.select_option("pending")
    rows = page.locator("section:has(#messages) tbody tr")
    expect(rows.first).to_contain_text("pending")
    batch.items.filter(position=1).update(state=ItemState.DONE)
    ReplayBatch.objects.update(done=1)
    expect(rows.first).not_to_contain_text("pending")
    expect(rows.last).to_contain_text("pending")
    expect(show).to_have_value("pending")


def test_the_diagram_of_a_broker_follows_its_depths(page: Page, broker: Broker) -> None:
    know(broker, Queue("dead"), dead=1)
    page.goto(reverse("topology:vhost", args=[broker.slug]))
    table = page.locator("table.data")
    expect(table).not_to_contain_text("4\u202f711")
    know(broker, Queue("dead"), dead=4711)
    expect(table).to_contain_text("4\u202f711")
    expect(page.locator("main[data-stale]")).to_have_count(0)


def test_a_diagram_is_zoomed_by_buttons_keys_and_wheel_and_moved(
    page: Page, broker: Broker
) -> None:
    know(broker, Queue("dead"), Queue("orders"), dead=1)
    page.set_viewport_size({"width": 600, "height": 800})
    page.goto(reverse("topology:vhost", args=[broker.slug]))
    svg, now = page.locator("svg.graph"), page.locator("[data-zoom-now]")
    expect(now).to_have_text("100 %")
    page.get_by_role("button", name="Zoom in").click()
    expect(now).to_have_text("125 %")
    page.keyboard.press("-")
    expect(now).to_have_text("100 %")
    svg.hover()
    page.keyboard.down("Control")
    for _ in range(6):
        page.mouse.wheel(0, -100)
    page.keyboard.up("Control")
    expect(now).to_have_text("381 %")
    frame = page.locator(".diagram .scroll")
    before = frame.evaluate("box => box.scrollLeft")
    page.mouse.down()
    page.mouse.move(50, 300, steps=3)
    page.mouse.up()
    assert frame.evaluate("box => box.scrollLeft") != before
    know(broker, Queue("dead"), Queue("orders"), dead=4711)
    expect(page.locator("table.data")).to_contain_text("4\u202f711")
    expect(now).to_have_text("381 %")
    page.keyboard.press("0")
    expect(now).to_have_text("100 %")


def test_a_box_is_opened_by_enter_after_the_diagram_was_dragged(page: Page, broker: Broker) -> None:
    know(broker, Queue("dead"), Queue("orders"))
    page.goto(reverse("topology:vhost", args=[broker.slug]))
    box, page_before = page.locator("svg.graph a").first, page.url
    # Dragging by a box does not open it.
    box.hover()
    page.mouse.down()
    page.mouse.move(50, 300, steps=3)
    box.hover()
    page.mouse.up()
    assert page.url == page_before
    box.press("Enter")
    expect(page).not_to_have_url(page_before)


def test_new_parked_messages_are_counted_until_the_reader_asks(page: Page, broker: Broker) -> None:
    page.goto(reverse("parked_messages", args=[broker.slug]))
    note, rows = page.locator("[data-live-held]"), page.locator("table.data tbody tr")
    expect(note).to_be_hidden()
    parked(broker, a_message(b"1"))
    expect(note).to_contain_text("1 new: show", timeout=20_000)
    note.get_by_role("link").click()
    expect(rows).to_have_count(1)
    page.get_by_role("button", name="Pause updates").click()
    ParkedMessage.objects.update(state=ParkedState.DISCARDED)
    parked(make_broker(name="Other"), a_message(b"2"))
    parked(broker, a_message(b"3"))
    expect(note).to_contain_text("1 new: show", timeout=20_000)
    expect(rows.locator(".changed")).to_have_text("")
    page.get_by_role("button", name="Resume updates").click()
    expect(rows.locator(".changed")).to_have_text("discarded")
    expect(rows).to_have_count(1)


def test_new_rows_of_scheduled_appear_unless_they_are_held(page: Page, broker: Broker) -> None:
    topology = make_pair(broker)
    Topology.objects.update(state=State.APPLIED)
    know(broker)
    now = datetime.now(UTC)

    def enter(name: str) -> None:
        projection.project(topology, [an_entry(name, now, requested_delay_ms=3_600_000)])

    page.goto(reverse("analytics:scheduled"))
    expect(page.locator("main")).to_contain_text("No waiting messages")
    enter("first")
    rows = page.locator("[data-live-list] tbody tr")
    expect(rows).to_have_count(1, timeout=20_000)
    rows.first.locator("input[data-select]").check()
    enter("second")
    expect(page.locator("[data-selected-count]")).to_have_text("1 selected")
    expect(page.locator("[data-live-held]")).to_be_visible()
    expect(rows).to_have_count(1)
    rows.first.locator("input[data-select]").uncheck()
    page.mouse.move(0, 0)
    page.evaluate("document.activeElement.blur()")
    expect(rows).to_have_count(2, timeout=20_000)
    page.locator("input[data-select-all]").check()
    expect(page.locator("[data-selected-count]")).to_have_text("2 selected")
    page.locator("input[data-select-all]").uncheck()
    # Nothing moves either when a row is selected while the page is being fetched.
    page.mouse.move(0, 0)
    page.evaluate("document.activeElement.blur()")
    fetched: list[Route] = []
    page.route("**/scheduled/", lambda route: fetched.append(route), times=1)
    with page.expect_request("**/scheduled/", timeout=20_000):
        enter("third")
    rows.first.locator("input[data-select]").check()
    with page.expect_event("requestfinished"):
        fetched[0].continue_()
    expect(page.locator("[data-live-held]")).to_be_visible()
    expect(rows).to_have_count(2)
    rows.first.locator("input[data-select]").uncheck()
    page.mouse.move(0, 0)
    page.evaluate("document.activeElement.blur()")
    expect(rows).to_have_count(3, timeout=20_000)
