"""A browser, and the site served to it by the same server as in production."""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from django.contrib.auth.models import User
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.browser.album import Album
from tests.browser.guide import pictures_of
from tests.builders import make_user
from topology.models import Role

# Chromium without its windows: a third of the processor time goes.
CHROMIUM = Path("/usr/bin/chromium-headless-shell")
# No page runs so long that code compiled once more pays: a seventh of the processor time goes.
ARGUMENTS = ["--no-sandbox", "--disable-background-networking", "--js-flags=--no-opt --no-maglev"]
# A machine that runs all tests at once is slow.
PATIENCE_MS = 60_000


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Start Chromium once. Playwright keeps an event loop in this thread, hence the variable."""
    before = os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE")
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=ARGUMENTS,
        )
        yield chromium
        chromium.close()
    if before is None:
        del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]


@pytest.fixture
def site_url(transactional_db: None) -> Iterator[str]:
    """Serve the site on a free port, on the test's database; yield its address without a slash."""
    from delayboard.asgi import application

    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(
            application, log_level="warning", timeout_graceful_shutdown=2, ws="websockets-sansio"
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            deadline = time.monotonic() + 20
            while not server.started:
                assert thread.is_alive(), "the site ended while it started"
                assert time.monotonic() < deadline, "the site does not start"
                time.sleep(0.01)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(60)
    assert not thread.is_alive(), "the site does not stop"


@pytest.fixture
def page(browser: Browser, site_url: str, request: pytest.FixtureRequest) -> Iterator[Page]:
    """Open a page of a fresh session whose links start at the site."""
    context = browser.new_context(
        base_url=site_url, viewport={"width": 1280, "height": 800}, reduced_motion="reduce"
    )
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    yield page
    folder = request.config.getoption("--screenshots")
    if folder is not None:
        name = re.sub(r"[^\w.-]+", "-", request.node.name)
        page.screenshot(path=folder / f"{name}.png", full_page=True)
    context.close()


@pytest.fixture(scope="session")
def seen() -> set[int]:
    """The kinds of elements that axe judged."""
    return set()


@pytest.fixture
def album(page: Page, seen: set[int], request: pytest.FixtureRequest) -> Album:
    """Pictures go to the folder of --screenshots, one folder for each test. It is full then too."""
    folder = request.config.getoption("--screenshots")
    if folder is not None:
        folder = folder / re.sub(r"[^\w.-]+", "-", request.node.name)
        folder.mkdir(parents=True, exist_ok=True)
    is_full = folder is not None or getattr(request, "param", "some") == "full"
    album = Album(folder, is_full, seen, pictures_of(request.node.name))
    album.watch(page)
    return album


@pytest.fixture
def ada() -> User:
    """Somebody who may do everything."""
    return make_user("ada", Role.ADMIN)
