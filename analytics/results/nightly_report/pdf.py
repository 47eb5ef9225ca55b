"""A report as PDF, printed by a Chromium if this machine has one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic

NAMES = (
    "chromium",
    "chromium-headless-shell",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
)
SECONDS = 60.0
NO_CHROMIUM = (
    "No PDF: Chromium is not installed. Install it on the machine of the worker, which then adds "
    "the PDF."
)


class PdfError(Exception):
    """The PDF could not be made; the message says why."""


class NoChromium(PdfError):
    """This machine has no Chromium, which nothing else needs."""


def find_chromium() -> str | None:
    """The first of the usual names on PATH."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def print_pdf(html: str, *, alive: Callable[[], None] = lambda: None) -> bytes:
    """The file, which loads nothing, as PDF. `alive` is called meanwhile. Raises PdfError."""
    program = find_chromium()
    if program is None:
        raise NoChromium(NO_CHROMIUM)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        source, target = folder / "report.html", folder / "report.pdf"
        # Nobody can open anything on paper.
        source.write_text(html.replace("<details>", "<details open>"))
        arguments = [
            *("--headless", "--disable-gpu", "--no-pdf-header-footer", "--no-first-run"),
            "--disable-dev-shm-usage",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            f"--user-data-dir={folder / 'profile'}",
            f"--print-to-pdf={target}",
        ]
        # Chromium's sandbox refuses root, and what it prints is our own file.
        arguments += ["--no-sandbox"] if os.geteuid() == 0 else []
        _run([program, *arguments, source.as_uri()], folder, alive)
        if not target.exists():
            raise PdfError("No PDF: Chromium wrote no file. Run it by hand to see why.")
        return target.read_bytes()


def _run(command: list[str], folder: Path, alive: Callable[[], None]) -> None:
    try:
        child = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise PdfError(f"No PDF: Chromium did not start ({error}).") from error
    try:
        until = monotonic() + SECONDS
        while monotonic() < until:
            with suppress(subprocess.TimeoutExpired):
                child.wait(1)
                return
            alive()
        raise PdfError(f"No PDF: Chromium took longer than {SECONDS:.0f} s.")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
