"""The prediction for a message as an operator publishes it."""

from __future__ import annotations

import time

from delayboard.publishing.predict import Prediction, predict
from delayboard.publishing.send import OutgoingMessage
from topology.models import Broker
from topology.operations.topology_rows import forwarders_at
from topology.snapshot import Snapshot


def predict_message(broker: Broker, snapshot: Snapshot, outgoing: OutgoingMessage) -> Prediction:
    """Published at this moment."""
    now_ms = time.time_ns() // 1_000_000
    return predict(
        snapshot,
        outgoing.exchange,
        outgoing.routing_key,
        headers=outgoing.make_headers(now_ms),
        expiration=outgoing.properties.get("expiration"),
        declares=outgoing.declares,
        forwarders=forwarders_at(broker),
        now_ms=now_ms,
        note=outgoing.note,
    )
