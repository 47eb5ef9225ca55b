"""What recognition makes of the objects it finds: uses, and what is missing of one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from typing import Any

from topology.definitions import Binding, BrokerObject, Definitions, Identity, Queue
from topology.patterns.pattern import Use


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


def find_foreign(
    kind: str,
    by_end: Mapping[str, Sequence[Queue]],
    taken: Set[str],
    remark: Callable[[str, Sequence[Queue]], tuple[str, ...]] = lambda end, queues: (),
) -> Iterator[Use]:
    """A use for each end of these queues, named after it, or after a queue if that is taken."""
    for end, queues in sorted(by_end.items()):
        names = (end, *(queue.name for queue in queues))
        free = next((name for name in names if name and name not in taken), "")
        if free:
            claims = frozenset(queue.identity for queue in queues)
            yield Use(kind, free, None, claims, (), remark(end, queues), has_foreign_names=True)
            taken = taken | {free}


def make_managed_use(
    kind: str, name: str, params: Any, wanted: Definitions, found: Definitions
) -> Use:
    """A use with parameters; it claims what is there of its definitions."""
    claims = frozenset(obj.identity for obj in wanted if found.get(obj.identity))
    return Use(kind, name, params, claims, find_missing(wanted, found))


def make_unmanaged_use(
    kind: str,
    name: str,
    found: Definitions,
    queues: Collection[str],
    exchanges: Collection[str] = (),
) -> Use:
    """A use with what is there of these queues, these exchanges and the bindings between them."""
    claimed: set[Identity] = {("queue", queue) for queue in queues}
    claimed.update(("exchange", exchange) for exchange in exchanges)
    for exchange in exchanges:
        for binding in found.leaving(exchange):
            others = queues if binding.destination_is_queue else exchanges
            if binding.destination in others:
                claimed.add(binding.identity)
    return Use(kind, name, None, frozenset(one for one in claimed if found.get(one)))
