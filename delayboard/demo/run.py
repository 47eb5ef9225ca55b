"""What `make run` keeps alive: a broker of its own, the site, the worker, demo traffic.

The parent only watches. Each child has a process group of its own and is killed by the kernel when
the parent dies, so nothing that was started here outlives it.
"""

from __future__ import annotations

import fcntl
import http.client
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from delayboard.demo.node import NodeError, PrivateNode
from delayboard.demo.ports import is_free
from topology.broker.address import default_management_url

TICK_SECONDS = 0.25
LONGEST_PAUSE_SECONDS = 30.0
# A child that ran this long has recovered: its next end counts as the first.
STEADY_SECONDS = 60.0


class CannotRun(Exception):
    """Nothing was started; the message is one sentence for the person at the terminal."""


@dataclass(frozen=True)
class BrokerUrls:
    """Where a broker is: its AMQP URL with credentials and vhost, its management URL."""

    amqp: str
    management: str


@dataclass(frozen=True)
class Child:
    """One process to keep alive: its name in the output, its command, its time to end."""

    name: str
    command: tuple[str, ...]
    stop_seconds: float


def children(manage: Sequence[str], port: int, *, with_traffic: bool) -> tuple[Child, ...]:
    """Return the processes in the order in which they start; they stop in the reverse order."""

    def child(name: str, stop_seconds: float, *arguments: str) -> Child:
        # KILL and not TERM: a child busy in C code would outlive its parent by a long time.
        command = ("setpriv", "--pdeathsig", "KILL", *manage, *arguments)
        return Child(name, command, stop_seconds)

    site = child("site", 3.0, "serve", "--port", str(port))
    worker = child("worker", 9.0, "worker")
    traffic = child("traffic", 2.0, "run_demo_traffic")
    return (site, worker, traffic) if with_traffic else (site, worker)


def pause(ends: int) -> float:
    """Return the seconds to wait before the next start, after `ends` ends in a row (1 or more)."""
    return min(2.0 ** (ends - 1), LONGEST_PAUSE_SECONDS)


def add_prefix(name: str, width: int, line: bytes) -> str:
    """Return one line of a child's output with its name in front."""
    return f"{name:<{width}} | {line.decode(errors='replace').rstrip()}"


def own_broker(amqp: str, management: str) -> BrokerUrls | None:
    """Return the operator's broker, or None for the private one.

    Without a management address it is that of the same host. Raises CannotRun for a management
    address alone, AddressError.
    """
    if management and not amqp:
        raise CannotRun(
            "The management address is not enough. Add the broker's address: "
            "BROKER=amqp://user:password@host/vhost."
        )
    if not amqp:
        return None
    return BrokerUrls(amqp, management or default_management_url(amqp))


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


class Running:
    """A child with its process, its unfinished line and its history of ends."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.process: subprocess.Popen[bytes] | None = None
        self.rest = b""
        self.ends = 0
        self.started_at = 0.0
        self.start_at = 0.0

    def start(self) -> None:
        """Start the process in a group of its own, its output in one pipe."""
        self.started_at = time.monotonic()
        self.process = subprocess.Popen(
            self.child.command,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        os.set_blocking(self._output(), False)

    def _output(self) -> int:
        assert self.process is not None
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    def lines(self) -> list[bytes]:
        """Return the whole lines that the process has written since the last call."""
        if self.process is None:
            return []
        try:
            while chunk := os.read(self._output(), 65536):
                self.rest += chunk
        except BlockingIOError:
            pass
        *whole, self.rest = self.rest.split(b"\n")
        return whole

    def exit_code(self) -> int | None:
        """Return the exit code of a process that has ended, else None."""
        return None if self.process is None else self.process.poll()

    def plan_next_start(self) -> float:
        """Clear up after a process that has ended; return the seconds until the next start."""
        now = time.monotonic()
        self.ends = 1 if now - self.started_at > STEADY_SECONDS else self.ends + 1
        self.start_at = now + pause(self.ends)
        self._forget()
        return pause(self.ends)

    def stop(self) -> None:
        """End the process group: asked first, killed when its time is over."""
        if self.process is None:
            return
        self.process.terminate()
        deadline = time.monotonic() + self.child.stop_seconds
        while self.process.poll() is None and time.monotonic() < deadline:
            # A child that cannot write its last lines would not end.
            self.lines()
            time.sleep(0.02)
        self._forget()

    def _forget(self) -> None:
        assert self.process is not None
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.process, self.rest = None, b""


class ManagedProcesses:
    """The node, if there is one, and the children: started in order, stopped in reverse."""

    def __init__(self, node: PrivateNode | None, wanted: Sequence[Child], port: int) -> None:
        self.node = node
        self.running = [Running(child) for child in wanted]
        self.port = port
        self.width = max(len(child.name) for child in wanted)
        self.is_announced = False
        # The page to begin with.
        self.first_page = "/"

    def watch(self) -> None:
        """Start everything and keep it alive until KeyboardInterrupt."""
        for running in self.running:
            running.start()
        while True:
            self._await_output()
            for running in self.running:
                self._supervise(running)
            if self.node is not None and not self.node.is_running:
                self._restart_node(self.node)
            if not self.is_announced and answers(self.port):
                self.is_announced = True
                page = f"http://127.0.0.1:{self.port}{self.first_page}"
                print_line(f"\nDelayboard is at {page} (Ctrl-C stops it)\n")

    def stop(self) -> None:
        """Stop what is running: traffic, worker, site, node."""
        for running in reversed(self.running):
            running.stop()
        if self.node is not None:
            self.node.stop()

    def _await_output(self) -> None:
        with selectors.DefaultSelector() as selector:
            for running in self.running:
                if running.process is not None and running.process.stdout is not None:
                    selector.register(running.process.stdout, selectors.EVENT_READ)
            if selector.get_map():
                selector.select(TICK_SECONDS)
            else:
                time.sleep(TICK_SECONDS)

    def _supervise(self, running: Running) -> None:
        name = running.child.name
        # Asked before the output is read, so that the last words of a process are not lost.
        code = running.exit_code()
        for line in running.lines():
            print_line(add_prefix(name, self.width, line))
        if code is not None:
            seconds = running.plan_next_start()
            print_line(f"{name} ended with code {code} and restarts in {seconds:.0f} s")
        if running.process is None and time.monotonic() >= running.start_at:
            running.start()

    def _restart_node(self, node: PrivateNode) -> None:
        print_line("The broker ended and restarts")
        try:
            node.stop()
            node.start()
        except NodeError as error:
            print_line(str(error))
            time.sleep(pause(3))


def print_line(text: str) -> None:
    """Print for the person at the terminal."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
