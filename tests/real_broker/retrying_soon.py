"""A node whose at-least-once queues retry what they could not route after a second."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from delayboard.demo.node import PrivateNode
from tests.faults.alarms import control

# rabbit_fifo_dlx_worker.erl reads it when the queue is declared; 180,000 ms by default.
SETTING = "rabbit, dead_letter_worker_publisher_confirm_timeout"


@contextmanager
def retrying_soon(node: PrivateNode) -> Iterator[None]:
    """Queues that are declared within the block retry every second."""
    control(node, "eval", f"application:set_env({SETTING}, 1000).")
    try:
        yield
    finally:
        control(node, "eval", f"application:set_env({SETTING}, 180000).")
