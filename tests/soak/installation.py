"""An installation of its own, started as `make run` starts one, its output kept in a file."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Event
from types import TracebackType

from delayboard.demo.ports import is_free
from delayboard.demo.run import answers

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 120.0
STOP_SECONDS = 60.0
# What a child or the broker writes when something is wrong; "ended with code" is `run` itself.
_WRONG = re.compile(r"WARNING|ERROR|CRITICAL|Traceback|Error:|Exception|ended")
_BROKER_WRONG = re.compile(r"\[(error|critical|alert|emergency)\]")
_PASSWORD = re.compile(r"password\s+(\S+)")


class SoakError(Exception):
    """The soak cannot go on; the message says why."""


class Interrupted(SoakError):
    """Somebody pressed Ctrl-C."""


class Installation:
    """`manage.py run` on `folder` (its DELAYBOARD_VAR), its output in `log`.

    Started and stopped from the main thread: the kernel asks it to stop when that ends.
    Waiting for it ends early when `stop` is set.
    """

    def __init__(self, folder: Path, log: Path, stop: Event) -> None:
        self.folder = folder
        self.log = log
        self._stop = stop
        self.port = next(port for port in range(18000, 19000) if is_free(port))
        self.process: subprocess.Popen[bytes] | None = None
        self.exit_code: int | None = None

    def __enter__(self) -> Installation:
        try:
            self._start()
            self._await_site()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def password(self) -> str:
        """Of the account `admin`, as it was shown."""
        found = _PASSWORD.search(self.log.read_text(errors="replace"))
        if found is None:
            raise SoakError("The run did not show the first account's password.")
        return found[1]

    def warnings(self) -> list[str]:
        """The lines that tell of something wrong, as they were written."""
        lines = self.log.read_text(errors="replace").splitlines()
        return [line for line in lines if _WRONG.search(line)]

    def broker_errors(self) -> int:
        """How many lines of the broker's log are errors."""
        logs = (self.folder / "broker" / "log").glob("*@localhost.log")
        texts = (path.read_text(errors="replace") for path in logs)
        return sum(len(_BROKER_WRONG.findall(text)) for text in texts)

    def stop(self) -> None:
        """Ask it to stop, as Ctrl-C does; kill it after a minute."""
        if self.process is None or self.exit_code is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.exit_code = self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            # Its children end with it: the kernel sees to that.
            self.process.kill()
            self.exit_code = self.process.wait()

    def _start(self) -> None:
        variables = {**os.environ, "DELAYBOARD_VAR": str(self.folder), "PYTHONUNBUFFERED": "1"}
        for name in ("DATABASE_URL", "EVENT_LOG", "BROKER", "MANAGEMENT", "DEBUG"):
            variables.pop(name, None)
        run = (sys.executable, str(ROOT / "manage.py"), "run", "--port", str(self.port))
        descriptor = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as output:
            self.process = subprocess.Popen(
                ("setpriv", "--pdeathsig", "TERM", *run),
                env=variables,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _await_site(self) -> None:
        assert self.process is not None
        deadline = time.monotonic() + START_SECONDS
        while not answers(self.port):
            if self.process.poll() is not None or time.monotonic() > deadline:
                tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])
                raise SoakError(f"The site does not come up:\n{tail}")
            if self._stop.wait(0.2):
                raise Interrupted("It was interrupted before the site was up.")
