"""A node that is stopped in the middle of what it does: it neither answers nor goes away."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from delayboard.demo.node import PrivateNode
from delayboard.demo.processes import marked_processes, send, thread_states
from tests.builders import eventually
from topology import snapshots
from topology.models import Broker
from topology.snapshots import Latest


def erlang_processes(node: PrivateNode) -> list[int]:
    """The virtual machine of the node and nothing else: known by its folder."""
    found = []
    for process in marked_processes(node.folder):
        # One may end while we look.
        with suppress(OSError):
            if Path(f"/proc/{process}/comm").read_text().strip() == "beam.smp":
                found.append(process)
    return found


def is_stopped(process: int) -> bool:
    """Whether the kernel has stopped every thread of the process."""
    return all(state == "T" for state in thread_states(process))


@contextmanager
def frozen(node: PrivateNode) -> Iterator[None]:
    stopped = erlang_processes(node)
    assert stopped
    # Among them may be a helper that has not taken its own name yet, and ends soon.
    for pid in stopped:
        send(pid, signal.SIGSTOP)
    # Each thread stops when it is next scheduled, and one of them might still answer.
    eventually(lambda: all(is_stopped(pid) for pid in stopped), "every thread of it is stopped")
    try:
        yield
    finally:
        for pid in stopped:
            send(pid, signal.SIGCONT)


def answered_before(broker: Broker, known: Latest) -> None:
    """As if the last poll had gone well, a minute ago: the next page asks and expects an answer."""
    a_minute_ago = datetime.now(UTC) - timedelta(minutes=1)
    snapshots._latest[broker.pk] = replace(known, tried_at=a_minute_ago)
    snapshots._polls.pop(broker.pk, None)
