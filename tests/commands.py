"""Commands run in this process as `manage.py` runs them."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from typing import NamedTuple
from unittest.mock import patch

from delayboard import run_command


class Ended(NamedTuple):
    """The exit code, and what is printed on both outputs."""

    code: int
    out: str
    err: str


def run(*arguments: str) -> Ended:
    """`manage.py` with these arguments, on the database of the test."""
    out, err = io.StringIO(), io.StringIO()
    with (
        patch.object(run_command, "prepare_database"),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            code = run_command.run_command(["manage.py", *arguments])
        except SystemExit as ended:
            code = int(ended.code or 0)
    return Ended(int(code), out.getvalue(), err.getvalue())
