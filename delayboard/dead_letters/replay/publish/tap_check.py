"""Whether a real queue took what was published where a tap of ours is bound."""

from __future__ import annotations

from topology.broker.management.client import Management
from topology.broker.management.refresh import refresh_route
from topology.definitions import Definitions
from topology.message import Publish
from topology.provisioning.taps import lost_without_taps


class TapCheck:
    """At an exchange with a tap of ours a confirm may be the tap's alone, so it is looked again.

    Each exchange is looked at once, and each key walked once, unless headers decide there.
    """

    def __init__(self, management: Management, known: Definitions) -> None:
        self._management, self._known = management, known
        self._refreshed: dict[str, Definitions] = {}
        self._walked: dict[tuple[str, str], str] = {}

    def explain_loss(self, publish: Publish) -> str:
        """Why no real queue can have taken it; "" when one can. Raises BrokerError."""
        along = self._refresh(publish.exchange)
        key = (publish.exchange, publish.routing_key)
        if any(exchange.type == "headers" for exchange in along.exchanges):
            return self._walk(along, publish)
        if key not in self._walked:
            self._walked[key] = self._walk(along, publish)
        return self._walked[key]

    def _refresh(self, exchange: str) -> Definitions:
        if exchange not in self._refreshed:
            found = refresh_route(self._management, self._known, exchange)
            self._refreshed[exchange] = found.without_taps()
        return self._refreshed[exchange]

    def _walk(self, along: Definitions, publish: Publish) -> str:
        why = lost_without_taps(along, publish)
        return f"No queue but Delayboard's own tap took it: {why}." if why else ""
