"""Pictures of a page, wide and narrow, light and dark; and what the browser complained of."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import ConsoleMessage, Page

from tests.builders import eventually

WIDTHS = (1280, 390)
SERIOUS = ("serious", "critical")


@dataclass
class Album:
    """`folder` None keeps no pictures; the checks run all the same."""

    folder: Path | None
    violations: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    _number: int = 0

    def watch(self, page: Page) -> None:
        """Note every error and every breach of the content security policy."""
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.errors.append(f"{page.url}: {error}"))

    def take(self, page: Page, name: str) -> None:
        """Picture the page in both themes and widths; axe may find nothing serious."""
        self._number += 1
        page.wait_for_load_state()
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
            self._check(page, f"{name} {theme}")
            for width in WIDTHS:
                page.set_viewport_size({"width": width, "height": 800})
                self._no_sideways_scroll(page, f"{name} at {width}")
                if self.folder is not None:
                    file = f"{self._number:02}-{name}-{width}-{theme}.png"
                    page.screenshot(path=self.folder / file, full_page=True)
        page.emulate_media(color_scheme="light")
        page.set_viewport_size({"width": WIDTHS[0], "height": 800})

    def _check(self, page: Page, name: str) -> None:
        found = Axe().run(page).response["violations"]
        serious = [f["id"] for f in found if f["impact"] in SERIOUS]
        assert serious == [], f"{name}: {serious}"

    def _no_sideways_scroll(self, page: Page, name: str) -> None:
        """Charts follow a resize a moment later, so it is waited for."""
        root = "document.documentElement"
        eventually(
            lambda: page.evaluate(f"{root}.scrollWidth <= {root}.clientWidth"),
            f"{name} fits into its window",
            seconds=5,
        )

    def _heard(self, message: ConsoleMessage) -> None:
        if "Content Security Policy" in message.text:
            self.violations.append(message.text)
        elif message.type == "error":
            self.errors.append(message.text)
