"""What the jobs have in common as commands: progress on standard output, the arguments of a day."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path


def print_progress(**values: str | int) -> None:
    """Print one JSON object as a line."""
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def print_step(steps: Sequence[str], number: int) -> None:
    """Print that the steps before this one are done."""
    print_progress(done=number, total=len(steps), step=steps[number])


def day_parser(module: str, description: str | None) -> argparse.ArgumentParser:
    """Return a parser of --log, --day and --now."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--log", type=Path, required=True, help="the folder of the event log")
    parser.add_argument("--day", type=date.fromisoformat, required=True, help="a UTC day")
    parser.add_argument(
        "--now",
        type=datetime.fromisoformat,
        default=datetime.now(UTC),
        help="the moment up to which the log was recorded; with time zone",
    )
    return parser
