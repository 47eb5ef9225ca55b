"""A million parked messages: milliseconds of server time for a page of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.postgres import private_cluster


def measure(folder: Path) -> None:
    """Each database in a process of its own: settings are read once."""
    _run("SQLite", f"sqlite://{folder / 'bench.sqlite3'}")
    with private_cluster() as url:
        _run("PostgreSQL", url)


def _run(name: str, url: str) -> None:
    variables = {**os.environ, "DATABASE_URL": url}
    command = [sys.executable, "-m", "tests.bench.parked_message_pages", name]
    subprocess.run(command, env=variables, check=True)
