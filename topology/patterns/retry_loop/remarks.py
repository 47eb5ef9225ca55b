"""What of a vhost the users of a retry loop should know: who shares it, and what is lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from topology.definitions import Definitions
from topology.patterns.retry_loop.params import Params

_WHAT = {"key": "routing key", "header": "header “{header}”"}


def remarks(params: Params, found: Definitions) -> Sequence[str]:
    there = found.without_taps()
    return [
        *_come_back_to_others(params, there),
        *_foreign_failures(params, there),
        *_other_dead_queues(params, there),
        *_of_its_own(params),
    ]


def _come_back_to_others(params: Params, found: Definitions) -> Iterator[str]:
    back = params.back_exchange
    remedy = "" if params.return_exchange else " A separate return would spare it that."
    for other in _others(found, back, {params.input_queue}):
        yield (
            f"“{other}” is bound to “{back}” as well: what “{params.input_queue}” rejects comes "
            f"back to it too.{remedy}"
        )


def _foreign_failures(params: Params, found: Definitions) -> Iterator[str]:
    for queue in found.dying_into(params.dead_exchange):
        if queue.name != params.input_queue:
            yield (
                f"What “{queue.name}” rejects goes to “{params.dead_exchange}” as well, and so "
                f"comes back to “{params.input_queue}”."
            )


def _other_dead_queues(params: Params, found: Definitions) -> Iterator[str]:
    own = {timeout.queue for timeout in params.all_timeouts}
    for other in _others(found, params.dead_exchange, own):
        yield (
            f"“{other}” is bound to “{params.dead_exchange}” as well and gets what "
            f"“{params.input_queue}” rejects."
        )


def _of_its_own(params: Params) -> Iterator[str]:
    if params.preset == "article":
        yield (
            "Its exchanges are transient: before RabbitMQ 4.3 a restart of the broker takes them "
            "and their bindings away, and what dies until they are declared again is lost."
        )
    if not params.keeps_unmatched:
        by = _WHAT[params.split].format(header=params.header)
        yield f"A message is lost when it is rejected and its {by} has no timeout."


def _others(found: Definitions, exchange: str, own: set[str]) -> list[str]:
    return sorted({binding.destination for binding in found.leaving(exchange)} - own)
