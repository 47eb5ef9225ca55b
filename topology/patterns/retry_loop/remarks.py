"""Notes for users of a retry loop: what shares its objects, and what is lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from topology.definitions import Definitions
from topology.patterns.retry_loop.params import Params

_LABELS = {"key": "routing key", "header": "header “{header}”"}


def remarks(params: Params, found: Definitions) -> Sequence[str]:
    there = found.without_taps()
    return [
        *_warn_of_shared_return(params, there),
        *_warn_of_other_sources(params, there),
        *_warn_of_other_dead_queues(params, there),
        *_warn_of_losses(params),
    ]


def _warn_of_shared_return(params: Params, found: Definitions) -> Iterator[str]:
    back = params.back_exchange
    remedy = "" if params.return_exchange else " Use a separate return to avoid this."
    for other in _list_others(found, back, {params.input_queue}):
        yield (
            f"Messages that “{params.input_queue}” rejects also return to “{other}”, which is "
            f"bound to “{back}”.{remedy}"
        )


def _warn_of_other_sources(params: Params, found: Definitions) -> Iterator[str]:
    for queue in found.dying_into(params.dead_exchange):
        if queue.name != params.input_queue:
            yield (
                f"Messages that “{queue.name}” rejects also go to “{params.dead_exchange}” and "
                f"return to “{params.input_queue}”."
            )


def _warn_of_other_dead_queues(params: Params, found: Definitions) -> Iterator[str]:
    own = {timeout.queue for timeout in params.all_timeouts}
    for other in _list_others(found, params.dead_exchange, own):
        yield (
            f"“{other}” is bound to “{params.dead_exchange}” and also receives messages that "
            f"“{params.input_queue}” rejects."
        )


def _warn_of_losses(params: Params) -> Iterator[str]:
    if params.preset == "article":
        yield (
            "The exchanges are transient. Before RabbitMQ 4.3 a restart deletes them, and "
            "RabbitMQ drops dead letters until someone declares them again."
        )
    if not params.keeps_unmatched:
        by = _LABELS[params.split].format(header=params.header)
        yield f"RabbitMQ drops a rejected message whose {by} has no timeout."


def _list_others(found: Definitions, exchange: str, own: set[str]) -> list[str]:
    return sorted({binding.destination for binding in found.leaving(exchange)} - own)
