"""Which bindings are replaced just now, so that nobody may declare them."""

from __future__ import annotations

from delayboard.models import Interception
from delayboard.models.scheduled_change import REPLACING
from topology.definitions import Definitions
from topology.models import Broker


def without_intercepted(declares: Definitions, broker: Broker) -> Definitions:
    """What of it may be declared: beside an interception a binding would double each message."""
    rows = Interception.objects.filter(broker=broker, state__in=REPLACING)
    return declares.without({row.objects_of_broker.binding.identity for row in rows})
