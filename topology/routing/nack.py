"""What a nack says of a message, by the queues that it was routed to; pure.

RabbitMQ nacks a publish when one of its queues refused it or failed, although the others took it,
and when the only one failed after it took it. So a nack proves nothing, but in one case: the
message was routed to one queue, and that queue rejects messages because it is full. A classic
queue checks its limit before it takes a message, and of a quorum queue the publisher's channel
does, before it sends it (tried on 3.10.8, 4.0.5 and 4.3.6: tests/real_broker/test_nacks.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from topology.content.text import count_text
from topology.definitions import Queue, is_tap
from topology.routing.matching.match import Matched

# Names in a sentence.
NAMED = 3


class Nack(NamedTuple):
    """`is_refused`: no queue took the message. Otherwise it may have arrived."""

    is_refused: bool
    sentence: str


@dataclass(frozen=True)
class SeenQueue:
    """A queue right after the nack: `ready` messages, None where this is unknown. `is_down`: it
    takes no message, because its node is down or too few of its members run.
    """

    queue: Queue
    ready: int | None = None
    is_down: bool = False

    @property
    def rejects_when_full(self) -> bool:
        """Not with reject-publish-dlx: that dead-letters the message that it rejects."""
        overflow = self.queue.arguments.text("x-overflow")
        return overflow == "reject-publish" and self.queue.type in ("classic", "quorum")

    @property
    def most(self) -> int | None:
        return self.queue.arguments.number("x-max-length")

    @property
    def is_rejecting(self) -> bool:
        is_known = self.most is not None and self.ready is not None
        is_full = is_known and (self.ready or 0) >= (self.most or 0)
        return is_full and self.rejects_when_full and not self.is_down

    @property
    def trouble(self) -> str:
        """Why it does not take messages; "" when nothing shows it."""
        if self.is_down:
            return f"“{self.queue.name}” is not available"
        if self.is_rejecting:
            return f"“{self.queue.name}” is full and rejects messages"
        return ""


def explain_nack(matched: Matched, seen: Mapping[str, SeenQueue]) -> Nack:
    """`matched` is where the message was routed, taps included; `seen` are these queues.

    On any doubt about the route the message may have arrived.
    """
    is_certain = not (matched.unforeseeable or matched.storing)
    queues = [seen[name] for name in matched.queues if name in seen]
    troubled = [one for one in queues if one.trouble]
    if is_certain and len(matched.queues) == 1 and queues and queues[0].is_rejecting:
        name = queues[0].queue.name
        return Nack(
            True,
            f"The queue “{name}” is full and rejected the message. Consume its messages, or raise "
            "its maximum length.",
        )
    causes = [one.trouble for one in troubled] or ["a queue refused it or failed"]
    # One of several full queues may have become full by this message.
    is_alone = len(troubled) == 1 and troubled[0].is_rejecting
    refused = troubled[0].queue.name if is_alone else None
    others = [name for name in matched.queues if name != refused and not is_tap(name)]
    possible = [f"“{name}”" for name in others]
    places = f" in {_enumerate(possible)}" if possible and is_certain else ""
    return Nack(
        False,
        f"RabbitMQ rejected the message because {_enumerate(causes)}. It may have arrived{places}.",
    )


def _enumerate(parts: Sequence[str]) -> str:
    shown = list(parts[:NAMED])
    if more := len(parts) - len(shown):
        shown.append(f"{count_text(more)} more")
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))
