"""`python -m tests.bench` measures everything in this order, `python -m tests.bench NAME…` some."""

from __future__ import annotations

import argparse
import importlib
import os
import tempfile
from pathlib import Path

PARTS = (
    "identifying",
    "starting",
    "walking",
    "findings",
    "moving",
    "replaying",
    "recording",
    "lateness",
    "parking",
    "listing",
    "watching",
    "idle",
    "sizing",
    "parked_messages",
    "scale",
    "api",
    "reports",
    "nightly",
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench")
    parser.add_argument("parts", nargs="*", metavar="NAME", help=f"of: {', '.join(PARTS)}")
    parts = parser.parse_args().parts or PARTS
    unknown = sorted(set(parts) - set(PARTS))
    if unknown:
        parser.error(f"There is no part {', '.join(unknown)}.")
    with tempfile.TemporaryDirectory() as scratch:
        use(Path(scratch))
        for part in parts:
            folder = Path(scratch, part)
            folder.mkdir()
            importlib.import_module(f"tests.bench.{part}").measure(folder)


def use(scratch: Path) -> None:
    """Give this process settings of its own: an empty database (no tables) and log in `scratch`."""
    for name in ("DATABASE_URL", "EVENT_LOG", "DEBUG"):
        os.environ.pop(name, None)
    os.environ["DELAYBOARD_VAR"] = str(scratch)
    os.environ["DJANGO_SETTINGS_MODULE"] = "delayboard.settings"
    import django

    django.setup()


if __name__ == "__main__":
    main()
