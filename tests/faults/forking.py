"""Commands of Delayboard in processes that are forked from one in which all is imported.

`manage.py` takes 1.7 seconds of a processor until it works, a fork 0.1. Else it is the same: a
group, signals and connections of its own. `started` starts what must be the command itself.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import forkserver, get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import NamedTemporaryFile
from unittest.mock import patch

from django.conf import settings

from delayboard.run_command import run_command
from tests.faults.processes import environment


@dataclass(frozen=True)
class Fork:
    """A running command, and the file with what it prints."""

    process: BaseProcess
    output: Path

    @property
    def said(self) -> str:
        return self.output.read_text()

    def send_signal(self, number: signal.Signals) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def wait(self, seconds: float) -> int:
        """Return the exit code."""
        self.process.join(seconds)
        assert self.process.exitcode is not None, f"not ended within {seconds:.0f} s: {self.said}"
        return self.process.exitcode


def forked(*arguments: str) -> AbstractContextManager[Fork]:
    """`manage.py` with these arguments; at the end SIGKILL to the whole group."""
    return forked_call(run_command, ["manage.py", *arguments])


@contextmanager
def forked_call(function: Callable[..., int], *given: object) -> Iterator[Fork]:
    """The same with a function of a module, which returns the exit code."""
    forkserver.set_forkserver_preload(["tests.faults.preloaded"])
    # The settings are read once, and only the log's folder changes from test to test.
    with patch.dict(os.environ, environment()):
        forkserver.ensure_running()
    with NamedTemporaryFile() as file:
        more = (function, given, settings.EVENT_LOG, file.name)
        process = get_context("forkserver").Process(target=run, args=more)
        process.start()
        assert process.pid is not None
        try:
            yield Fork(process, Path(file.name))
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.join()


def run(
    function: Callable[..., int], given: Sequence[object], event_log: Path, output: str
) -> None:
    os.setsid()
    written = os.open(output, os.O_WRONLY | os.O_APPEND)
    os.dup2(written, 1)
    os.dup2(written, 2)
    settings.EVENT_LOG = event_log
    sys.exit(function(*given))
