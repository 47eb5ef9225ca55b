"""The product's own processes, started on the test's database and killed by the tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from django.conf import settings
from django.db import connection

ROOT = Path(__file__).resolve().parents[2]


def environment() -> dict[str, str]:
    """What makes another process use this test's database, log and keys, and print as to a file."""
    return {
        **{name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        "DATABASE_URL": database_url(),
        "EVENT_LOG": str(settings.EVENT_LOG),
        "DELAYBOARD_VAR": str(settings.VAR),
    }


def database_url() -> str:
    values = connection.settings_dict
    if connection.vendor == "sqlite":
        return f"sqlite://{values['NAME']}"
    host, user = quote(values["HOST"], safe=""), quote(values["USER"], safe="")
    password = quote(values["PASSWORD"], safe="")
    return f"postgresql://{user}:{password}@{host}:{values['PORT']}/{values['NAME']}"


@contextmanager
def started(
    *arguments: str, variables: dict[str, str], within: Sequence[str] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    """`manage.py` with these arguments, in a group of its own; killed at the end if it lives.

    `within` is a command that runs it in surroundings of its own.
    """
    process = subprocess.Popen(
        [*within, sys.executable, str(ROOT / "manage.py"), *arguments],
        env=variables,
        cwd=ROOT,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        yield process
    finally:
        kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to the whole group: nothing can tidy up."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout and not process.stdout.closed:
        process.stdout.close()
