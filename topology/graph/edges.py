"""The arrows between exchanges and queues: bindings, dead-lettering, alternates, forwarders."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from topology.definitions import Binding, Definitions, Queue
from topology.delays import format_delay
from topology.message import Forwarder
from topology.structure.find_chains import may_delay

EMPTY_KEY = "(empty key)"
DEFAULT = "exchange/"


@dataclass(frozen=True)
class Edge:
    """An arrow between two node ids.

    `what` describes it in words; `keys` are the binding keys, or the dead-letter routing key (none
    when the message keeps its own); `label` is the text on the arrow.
    """

    source: str
    target: str
    kind: Literal["binding", "dead-letter", "alternate", "forwarder"]
    what: str
    keys: tuple[str, ...] = ()
    label: str = ""


def edges_of(definitions: Definitions) -> tuple[Edge, ...]:
    """Every arrow, bindings of the same two ends merged into one."""
    dying = [edge for queue in definitions.queues for edge in _death(queue)]
    through_default = {key for edge in dying if edge.target == DEFAULT for key in edge.keys if key}
    edges = [*_bindings(definitions), *dying, *_alternates(definitions)]
    edges.extend(
        Edge(DEFAULT, f"queue/{name}", "binding", "binds by name", (name,), name)
        for name in through_default
    )
    return tuple(sorted(set(edges), key=lambda edge: (edge.source, edge.target, edge.kind)))


def forwarder_edges(forwarders: Iterable[Forwarder]) -> tuple[Edge, ...]:
    """The edges that definitions do not contain: where a consumer republishes messages."""
    return tuple(
        Edge(f"queue/{forwarder.queue}", f"queue/{queue}", "forwarder", what, label=label)
        for forwarder in forwarders
        for queue, what, label in (
            (forwarder.onward, "forwarder forwards due messages", "when due"),
            (forwarder.back, "forwarder returns messages that are not due", "not yet due"),
        )
    )


def _bindings(definitions: Definitions) -> list[Edge]:
    types = {exchange.name: exchange.type for exchange in definitions.exchanges}
    keys: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for binding in definitions.bindings:
        kind = "queue" if binding.destination_is_queue else "exchange"
        ends = f"exchange/{binding.source}", f"{kind}/{binding.destination}"
        keys[ends].add(_key(binding, types.get(binding.source, "")))
    return [
        Edge(source, target, "binding", "binds to", named, ", ".join(named))
        for (source, target), found in keys.items()
        for named in [tuple(sorted(found - {""}))]
    ]


def _key(binding: Binding, exchange_type: str) -> str:
    """What a message must match; "" where everything passes."""
    if exchange_type == "fanout":
        return ""
    if exchange_type == "headers":
        return ", ".join(f"{name}={value}" for name, value in binding.arguments.items())
    return binding.routing_key or EMPTY_KEY


def _death(queue: Queue) -> list[Edge]:
    exchange = queue.dead_letter_exchange
    if exchange is None:
        return []
    key = queue.dead_letter_routing_key
    if queue.message_ttl is not None:
        when = f"after {format_delay(queue.message_ttl)}"
    elif may_delay(queue):
        when = "expired"
    else:
        is_bounded = {"x-max-length", "x-max-length-bytes"} & set(queue.arguments)
        when = "rejected or full" if is_bounded else "rejected"
    has_ttl = queue.message_ttl_ms is not None
    what = f"dead-letters {when}" if has_ttl else f"dead-letters when {when}"
    ends = f"queue/{queue.name}", f"exchange/{exchange}"
    label = when if key is None else f"{when}, as {key or EMPTY_KEY}"
    return [Edge(*ends, "dead-letter", what, () if key is None else (key,), label)]


def _alternates(definitions: Definitions) -> list[Edge]:
    found = []
    for exchange in definitions.exchanges:
        if (alternate := exchange.arguments.text("alternate-exchange")) is not None:
            ends = f"exchange/{exchange.name}", f"exchange/{alternate}"
            found.append(Edge(*ends, "alternate", "alternate exchange", label="unroutable"))
    return found
