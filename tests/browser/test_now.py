"""The first page while it is open: its numbers, its parts, and what it says of both."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone
from playwright.sync_api import Page, WebSocketRoute, expect
from pytest_django import Settings

from analytics.models import Minute, Recording
from delayboard.templatetags.delayboard import relative_text
from tests.browser.sign_in import sign_in
from tests.builders import eventually, make_broker, make_pair
from tests.topology.test_delays import SPANS
from topology.models import MissingBinding, State, Topology

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def event_log(settings: Settings, tmp_path: Path) -> None:
    settings.EVENT_LOG = tmp_path / "log"


@pytest.fixture
def pair(page: Page, ada: User, site_url: str) -> Topology:
    """An applied topology, and somebody who is signed in."""
    made = make_pair(make_broker())
    made.state = State.APPLIED
    made.save()
    sign_in(page.context, ada, site_url)
    return made


def be_hidden(page: Page, *, is_hidden: bool) -> None:
    """As after a change to another tab, and back."""
    page.evaluate(
        """value => {
            Object.defineProperty(document, "hidden", { value, configurable: true });
            document.dispatchEvent(new Event("visibilitychange"));
        }""",
        is_hidden,
    )


def test_the_counts_of_the_last_minutes_are_live_and_dashes_once_nobody_reads(
    page: Page, pair: Topology
) -> None:
    now = timezone.now()
    recording = Recording.objects.create(topology=pair, read_at=now + timedelta(hours=1))
    minute = Minute.objects.create(
        topology=pair, minute_at=now.replace(second=0, microsecond=0), entered=3
    )
    page.goto("/")
    line = page.locator(f"tr[data-key='flow/{pair.slug}']")
    rates = line.locator("[data-label='In / out per s']")
    expect(rates).to_have_text("<0.1 / 0")
    minute.entered = 300_000
    minute.minute_at -= timedelta(minutes=1)
    minute.save()
    expect(rates).to_have_text(re.compile(r"1\u202f\d{3} / 0"))
    expect(page.get_by_text("OK", exact=True)).to_be_visible()
    recording.read_at = now - timedelta(minutes=2)
    recording.save()
    expect(rates).to_have_text("– / –")
    expect(page.get_by_text("Not recorded since")).to_be_visible()


def test_a_new_problem_is_taken_over_once_and_what_somebody_does_there_is_kept(
    page: Page, pair: Topology
) -> None:
    page.goto("/")
    fetched: list[str] = []
    page.on(
        "request", lambda one: fetched.append(one.url) if one.resource_type == "fetch" else None
    )
    link = page.get_by_role("link", name=pair.name, exact=True)
    link.focus()
    title = page.title()
    MissingBinding.objects.create(topology=pair, destination="billing", since_at=timezone.now())
    expect(page.get_by_text("billing").first).to_be_visible()
    expect(link).to_be_focused()
    assert page.title() != title
    assert 1 <= len(fetched) <= 3


def test_a_lost_connection_is_said_and_greys_the_numbers_until_it_is_back(
    page: Page, pair: Topology
) -> None:
    sockets: list[WebSocketRoute] = []

    def connect(socket: WebSocketRoute) -> None:
        if len(sockets) == 1:
            socket.close()
        else:
            socket.connect_to_server()
        sockets.append(socket)

    page.route_web_socket("**/ws/now/*/", connect)
    page.goto("/")
    expect(page.locator("[data-live-age]")).to_have_text("just now")
    expect(page.locator("main[data-stale]")).to_have_count(0)
    sockets[0].close()
    expect(page.get_by_text("The connection to Delayboard is lost.")).to_be_visible()
    expect(page.locator("main[data-stale]")).to_have_count(1)
    expect(page.get_by_text("The connection to Delayboard is lost.")).to_be_hidden()
    expect(page.locator("main[data-stale]")).to_have_count(0)
    assert len(sockets) == 3


def test_a_hidden_page_rests_and_is_true_again_when_it_is_looked_at(
    page: Page, pair: Topology
) -> None:
    opened: list[Any] = []
    ended: list[Any] = []

    def listen(socket: Any) -> None:
        opened.append(socket)
        # One that is closed before it is connected ends with an error.
        socket.on("close", lambda closed: ended.append(closed))
        socket.on("socketerror", lambda error: ended.append(error))

    page.on("websocket", listen)
    page.goto("/")
    expect(page.locator("[data-live-age]")).to_have_text("just now")
    be_hidden(page, is_hidden=True)
    # Events arrive while the page is asked something.
    eventually(lambda: page.evaluate("true") and ended, "the socket is closed")
    MissingBinding.objects.create(topology=pair, destination="billing", since_at=timezone.now())
    be_hidden(page, is_hidden=False)
    expect(page.get_by_text("billing").first).to_be_visible()
    assert len(opened) == 2


SHIFT = """() => new Promise((resolve) => {
    let moved = 0;
    new PerformanceObserver((list) => {
        for (const entry of list.getEntries()) moved += entry.value;
    }).observe({ type: "layout-shift", buffered: true });
    setTimeout(() => resolve(moved), 0);
})"""


def test_nothing_moves_while_the_page_loads_and_becomes_live(page: Page, pair: Topology) -> None:
    page.goto("/")
    expect(page.locator("[data-live-age]")).to_have_text("just now")
    assert page.evaluate(SHIFT) == 0


WRITTEN = """async (spans) => {
    const { formatSpan } = await import("/static/delayboard/times.js");
    return spans.map(formatSpan);
}"""


def test_the_page_writes_durations_as_the_server_does(page: Page, pair: Topology) -> None:
    page.goto("/")
    written = page.evaluate(WRITTEN, [ms for ms, _ in SPANS])
    assert written == [text for _, text in SPANS]
    now, moment = datetime.now(UTC), timedelta(seconds=1)
    ages = [age * moment for age in (0, 1, 59, 61, 4000, 100_000, -61, -100_000)]
    millis = [age / moment * 1000 for age in ages]
    assert page.evaluate(RELATIVE, millis) == [relative_text(now - age, now) for age in ages]


RELATIVE = """async (ages) => {
    const { relative } = await import("/static/delayboard/times.js");
    return ages.map((age) => relative(0, age));
}"""
MORPHED = """async () => {
    const { morph } = await import("/static/delayboard/morph.js");
    const pick = (most) => Math.floor(Math.random() * most);
    function tree(depth) {
        const element = document.createElement(["p", "ul", "b"][pick(3)]);
        if (pick(2)) element.className = `c${pick(3)}`;
        const keys = new Set();
        for (let left = pick(5); left > 0; left -= 1) {
            if (!depth || !pick(3)) element.append(`text ${pick(3)}`);
            else {
                const child = tree(depth - 1);
                const key = pick(6);
                if (key < 4 && !keys.has(key)) child.dataset.key = keys.add(key) && key;
                element.append(child);
            }
        }
        return element;
    }
    for (let round = 0; round < 500; round += 1) {
        const [old, fresh] = ["section", "section"].map((name) => document.createElement(name));
        for (const one of [old, fresh]) one.append(tree(3), tree(2), tree(1));
        const [before, wanted] = [old.outerHTML, fresh.cloneNode(true)];
        morph(old, fresh);
        if (!old.isEqualNode(wanted)) return `${before} to ${wanted.outerHTML}: ${old.outerHTML}`;
    }
    document.body.innerHTML =
        "<ul><li data-key=a><details open>A</details></li><li data-key=b>B</li></ul>";
    const [list, row] = ["ul", "li"].map((name) => document.querySelector(name));
    const fresh = document.createElement("ul");
    fresh.innerHTML = ["<li data-key=c>C</li><li data-key=b>B2</li>",
        "<li data-key=a><details>A2</details></li>"].join("");
    morph(list, fresh);
    return list.lastChild === row && row.firstChild.open ? list.textContent : list.outerHTML;
}"""


def test_an_element_becomes_like_another_and_keeps_its_rows_and_folds(
    page: Page, pair: Topology
) -> None:
    page.goto("/login/")
    assert page.evaluate(MORPHED) == "CB2A2"
