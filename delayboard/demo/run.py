"""What `make run` keeps alive: a broker of its own, the site, the worker, demo traffic.

Each child has a process group of its own, and the kernel kills it when the thread that started it
ends, so nothing that was started here outlives it.
"""

from __future__ import annotations

import fcntl
import http.client
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from types import FrameType
from typing import IO

from delayboard.demo.node import NodeError, PrivateNode
from delayboard.demo.ports import is_free
from topology.broker.address import parse_address

TICK_SECONDS = 0.25
LONGEST_PAUSE_SECONDS = 30.0
# Seconds after which a child has recovered: its next end counts as the first.
STEADY_SECONDS = 60.0
# Seconds in which the output of a child that has ended is read to its end.
LAST_LINES_SECONDS = 1.0


class CannotRun(Exception):
    """Nothing was started; the message is one sentence for the person at the terminal."""


@dataclass(frozen=True)
class BrokerUrls:
    """Where a broker is: its AMQP URL with credentials and vhost, its management URLs."""

    amqp: str
    management: str


@dataclass(frozen=True)
class Child:
    """One process to keep alive: its name in the output, its command, its time to end."""

    name: str
    command: tuple[str, ...]
    stop_seconds: float


def children(
    manage: Sequence[str], port: int, *, host: str = "127.0.0.1", with_traffic: bool
) -> tuple[Child, ...]:
    """Return the processes in the order in which they start; they stop in the reverse order."""

    def child(name: str, stop_seconds: float, *arguments: str) -> Child:
        # KILL and not TERM: a child busy in C code would outlive its parent by a long time.
        command = ("setpriv", "--pdeathsig", "KILL", *manage, *arguments)
        return Child(name, command, stop_seconds)

    site = child("site", 3.0, "serve", "--host", host, "--port", str(port))
    worker = child("worker", 9.0, "worker")
    traffic = child("traffic", 2.0, "run_demo_traffic")
    return (site, worker, traffic) if with_traffic else (site, worker)


def pause(ends: int) -> float:
    """Return the seconds to wait before the next start, after `ends` ends in a row (1 or more)."""
    return min(2.0 ** (ends - 1), LONGEST_PAUSE_SECONDS)


def own_broker(amqp: str, management: str) -> BrokerUrls | None:
    """Return the operator's broker, or None for the private one.

    Without a management address it is that of the same hosts. Raises CannotRun for a management
    address alone, AddressError.
    """
    if management and not amqp:
        raise CannotRun(
            "The management address is not enough. Add the broker's address: "
            "BROKER=amqp://user:password@host/vhost."
        )
    if not amqp:
        return None
    nodes = parse_address(amqp, management).management_nodes
    return BrokerUrls(amqp, ",".join(one.management_url for one in nodes))


@contextmanager
def lock_installation(var: Path) -> Iterator[None]:
    """Hold the lock of this installation. Raises CannotRun when another run holds it."""
    var.mkdir(parents=True, exist_ok=True)
    with (var / "run.lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise CannotRun(
                f"Delayboard already runs in this folder (process {lock.read().strip()}). "
                "Stop that process first."
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def require_free_port(port: int) -> None:
    """Raise CannotRun when something listens on `port` already."""
    if not is_free(port):
        raise CannotRun(
            f"Another program uses port {port}. Choose another port: make run PORT={port + 1}."
        )


@contextmanager
def raise_on_interrupt() -> Iterator[None]:
    """Turn the first SIGINT or SIGTERM into KeyboardInterrupt and ignore the later ones."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        for name in (signal.SIGINT, signal.SIGTERM):
            signal.signal(name, lambda *_: None)
        raise KeyboardInterrupt

    before = {name: signal.signal(name, interrupt) for name in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


def keep_running(
    node: PrivateNode | None, wanted: Sequence[Child], port: int, first_page: str
) -> None:
    """Start the children and keep them and the node alive until KeyboardInterrupt; stop them."""
    keepers = [Keeper(child) for child in wanted]
    is_announced = False
    try:
        for keeper in keepers:
            keeper.start()
        while True:
            time.sleep(TICK_SECONDS)
            if node is not None and not node.is_running:
                print_line("The broker ended and restarts")
                try:
                    node.stop()
                    node.start()
                except NodeError as error:
                    print_line(str(error))
                    time.sleep(pause(3))
            if not is_announced and answers(port):
                is_announced = True
                page = f"http://127.0.0.1:{port}{first_page}"
                print_line(f"\nDelayboard is at {page} (Ctrl-C stops it)\n")
    finally:
        for keeper in reversed(keepers):
            keeper.stop()


def answers(port: int) -> bool:
    """Tell whether an HTTP server answers on 127.0.0.1:`port`, whatever it answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/")
        connection.getresponse().read()
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    return True


class Keeper(Thread):
    """Keeps a child running, with its name in front of each of its lines."""

    def __init__(self, child: Child) -> None:
        super().__init__(daemon=True)
        self.child = child
        self._ending = Event()
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        ends = 0
        while not self._ending.is_set():
            began = time.monotonic()
            code = self._run_once()
            if self._ending.is_set():
                return
            ends = 1 if time.monotonic() - began > STEADY_SECONDS else ends + 1
            print_line(
                f"{self.child.name} ended with code {code} and restarts in {pause(ends):.0f} s"
            )
            self._ending.wait(pause(ends))

    def stop(self) -> None:
        """End the process group: asked first, killed when its time is over."""
        self._ending.set()
        if self.ident is None:
            return
        if self._process is not None:
            self._process.terminate()
        self.join(self.child.stop_seconds)
        if self.is_alive() and self._process is not None:
            self._process.kill()
        self.join()

    def _run_once(self) -> int:
        """Start the process, wait for its end, and kill what it left behind in its group."""
        self._process = process = subprocess.Popen(
            self.child.command,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        if self._ending.is_set():
            process.terminate()
        reader = Thread(target=self._print, args=(process.stdout,), daemon=True)
        reader.start()
        code = process.wait()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        reader.join(LAST_LINES_SECONDS)
        return code

    def _print(self, output: IO[bytes]) -> None:
        with output:
            for line in output:
                print_line(f"{self.child.name:<7} | {line.decode(errors='replace').rstrip()}")


def print_line(text: str) -> None:
    """Print for the person at the terminal."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
