"""Which discovered topologies and objects a page shows, from its address."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from django.http import HttpRequest

from topology.definitions import Binding, BrokerObject
from topology.patterns.pattern import Use
from topology.provisioning.recognition import Found


@dataclass(frozen=True)
class DiscoveredFilter:
    """What a page's address asks for: one kind, names that hold a text.

    `name` is that of one use alone, with its diagram.
    """

    kind: str = ""
    name: str = ""
    text: str = ""

    def holds(self, found: Found) -> bool:
        if self.kind and found.use.kind != self.kind:
            return False
        if self.name:
            return found.use.name == self.name
        return self._fits([found.use.name, *found.queues])

    def holds_use(self, use: Use) -> bool:
        """As `holds` does, by what it would claim."""
        queues = [identity[1] for identity in use.claims if identity[0] == "queue"]
        return self.kind in ("", use.kind) and self._fits([use.name, *queues])

    def matches_object(self, obj: BrokerObject) -> bool:
        names = (
            (obj.source, obj.destination, obj.routing_key)
            if isinstance(obj, Binding)
            else (obj.name,)
        )
        return self._fits(names)

    def _fits(self, names: Iterable[str]) -> bool:
        return not self.text or any(self.text in name.casefold() for name in names)


def read_filter(request: HttpRequest) -> DiscoveredFilter:
    return DiscoveredFilter(
        request.GET.get("kind", ""),
        request.GET.get("name", ""),
        request.GET.get("q", "").strip().casefold(),
    )
