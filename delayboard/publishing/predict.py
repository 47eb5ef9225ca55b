"""Where a message would arrive and when: what the publish page shows before sending."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from topology.definitions import Definitions
from topology.delays import milliseconds
from topology.message import Forwarder
from topology.routing.walk import Walk, walk
from topology.snapshot import Snapshot

NOTHING = Definitions()


@dataclass(frozen=True)
class Prediction:
    """`arrives_after` and `queue` of the first delivery, None and "" when it would be lost.

    `found` is what it was worked out on.
    """

    walk: Walk
    found: Definitions
    sentence: str
    arrives_after: timedelta | None
    queue: str

    @property
    def is_good(self) -> bool:
        return self.arrives_after is not None

    @property
    def hops(self) -> list[dict[str, Any]]:
        """The queues of the copy that arrives first, to be stored: when it reaches each (ms)."""
        first = min(self.walk.delivered, key=lambda outcome: outcome.after, default=None)
        return [
            {"queue": hop.queue, "after_ms": milliseconds(hop.after), "is_wait": bool(hop.wait)}
            for hop in (first.hops if first else ())
        ]


def predict(
    snapshot: Snapshot,
    exchange: str,
    routing_key: str,
    *,
    headers: dict[str, Any] | None = None,
    expiration: str | None = None,
    declares: Definitions = NOTHING,
    forwarders: Sequence[Forwarder] = (),
    now_ms: int = 0,
    note: str = "",
) -> Prediction:
    """Walk the current definitions plus what `declares` adds, without our own taps.

    `forwarders` are assumed to run; times in `headers` count from `now_ms`, the time of the
    publish. `note` begins the sentence.
    """
    walked = walk(
        snapshot.definitions.without_taps() | declares,
        exchange,
        routing_key,
        version=snapshot.version_tuple,
        headers=headers,
        expiration=expiration,
        consumed=snapshot.consumed,
        forwarders=forwarders,
        now_ms=now_ms,
    )
    first = min(walked.delivered, key=lambda outcome: outcome.after, default=None)
    return Prediction(
        walk=walked,
        found=snapshot.definitions,
        sentence=" ".join([note, *(outcome.sentence for outcome in walked.outcomes)]).strip(),
        arrives_after=first.after if first else None,
        queue=first.queue if first else "",
    )
