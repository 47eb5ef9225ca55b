"""One random vhost with one publish into it, and what the walk makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from topology.definitions import Arguments, Binding, Definitions, Exchange, Queue
from topology.routing.context import Consumer
from topology.routing.matching.index import Index
from topology.routing.outcome import Walk
from topology.routing.walk import walk

# Stands in every name of a case, so that many can be put into one vhost.
MARK = "~"


@dataclass(frozen=True)
class Case:
    definitions: Definitions
    exchange: str
    routing_key: str
    headers: Mapping[str, Any] = field(default_factory=dict)
    expiration: str | None = None
    consumers: Mapping[str, Consumer] = field(default_factory=dict)

    def named(self, prefix: str) -> Case:
        """The same with all its names told apart from those of other cases."""

        def renamed(value: Any) -> Any:
            if isinstance(value, str):
                return value.replace(MARK, prefix)
            if isinstance(value, Mapping):
                return {name: renamed(inner) for name, inner in value.items()}
            return [renamed(inner) for inner in value] if isinstance(value, list) else value

        def obj(found: Exchange | Queue | Binding) -> Exchange | Queue | Binding:
            arguments = Arguments(renamed(found.arguments))
            if isinstance(found, Exchange):
                return Exchange(
                    renamed(found.name), found.type, internal=found.internal, arguments=arguments
                )
            if isinstance(found, Queue):
                return Queue(renamed(found.name), arguments=arguments)
            return Binding(
                renamed(found.source),
                renamed(found.destination),
                renamed(found.routing_key),
                found.destination_is_queue,
                arguments,
            )

        return Case(
            Definitions.of(obj(found) for found in self.definitions),
            renamed(self.exchange),
            renamed(self.routing_key),
            renamed(self.headers),
            self.expiration,
            {renamed(queue): consumer for queue, consumer in self.consumers.items()},
        )

    def walked(self, found: Definitions | Index, version: tuple[int, ...]) -> Walk:
        return walk(
            found,
            self.exchange,
            self.routing_key,
            version=version,
            headers=self.headers,
            expiration=self.expiration,
            consumers=self.consumers,
        )
