"""Finds out which addresses of clusters do not answer, for all processes."""

from __future__ import annotations

from collections.abc import Callable

from topology.models import Broker
from topology.operations.connect import check_addresses, has_several

EVERY_SECONDS = 4.0


def watch_addresses(*, alive: Callable[[], None], **_: object) -> dict[str, object]:
    """Check the brokers with several addresses; returns how many addresses do not answer.

    With one address the polls of the broker say as much.
    """
    silent = 0
    for broker in Broker.objects.all():
        if has_several(broker):
            if check_addresses(broker):
                broker.refresh_from_db(fields=["silent"])
            silent += len(broker.silent)
        alive()
    return {"silent addresses": silent}
