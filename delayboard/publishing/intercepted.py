"""Which bindings are replaced just now, so that nobody may declare them."""

from __future__ import annotations

from delayboard.models import Interception
from delayboard.models.scheduled_change import REPLACING
from topology.definitions import Definitions
from topology.models import Broker


def without_intercepted(declares: Definitions, broker: Broker) -> Definitions:
    """What of it may be declared: beside an interception a binding would double each message."""
    rows = Interception.objects.filter(broker=broker, state__in=REPLACING)
    replaced = (one for row in rows for one in row.objects_of_broker.bindings)
    return declares.without({one.identity for one in replaced})
