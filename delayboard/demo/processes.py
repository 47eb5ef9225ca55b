"""The processes of a node: recognized by a mark in their environment, never by their name."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

MARK = "DELAYBOARD_NODE"


def marked_processes(folder: Path) -> Iterator[int]:
    """Yield the ids of the running processes that were started for the node in `folder`."""
    mark = f"{MARK}={folder.resolve()}".encode()
    for process in list_processes():
        try:
            variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
        except OSError:  # gone meanwhile, or another user's
            continue
        if mark in variables:
            yield process


def end(processes: list[int], patience: float) -> None:
    """Ask `processes` to stop; kill those that are still there after `patience` seconds."""
    for process in processes:
        send(process, signal.SIGTERM if patience else signal.SIGKILL)
    deadline = time.monotonic() + patience
    while any(map(_is_alive, processes)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for process in filter(_is_alive, processes):
        send(process, signal.SIGKILL)
    deadline = time.monotonic() + 2
    while any(map(_is_alive, processes)) and time.monotonic() < deadline:
        time.sleep(0.01)


def send(process: int, number: signal.Signals) -> None:
    """Signal `process`; it is no error when it is gone already."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, number)


def thread_states(process: int) -> list[str]:
    """The state of each of its threads, a message as in proc(5). Raises OSError as one ends."""
    return [stat_fields(file)[0] for file in Path(f"/proc/{process}/task").glob("*/stat")]


def list_processes() -> Iterator[int]:
    """The ids of all running processes."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            yield int(entry.name)


def _is_alive(process: int) -> bool:
    """Tell whether a thread of `process` still runs, and with it holds files and ports.

    Of a killed Erlang the first thread is a zombie while others still end.
    """
    try:
        states = thread_states(process)
    except OSError:  # a thread ended while we looked
        return True
    return any(state not in "ZX" for state in states)


def stat_fields(stat: Path) -> list[str]:
    """Return what follows the program's name in a stat file: state, parent, ... (proc(5))."""
    return stat.read_text().rpartition(")")[2].split()
