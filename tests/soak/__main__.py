"""An hour of Delayboard at work: `make soak`, or `make soak MINUTES=3` for a short one.

Starts what `make run` starts, in a folder of its own, with messages of its own and three open
pages; prints what grew and whether every message is accounted for. Exit code 0 if it held.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path


def main() -> int:
    arguments = _arguments()
    folder = arguments.folder / f"{datetime.now(UTC):%Y-%m-%dT%H-%M-%S}"
    installation = folder / "installation"
    installation.mkdir(mode=0o700, parents=True)
    _use(installation)
    # Settings are read when these are imported.
    from tests.soak.soak import say, soak

    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    say(f"{arguments.minutes:g} minutes; the samples go to {_shown(folder)}")
    code = soak(folder, arguments.minutes * 60, stop)
    if code == 0 and not arguments.keep:
        shutil.rmtree(installation)
    say(f"Samples and output: {_shown(folder)}")
    return code


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--folder", type=Path, default=Path("var/soak"))
    parser.add_argument("--keep", action="store_true", help="keep the installation if it held")
    return parser.parse_args()


def _use(installation: Path) -> None:
    """Make this process look into the installation's own database and log."""
    for name in ("DATABASE_URL", "EVENT_LOG", "DEBUG"):
        os.environ.pop(name, None)
    os.environ["DELAYBOARD_VAR"] = str(installation.resolve())
    os.environ["DJANGO_SETTINGS_MODULE"] = "delayboard.settings"
    # Playwright keeps an event loop in this thread, and Django would take it for a coroutine.
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
    import django

    django.setup()


def _shown(folder: Path) -> str:
    """The path from here."""
    return os.path.relpath(folder)


if __name__ == "__main__":
    sys.exit(main())
