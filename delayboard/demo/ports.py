"""TCP ports for nodes of our own: free ones, and held so that no other node of ours takes them."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

# Ports below the range from which Linux takes those for outgoing connections (32768 up): a port
# kept for the next start is then seldom taken meanwhile.
_PORT_RANGE = range(20000, 32700)
# Seconds that a killed process may take until its ports are free.
CLOSING_SECONDS = 10.0


@dataclass(frozen=True)
class Ports:
    """TCP ports on 127.0.0.1, all different."""

    amqp: int
    management: int
    prometheus: int
    distribution: int
    epmd: int


class Holder:
    """Holds ports by locked files, as long as it lives: also while nothing listens on them.

    A node takes seconds until it listens, and others choose theirs meanwhile.
    """

    def __init__(self) -> None:
        self._open: dict[int, int] = {}
        weakref.finalize(self, _close, self._open)

    def take(self, port: int) -> bool:
        """Whether the port is free, and held by nobody else; then it is ours.

        One that is ours already is waited for: a node that was killed may still be closing it.
        """
        if port in self._open:
            deadline = time.monotonic() + CLOSING_SECONDS
            while not is_free(port):
                if time.monotonic() > deadline:
                    return False
                time.sleep(0.05)
            return True
        if not is_free(port):
            return False
        folder = Path(tempfile.gettempdir(), f"delayboard-ports-{os.getuid()}")
        folder.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(folder / str(port), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._open[port] = descriptor
        return True


def _close(descriptors: dict[int, int]) -> None:
    for descriptor in descriptors.values():
        os.close(descriptor)


def choose_ports(kept: Mapping[str, int], path: Path, take: Callable[[int], bool]) -> Ports:
    """Return the ports of `kept` that can still be taken, and fresh ones for the rest.

    `path` seeds nothing but the starting point, so that two nodes that are started at the same
    moment look in different places.
    """
    chosen: dict[str, int] = {}
    candidates = random.Random(f"{path}{time.time_ns()}").sample(_PORT_RANGE, len(_PORT_RANGE))
    fresh = (port for port in candidates if port not in kept.values() and take(port))
    for field in fields(Ports):
        port = kept.get(field.name)
        chosen[field.name] = port if port is not None and take(port) else next(fresh)
    return Ports(**chosen)


def is_free(port: int) -> bool:
    """Tell whether nothing listens on 127.0.0.1:`port` (a port in TIME_WAIT counts as free)."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
