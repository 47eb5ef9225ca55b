"""Nodes that are killed, as a power cut would."""

from __future__ import annotations

from delayboard.demo.node import PrivateNode
from tests.builders import eventually


def await_kept(node: PrivateNode, queue: str, kind: str) -> None:
    """Await that a new quorum queue outlives a kill of its node.

    Ra writes down a second later which queue a folder belongs to. Killed before, the node begins
    the queue anew when it comes back, empty (“name_not_registered”): tried on 4.3.6, which had
    confirmed 300 messages; rabbitmq-server issue 15725.
    """
    if kind != "quorum":
        return

    def is_kept() -> bool:
        names = (node.folder / "data").rglob("names.dets")
        return any(queue.encode() in file.read_bytes() for file in names)

    eventually(is_kept, f"{queue} is in Ra's directory")
