"""Every page in every state: nothing serious for axe, nothing cut off, nothing beside the window.

`make screenshots` keeps the pictures of it, in four widths and both themes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Literal

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver
from playwright.sync_api import Page
from pytest_django import Settings

from delayboard.models import background_task
from tests.brokers import Vhost
from tests.browser import scenes
from tests.browser.album import Album
from tests.browser.sights import Scene
from tests.browser.sign_in import sign_in
from tests.builders import eventually

pytestmark = pytest.mark.django_db(transaction=True)
BUILDERS: dict[str, Callable[[User, Vhost], Scene]] = {
    "fresh": lambda user, vhost: scenes.fresh(user),
    "empty": scenes.empty,
    "normal": scenes.normal,
    "several": scenes.several,
    "crowded": scenes.crowded,
    "broken": scenes.broken,
}


@pytest.fixture(autouse=True)
def quiet_site(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log of its own, and signs of life that last as long as the looking does."""
    settings.EVENT_LOG = tmp_path / "log"
    monkeypatch.setattr(background_task, "LATE", scenes.LIFETIME)


# Adds up how far the page moved what is seen, without what answers an input.
COUNT_SHIFTS = """
    window.hasHeard = false;
    window.WebSocket = class extends WebSocket {
        constructor(...all) {
            super(...all);
            this.addEventListener("message", () => { window.hasHeard = true; });
        }
    };
    window.shifts = 0;
    const add = (entries) => {
        for (const entry of entries) if (!entry.hadRecentInput) window.shifts += entry.value;
    };
    const observer = new PerformanceObserver((list) => add(list.getEntries()));
    observer.observe({type: "layout-shift", buffered: true});
    window.readShifts = () => new Promise((resolve) => {
        requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(() => {
            add(observer.takeRecords());
            resolve(window.shifts);
        })));
    });
"""
# Pages that must stand still when they are loaded and receive their first live numbers.
STEADY = frozenset({"now", "analytics:scheduled", "dead_letters", "topology:topology"})
MOST_SHIFT = 0.1


def tags_of(text: str) -> set[str]:
    """Return the page's tags with their classes."""
    return {f"{tag} {names}" for tag, names in re.findall(r'<(\w+)[^>]*?\sclass="([^"]*)"', text)}


def look_at(page: Page, album: Album, scene: Scene, site_url: str) -> None:
    """Take the scene's sights; all that is wrong with all of them fails together.

    Without a full album, another sight of a page is left out that has no tag with other classes.
    """
    views, tags = set[str](), set[str]()
    page.add_init_script(COUNT_SHIFTS)
    for sight in scene.sights:
        if sight.is_public:
            page.context.clear_cookies()
        else:
            sign_in(page.context, scene.user, site_url)
        is_another = sight.view in views and sight.act is None and not album.is_full
        if is_another and tags_of(page.request.get(sight.address).text()) <= tags:
            continue
        answer = page.goto(sight.address)
        assert answer is not None
        assert (answer.status, page.url) == (sight.status, site_url + sight.address)
        views.add(sight.view)
        tags |= tags_of(answer.text())
        if sight.view in STEADY:
            if page.locator("main[data-live-url]").count():
                eventually(lambda: page.evaluate("hasHeard"), f"{sight.name} is sent numbers")
            shift = page.evaluate("readShifts()")
            if shift >= MOST_SHIFT:
                album.defects.append(f"{sight.name} moves what is seen by {shift}")
        if sight.act is not None:
            sight.act(page)
        album.take(page, sight.name)
    album.errors = [error for error in album.errors if not re.search("status of 40[34]", error)]
    assert "\n".join(album.defects + album.violations + album.errors) == ""


@pytest.mark.parametrize(
    "album", ["some", pytest.param("full", marks=pytest.mark.long)], indirect=True
)
@pytest.mark.parametrize("state", BUILDERS)
def test_every_page_is_a_pleasure_to_look_at(
    page: Page, album: Album, ada: User, vhost: Vhost, site_url: str, state: str
) -> None:
    is_vast = album.is_full and state == "crowded"
    album.is_short = state == "normal"
    build = partial(scenes.crowded, number=scenes.VERY_MANY) if is_vast else BUILDERS[state]
    look_at(page, album, build(ada, vhost), site_url)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_focus_can_be_seen_wherever_it_goes(
    page: Page, ada: User, site_url: str, theme: Literal["light", "dark"]
) -> None:
    sign_in(page.context, ada, site_url)
    page.emulate_media(color_scheme=theme)
    page.goto("/brokers/add/")
    seen = set()
    for _ in range(30):
        page.keyboard.press("Tab")
        focused = page.locator(":focus")
        if not focused.count():
            continue
        width = focused.evaluate("element => parseFloat(getComputedStyle(element).outlineWidth)")
        style = focused.evaluate("element => getComputedStyle(element).outlineStyle")
        what = focused.evaluate("element => element.outerHTML.slice(0, 80)")
        assert (width >= 2, style) == (True, "solid"), what
        seen.add(what)
    assert len(seen) > 20


def addresses(patterns: list[URLPattern | URLResolver], space: str = "") -> Iterator[str]:
    """The names of the URL conf, except for Django's own admin."""
    for pattern in patterns:
        if isinstance(pattern, URLPattern):
            if pattern.name:
                yield f"{space}{pattern.name}"
        elif pattern.namespace != "admin":
            inner = f"{space}{pattern.namespace}:" if pattern.namespace else space
            yield from addresses(pattern.url_patterns, inner)


def test_no_page_is_without_a_picture(ada: User, vhost: Vhost) -> None:
    """An address that takes only POST is no page; any other belongs into tests/browser/scenes."""
    made = [scenes.fresh(ada), scenes.empty(ada, vhost), scenes.normal(ada, vhost)]
    pictured = {sight.view for scene in made for sight in scene.sights}
    client = Client()
    client.force_login(ada)
    named = set(addresses(get_resolver().url_patterns))
    steps = {one for one in named if one.startswith(scenes.STEPS)}
    unpictured = named - steps - pictured - scenes.DOWNLOADS
    answers = {name: client.get(scenes.some_address(name)).status_code for name in unpictured}
    assert {name for name, status in answers.items() if status != 405} == set()
