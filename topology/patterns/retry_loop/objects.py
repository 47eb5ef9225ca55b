"""What a retry loop consists of, and its parameters from what is there, whatever the names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from topology.definitions import (
    Arguments,
    ArgumentValue,
    Binding,
    Definitions,
    Exchange,
    Queue,
    is_tap,
)
from topology.delays import milliseconds
from topology.patterns.queue_types import read_type, type_arguments
from topology.patterns.retry_loop.params import EXCHANGE_TYPES, MOST_TIMEOUTS, Params, Timeout

_SPLITS = {kind: split for split, kind in EXCHANGE_TYPES.items()}
# A binding, and the dead queue to which it leads.
_Branch = tuple[Binding, Queue]


def definitions(params: Params) -> Definitions:
    return Definitions.of([*_exchanges(params), *_queues(params), *_bindings(params)])


def _exchanges(params: Params) -> Iterator[Exchange]:
    is_durable = params.preset != "article"
    rest = params.unmatched_exchange
    arguments = Arguments({"alternate-exchange": rest} if rest else {})
    kind = EXCHANGE_TYPES[params.split]
    yield Exchange(params.dead_exchange, kind, is_durable, arguments=arguments)
    for name in {params.input_exchange, params.back_exchange, rest} - {""}:
        yield Exchange(name, "fanout", is_durable)


def _queues(params: Params) -> Iterator[Queue]:
    yield Queue(params.input_queue, arguments=_arguments(params, params.dead_exchange))
    for timeout in params.all_timeouts:
        arguments = _arguments(params, params.back_exchange, timeout.delay)
        yield Queue(timeout.queue, arguments=arguments)


def _arguments(params: Params, dlx: str, ttl: timedelta | None = None) -> Arguments:
    stated: dict[str, ArgumentValue] = {"x-dead-letter-exchange": dlx}
    if params.preset != "article":
        stated |= type_arguments(params.queue_type, is_limited=ttl is not None)
    if ttl is not None:
        stated["x-message-ttl"] = milliseconds(ttl)
    return Arguments(stated)


def _bindings(params: Params) -> Iterator[Binding]:
    for source in {params.input_exchange, params.back_exchange}:
        yield Binding(source, params.input_queue, _key(params, params.input_queue))
    for timeout in params.unmatched:
        source = params.unmatched_exchange or params.dead_exchange
        yield Binding(source, timeout.queue, _key(params, timeout.queue))
    for timeout in params.timeouts:
        key = timeout.match if params.split == "key" else _key(params, timeout.queue)
        yield Binding(
            params.dead_exchange, timeout.queue, key, arguments=binding_arguments(params, timeout)
        )


def _key(params: Params, queue: str) -> str:
    return queue if params.binding_keys == "queue" else ""


def binding_arguments(params: Params, timeout: Timeout) -> Arguments:
    """The arguments that a binding of a headers exchange matches; none for the other types."""
    if params.split != "header":
        return Arguments()
    return Arguments({"x-match": "all", params.header: timeout.match})


def derive(queues: Sequence[Queue], found: Definitions) -> Iterator[Mapping[str, Any]]:
    """Parameters for dead queues that expire into a fanout exchange, one for each work queue bound
    to it whose dead-letter exchange leads into them; of a loop with one missing leg, by the other.
    """
    back = queues[0].dead_letter_exchange or ""
    into: dict[str, list[_Branch]] = defaultdict(list)
    for queue in queues:
        for source in found.sources(queue.name):
            into[source] += [(one, queue) for one in found.leads(source, queue.name)]
    unbound = [queue for queue in queues if not found.sources(queue.name)]
    works = _find_works(back, into, found)
    for work in sorted(set(works)):
        there = found.queue(work)
        dead = there.dead_letter_exchange if there else None
        if not there or not dead or dead == back or "x-message-ttl" in there.arguments:
            continue
        branches = into.get(dead, []) if found.exchange(dead) else []
        if not branches and len(unbound) == 1 and _leads_nowhere(dead, found):
            branches = [(Binding(dead, unbound[0].name, ""), unbound[0])]
        if 1 <= len(branches) <= MOST_TIMEOUTS:
            yield from _describe(work, dead, back, branches, into, found)


def _preset(dead: Queue, is_durable: bool) -> str:
    is_quorum = read_type(dead) == "quorum"
    return ("quorum" if is_quorum else "durable") if is_durable else "article"


def _find_works(back: str, into: Iterable[str], found: Definitions) -> list[str]:
    """The queues to which a fanout exchange returns messages.

    One that leads nowhere has lost its binding to a queue that alone dies into the dead exchange
    of one dead queue.
    """
    if not _leads_nowhere(back, found):
        return [one.destination for one in found.leaving(back) if _is_fanout(back, found)]
    return [
        found.dying_into(dead)[0].name
        for dead in into
        if _is_fanout(dead, found) and len(found.dying_into(dead)) == 1 == len(found.leaving(dead))
    ]


def _describe(
    work: str,
    dead: str,
    back: str,
    branches: Sequence[_Branch],
    into: Mapping[str, Sequence[_Branch]],
    found: Definitions,
) -> Iterator[Mapping[str, Any]]:
    exchange = found.exchange(dead)
    split = _SPLITS.get(exchange.type if exchange else EXCHANGE_TYPES["none"])
    if split is None:
        return
    alternate = exchange.arguments.text("alternate-exchange") if exchange else None
    rest = into.get(alternate or "", ()) if _is_fanout(alternate or "", found) else ()
    unmatched = branches[0] if split == "none" else next(iter(rest), None)
    header = _header_of(branches[0][0]) if split == "header" else ""
    source = _find_input(work, back, {dead, alternate}, found)
    bound = found.leads(back, work) or [branches[0][0]]
    remaining = filter(None, map(found.exchange, (back, dead)))
    yield {
        "input_exchange": source,
        "input_queue": work,
        "dead_exchange": dead,
        "dead_queue": unmatched[1].name if unmatched else "",
        "delay": unmatched[1].message_ttl if unmatched else timedelta(0),
        "preset": _preset(branches[0][1], all(one.durable for one in remaining)),
        "return_exchange": back if back != source else "",
        "split": split,
        "header": header,
        "timeouts": tuple(_timeout(split, *one) for one in branches if split != "none"),
        "unmatched_exchange": unmatched[0].source if unmatched and split != "none" else "",
        "binding_keys": "queue" if bound[0].routing_key == bound[0].destination else "empty",
    }


def _find_input(work: str, back: str, others: set[str | None], found: Definitions) -> str:
    """Another fanout than the one it comes back through, if that one leads to this queue alone."""
    into = [
        name
        for name in found.sources(work)
        if _is_fanout(name, found) and name not in {back, *others}
    ]
    returns = {one.destination for one in found.leaving(back) if not is_tap(one.destination)}
    return into[0] if into and returns <= {work} else back


def _is_fanout(name: str, found: Definitions) -> bool:
    exchange = found.exchange(name)
    return exchange is not None and exchange.type == "fanout"


def _leads_nowhere(name: str, found: Definitions) -> bool:
    """Whether it is missing, or a fanout exchange without bindings."""
    if found.exchange(name) is None:
        return True
    return _is_fanout(name, found) and not found.leaving(name)


def _timeout(split: str, binding: Binding, queue: Queue) -> Timeout:
    """A binding by no header, by several or by one of another kind gives an empty value."""
    match = binding.routing_key
    if split == "header":
        match = binding.arguments.text(_header_of(binding)) or ""
    return Timeout(match, queue.message_ttl or timedelta(0), queue.name)


def _header_of(binding: Binding) -> str:
    """The one header that the binding matches; "" when it matches none or several."""
    names = [name for name in binding.arguments if name != "x-match"]
    return names[0] if len(names) == 1 else ""
