"""What a use found in a vhost lacks of a whole one, in sentences."""

from __future__ import annotations

from topology.definitions import Binding, Definitions, Queue, Thing


def lacking(wanted: Definitions, found: Definitions) -> tuple[str, ...]:
    """One sentence for each wanted thing that is missing or was declared differently."""
    return tuple(sentence for thing in wanted if (sentence := _sentence(thing, found)))


def _sentence(wanted: Thing, found: Definitions) -> str:
    there = found.get(wanted.identity)
    if there is None:
        return f"The {_title(wanted)} is missing."
    return "" if _plain(there) == _plain(wanted) else f"The {_title(wanted)} is another than usual."


def _plain(thing: Thing) -> Thing:
    """An absent queue type is the classic one."""
    return thing.with_type() if isinstance(thing, Queue) else thing


def _title(thing: Thing) -> str:
    if isinstance(thing, Binding):
        kind = "queue" if thing.destination_is_queue else "exchange"
        key = f" with the key “{thing.routing_key}”" if thing.routing_key else ""
        return f"binding from “{thing.source}” to the {kind} “{thing.destination}”{key}"
    return f"{'queue' if isinstance(thing, Queue) else 'exchange'} “{thing.name}”"
