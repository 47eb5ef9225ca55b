"""The same measurement on each database, in a process of its own: settings are read once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.postgres import private_cluster


def measure_on_each(module: str, folder: Path) -> None:
    """Run a module of this package on SQLite and on PostgreSQL, with the database's name."""
    _run(module, "SQLite", f"sqlite://{folder / 'bench.sqlite3'}")
    with private_cluster() as url:
        _run(module, "PostgreSQL", url)


def _run(module: str, name: str, url: str) -> None:
    variables = {**os.environ, "DATABASE_URL": url}
    subprocess.run([sys.executable, "-m", module, name], env=variables, check=True)
