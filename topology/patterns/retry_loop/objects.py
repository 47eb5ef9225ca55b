"""What a retry loop consists of."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from topology.definitions import Arguments, ArgumentValue, Binding, Definitions, Exchange, Queue
from topology.delays import milliseconds
from topology.patterns.retry_loop.params import EXCHANGE_TYPES, Params, Timeout


def definitions(params: Params) -> Definitions:
    return Definitions.of([*_exchanges(params), *_queues(params), *_bindings(params)])


def _exchanges(params: Params) -> Iterator[Exchange]:
    is_durable = params.preset == "durable"
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
    if params.preset == "durable":
        stated["x-queue-type"] = "classic"
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
