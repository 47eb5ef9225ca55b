"""A node that has an alarm: it takes no publishes."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from delayboard.demo import node as nodes
from delayboard.demo.node import PrivateNode
from tests.brokers import call_api

CONTROL = "/usr/lib/rabbitmq/bin/rabbitmqctl"
# What raises the alarm, and what ends it.
COMMANDS = {
    "memory": (
        ("set_vm_memory_high_watermark", "0.000001"),
        ("set_vm_memory_high_watermark", "absolute", "512MB"),
    ),
    "disk": (("set_disk_free_limit", "900000GB"), ("set_disk_free_limit", "50MB")),
}


@contextmanager
def alarmed(node: PrivateNode, resource: str) -> Iterator[None]:
    """The node has the alarm of "memory" or "disk" for the length of a block."""
    on, off = COMMANDS[resource]
    control(node, *on)
    try:
        yield
    finally:
        control(node, *off)
        assert call_api(node, "GET", "health/checks/alarms")["status"] == "ok"


def control(node: PrivateNode, *arguments: str) -> None:
    """Run rabbitmqctl as the node's own environment has it."""
    place = node._place
    subprocess.run(
        place.command(CONTROL, "-n", f"{node.name}@localhost", *arguments),
        env=nodes.environment(place, node.name, node._known_ports()),
        cwd=node.folder,
        check=True,
        capture_output=True,
    )
