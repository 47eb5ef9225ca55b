"""What is wrong with a page to be seen, in all widths and both themes; and pictures of it."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import ConsoleMessage, Page

from tests.browser import guide
from tests.builders import eventually

# The widest is looked at in full albums only.
WIDTHS = (390, 768, 1280)
ALL_WIDTHS = (390, 768, 1280, 1920)
# A picture is no higher: what is below of 300 rows looks like what is above.
HIGHEST = 6000
DEFECTS = (Path(__file__).parent / "defects.js").read_text()
LENGTHS = (Path(__file__).parent / "lengths.js").read_text()
# Words of its own that a page may show, and pixels that it may be high by width of the window.
MOST_WORDS = 400
# No page is higher at 1440 than at 1280.
MOST_HEIGHTS = {390: 5000, 1280: 2500}
# Shows the options of a replay opened by hand, which are folded at first.
OPENED = frozenset({"replay-options", "replay-options-refused"})
KINDS = (Path(__file__).parent / "kinds.js").read_text()
# The rest of axe's rules cannot go otherwise in another theme. These take most of its time.
COLOURS = {"runOnly": ["color-contrast", "link-in-text-block"]}
# The site has no sound, for which axe would read every file of styles anew.
OPTIONS = {"resultTypes": ["violations"], "preload": False}
# Three hundred rows of a table are made by the same lines as its first thirty.
ALIKE = ["tbody tr:nth-child(n+30)", "ol.message-list li:nth-child(n+10)"]
# Null where the page has replaced a part that was to be judged.
JUDGE = """([include, exclude, options]) => {
    include ??= window.unseen;
    if (include.some(({isConnected}) => isConnected === false)) return null;
    return axe.run({include, exclude}, options).then(({violations}) => violations
        .filter(({impact}) => impact === "serious" || impact === "critical")
        .map(({id, nodes}) => `${id} ${nodes[0].target}`));
}"""
# A page replaces its parts every few seconds at most.
ATTEMPTS = 5


@dataclass
class Album:
    """`folder` None keeps no pictures; the checks run all the same.

    A full album has all of a page judged by axe, another one what is of no kind in `seen`, a set
    that albums share. `defects` collects what axe and tests/browser/defects.js found, `violations`
    the breaches of the content security policy, `errors` what the console called an error. Of one
    that `is_short` no page may have more than MOST_WORDS and MOST_HEIGHTS.
    """

    folder: Path | None
    is_full: bool
    seen: set[int]
    guide_pictures: Mapping[str, str] = field(default_factory=dict)
    defects: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    is_short: bool = False
    _number: int = 0

    def watch(self, page: Page) -> None:
        """Note every error and every breach of the content security policy."""
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.errors.append(f"{page.url}: {error}"))

    def take(self, page: Page, name: str) -> None:
        """Look at the page in both themes and all widths, and picture it."""
        self._number += 1
        page.wait_for_load_state()
        for width in ALL_WIDTHS if self.is_full else WIDTHS:
            page.set_viewport_size({"width": width, "height": 800})
            self._measure(page, f"{name} at {width}")
            if self.folder is not None:
                self._picture(page, self.folder / f"{self._number:02}-{name}-{width}")
        page.emulate_media(color_scheme="light")
        page.set_viewport_size({"width": 1280, "height": 800})
        if self.folder is not None and name in self.guide_pictures:
            self._picture_for_guide(page, guide.FOLDER / f"{self.guide_pictures[name]}.webp")
        if self.is_full:
            page.evaluate(AXE_SCRIPT)
            assert self._judge(page, name, ["html"], ALIKE)
            return
        for _ in range(ATTEMPTS):
            kinds = page.evaluate(KINDS, json.dumps(list(self.seen)))
            if not kinds:
                return
            page.evaluate(AXE_SCRIPT)
            if self._judge(page, name, None, []):
                self.seen.update(kinds)
                return
        raise AssertionError(f"{name} replaces its parts faster than they can be judged")

    def _judge(self, page: Page, name: str, part: list[str] | None, alike: list[str]) -> bool:
        """Run axe in both themes; False when the page replaced the part meanwhile."""
        found = []
        for theme, options in (("light", {}), ("dark", COLOURS)):
            page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
            defects = page.evaluate(JUDGE, [part, alike, {**OPTIONS, **options}])
            if defects is None:
                return False
            found += [f"{name} {theme}: {defect}" for defect in defects]
        page.emulate_media(color_scheme="light")
        self.defects += found
        return True

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

    def _picture_for_guide(self, page: Page, file: Path) -> None:
        """What a window shows, as WebP, which only the protocol of Chromium can write."""
        shape = {"format": "webp", "quality": 75}
        answer = page.context.new_cdp_session(page).send("Page.captureScreenshot", shape)
        file.write_bytes(base64.b64decode(answer["data"]))

    def _measure(self, page: Page, name: str) -> None:
        """Charts follow a resize a moment later, so a page that does not fit is waited for."""
        fits = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
        try:
            eventually(lambda: page.evaluate(fits), f"{name} fits into its window")
        except AssertionError as problem:
            self.defects.append(str(problem))
        self.defects += [f"{name}: {defect}" for defect in page.evaluate(DEFECTS)]
        most = MOST_HEIGHTS.get(page.evaluate("innerWidth"))
        if self.is_short and most is not None:
            words, height = page.evaluate(LENGTHS)
            if words > MOST_WORDS:
                self.defects.append(f"{name} has {words} words of its own, above {MOST_WORDS}")
            if height > most and name.partition(" at ")[0] not in OPENED:
                self.defects.append(f"{name} is {height} px high, above {most}")

    def _heard(self, message: ConsoleMessage) -> None:
        if "Content Security Policy" in message.text:
            self.violations.append(message.text)
        elif message.type == "error":
            self.errors.append(message.text)
