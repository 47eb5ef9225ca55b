"""What a vhost lacks of the objects that parameters would declare."""

from __future__ import annotations

from topology.definitions import Binding, BrokerObject, Definitions, Queue


def find_missing(wanted: Definitions, found: Definitions) -> tuple[str, ...]:
    """One sentence for each wanted object that is missing or was declared differently."""
    return tuple(sentence for obj in wanted if (sentence := _explain_difference(obj, found)))


def _explain_difference(wanted: BrokerObject, found: Definitions) -> str:
    there = found.get(wanted.identity)
    if there is None:
        return f"The {_describe(wanted)} is missing."
    return (
        ""
        if _state_type(there) == _state_type(wanted)
        else f"The {_describe(wanted)} differs from the pattern."
    )


def _state_type(obj: BrokerObject) -> BrokerObject:
    """An absent queue type is the classic one."""
    return obj.with_type() if isinstance(obj, Queue) else obj


def _describe(obj: BrokerObject) -> str:
    if isinstance(obj, Binding):
        kind = "queue" if obj.destination_is_queue else "exchange"
        key = f" with the key “{obj.routing_key}”" if obj.routing_key else ""
        return f"binding from “{obj.source}” to the {kind} “{obj.destination}”{key}"
    return f"{'queue' if isinstance(obj, Queue) else 'exchange'} “{obj.name}”"
