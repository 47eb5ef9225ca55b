"""`python -m tests.flood --seconds 20 --rate 20000`: a broker, a worker and a flood, observed.

Prints a line every second and what was recorded in the end. `--alone` leaves the worker out.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.flood")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rate", type=float, default=20_000.0)
    parser.add_argument("--generation", default="4.3", help="of RabbitMQ: 3.10, 4.0 or 4.3")
    parser.add_argument("--patience", type=float, default=120.0, help="seconds after the flood")
    parser.add_argument("--alone", action="store_true", help="without a worker")
    parser.add_argument("--only-recorder", action="store_true", help="as the worker's option")
    parser.add_argument("--folder", type=Path, help="keep database, log and node here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        use(arguments.folder or Path(scratch))
        # Settings are read when this is imported.
        from tests.flood.try_out import try_out

        sys.exit(try_out(arguments))


def use(folder: Path) -> None:
    """Make this process look into a database and a log in this folder."""
    for name in ("DATABASE_URL", "EVENT_LOG", "DEBUG"):
        os.environ.pop(name, None)
    os.environ["DELAYBOARD_VAR"] = str(folder.resolve())
    os.environ["DJANGO_SETTINGS_MODULE"] = "delayboard.settings"
    import django

    django.setup()


if __name__ == "__main__":
    main()
