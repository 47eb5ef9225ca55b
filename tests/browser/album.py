"""Pictures of a page in all widths and both themes; and what is wrong with it to be seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import ConsoleMessage, Page

from tests.builders import eventually

# The narrow and the wide one are always looked at, the others only for pictures.
WIDTHS = (390, 1280)
PICTURED_WIDTHS = (390, 768, 1280, 1920)
SERIOUS = ("serious", "critical")
# A picture is no higher: what is below of 300 rows looks like what is above.
HIGHEST = 6000
DEFECTS = (Path(__file__).parent / "defects.js").read_text()
# The rest of axe's rules cannot go otherwise in another theme. These take most of its time.
COLOURS = ["color-contrast", "link-in-text-block"]
ALL_BUT_COLOURS = {rule: {"enabled": False} for rule in COLOURS}

# Three hundred rows of a table are made by the same lines as its first thirty.
SOME_ROWS = {"exclude": [["tbody tr:nth-child(n+30)"], ["ol.letters li:nth-child(n+10)"]]}


@dataclass
class Album:
    """`folder` None keeps no pictures; the checks run all the same.

    Without `has_colours` the colours are known from another album with the same elements.
    `defects` collects what axe and tests/browser/defects.js found, `violations` the breaches of
    the content security policy, `errors` what the console called an error.
    """

    folder: Path | None
    has_colours: bool = True
    defects: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    _number: int = 0

    def watch(self, page: Page) -> None:
        """Note every error and every breach of the content security policy."""
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.errors.append(f"{page.url}: {error}"))

    def take(self, page: Page, name: str) -> None:
        """Look at the page in both themes and all widths, and picture it."""
        self._number += 1
        page.wait_for_load_state()
        self._run_axe(page, f"{name} light", {} if self.has_colours else {"rules": ALL_BUT_COLOURS})
        page.emulate_media(color_scheme="dark")
        if self.has_colours:
            self._run_axe(page, f"{name} dark", {"runOnly": COLOURS})
        for width in PICTURED_WIDTHS if self.folder else WIDTHS:
            page.set_viewport_size({"width": width, "height": 800})
            self._measure(page, f"{name} at {width}")
            if self.folder is not None:
                self._picture(page, self.folder / f"{self._number:02}-{name}-{width}")
        page.emulate_media(color_scheme="light")
        page.set_viewport_size({"width": 1280, "height": 800})

    def _picture(self, page: Page, file: Path) -> None:
        width = page.evaluate("innerWidth")
        height = page.evaluate("document.documentElement.scrollHeight")
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
            page.screenshot(
                path=file.with_name(f"{file.name}-{theme}.png"),
                full_page=True,
                clip={"x": 0, "y": 0, "width": width, "height": min(height, HIGHEST)},
            )

    def _run_axe(self, page: Page, name: str, options: Mapping[str, object]) -> None:
        found = Axe().run(page, SOME_ROWS, {"resultTypes": ["violations"], **options}).response
        self.defects += [
            f"{name}: {violation['id']} {violation['nodes'][0]['target']}"
            for violation in found["violations"]
            if violation["impact"] in SERIOUS
        ]

    def _measure(self, page: Page, name: str) -> None:
        """Charts follow a resize a moment later, so a page that does not fit is waited for."""
        fits = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
        try:
            eventually(lambda: page.evaluate(fits), f"{name} fits into its window", seconds=2)
        except AssertionError as problem:
            self.defects.append(str(problem))
        self.defects += [f"{name}: {defect}" for defect in page.evaluate(DEFECTS)]

    def _heard(self, message: ConsoleMessage) -> None:
        if "Content Security Policy" in message.text:
            self.violations.append(message.text)
        elif message.type == "error":
            self.errors.append(message.text)
