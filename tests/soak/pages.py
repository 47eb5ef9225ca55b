"""Three pages that stay open in a real browser, and what they cost and say."""

from __future__ import annotations

from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import (
    Browser,
    BrowserContext,
    CDPSession,
    ConsoleMessage,
    Page,
    Playwright,
    WebSocket,
    sync_playwright,
)
from playwright.sync_api import Response as Answer

from tests.browser.conftest import CHROMIUM

MB = 1024**2
STALE = "() => Number(document.querySelector('main').hasAttribute('data-stale'))"


class OpenPage:
    """One page that shows live numbers; counts what comes to it from the moment it is opened.

    It hears news by its socket, or by fetching itself again.
    """

    def __init__(self, context: BrowserContext, name: str, path: str) -> None:
        self.name = name
        self._path = path
        self._sockets = self._failures = self._news = self._heard = 0
        self.said: list[str] = []
        self._page = context.new_page()
        self._page.on("websocket", self._on_socket)
        self._page.on("response", self._on_answer)
        self._page.on("requestfailed", lambda request: self._fail(f"{request.url} failed"))
        self._page.on("pageerror", lambda error: self._fail(str(error)))
        self._page.on("console", self._on_console)
        self._cdp: CDPSession = context.new_cdp_session(self._page)
        self._cdp.send("Performance.enable")

    def open(self) -> None:
        self._page.goto(self._path)

    @property
    def has_news(self) -> bool:
        """Whether anything was told since the last `read`."""
        return self._news > self._heard

    def wait(self, seconds: float) -> None:
        """Let this thread's browser events come in, of all pages."""
        self._page.wait_for_timeout(seconds * 1000)

    def read(self) -> dict[str, float]:
        """The figures of this page by name: heap in MB after a collection, nodes, and counters."""
        self._cdp.send("HeapProfiler.collectGarbage")
        reported: Any = self._cdp.send("Performance.getMetrics")
        metrics = {each["name"]: float(each["value"]) for each in reported["metrics"]}
        silent = not self.has_news
        self._heard = self._news
        figures = {
            "heap": metrics["JSHeapUsedSize"] / MB,
            "nodes": metrics["Nodes"],
            "sockets opened": self._sockets,
            "failures": self._failures,
            "silent": float(silent),
            "stale": float(self._page.evaluate(STALE)),
        }
        return {f"{self.name}.{name}": value for name, value in figures.items()}

    def _on_socket(self, socket: WebSocket) -> None:
        self._sockets += 1
        socket.on("framereceived", lambda frame: self._hear())
        socket.on("socketerror", lambda error: self._fail(error))

    def _on_answer(self, answer: Answer) -> None:
        if answer.status >= 400:
            self._fail(f"{answer.url} answered {answer.status}")
        elif urlsplit(answer.url).path == self._path and answer.request.resource_type == "fetch":
            self._hear()

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self._fail(message.text)

    def _hear(self) -> None:
        self._news += 1

    def _fail(self, why: str) -> None:
        self._failures += 1
        self.said.append(f"{self.name}: {why}")


class OpenPages:
    """Chromium with one account signed in and these pages (name -> path) open."""

    def __init__(self, url: str, password: str, paths: dict[str, str]) -> None:
        self._url, self._password, self._paths = url, password, paths
        self._playwright: Playwright | None = None
        self._browser: Browser | None = None
        self.pages: list[OpenPage] = []

    def __enter__(self) -> OpenPages:
        self._playwright = sync_playwright().start()
        try:
            self._browser = self._playwright.chromium.launch(
                executable_path=CHROMIUM,
                args=["--no-sandbox", "--disable-background-networking"],
                handle_sigint=False,
                handle_sigterm=False,
            )
            context = self._browser.new_context(
                base_url=self._url, viewport={"width": 1280, "height": 800}
            )
            self._sign_in(context.new_page())
            for name, path in self._paths.items():
                page = OpenPage(context, name, path)
                self.pages.append(page)
                page.open()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close()

    def wait(self, seconds: float) -> None:
        self.pages[0].wait(seconds)

    def read(self) -> dict[str, float]:
        return {name: value for page in self.pages for name, value in page.read().items()}

    @property
    def said(self) -> list[str]:
        """The errors of all pages, in words."""
        return [text for page in self.pages for text in page.said]

    def _sign_in(self, page: Page) -> None:
        page.goto("/login/")
        page.get_by_label("Username").fill("admin")
        page.get_by_label("Password").fill(self._password)
        page.get_by_role("button", name="Sign in", exact=True).click()
        page.wait_for_url(f"{self._url}/")
        page.close()

    def _close(self) -> None:
        if self._browser is not None:
            self._browser.close()
        if self._playwright is not None:
            self._playwright.stop()
        self._browser = self._playwright = None
