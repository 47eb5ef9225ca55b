"""A restart of the node that the tests share, which costs a start less than a node of their own."""

from __future__ import annotations

import json

from delayboard.demo.node import PrivateNode
from delayboard.demo.ports import is_free
from delayboard.demo.processes import marked_processes


def listening(node: PrivateNode) -> list[int]:
    """Return those of the node's ports on which something listens."""
    ports = json.loads((node.folder / "node.json").read_text())
    return [port for port in ports.values() if not is_free(port)]


def restart(node: PrivateNode) -> None:
    """Stop the node and start it: nothing of it runs between, and its addresses stay."""
    before = node.amqp_url, node.management_url
    assert len(listening(node)) == 5
    node.stop()
    try:
        assert not node.is_running
        assert list(marked_processes(node.folder)) == []
        assert listening(node) == []
    finally:
        node.start()
    assert (node.amqp_url, node.management_url) == before
