"""Ladders in a vhost by structure: queues that die back with a key that counts the tries."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from topology.definitions import Definitions, Queue, is_tap

_TRIED = re.compile(r"(.*)\.try\.([1-9]\d{0,2})", re.DOTALL)


@dataclass(frozen=True)
class LadderSet:
    """The rungs that die into `exchange` with `<key>.try.k`, in their order.

    `gaps` are the numbers missing below the last. `parking` is the queue to which the ladder's
    exchange leads from the last rung, "" when none is seen.
    """

    exchange: str
    key: str
    rungs: tuple[Queue, ...]
    gaps: tuple[int, ...]
    parking: str


def find_ladder_sets(found: Definitions) -> Sequence[LadderSet]:
    """The ladders, by the exchange and key that their rungs die back with.

    A rung has a TTL and no lease (that is a hold queue). Where two queues claim one number, the
    one named after the exchange does.
    """
    by_path: dict[tuple[str, str], dict[int, Queue]] = {}
    for queue in sorted(found.queues, key=lambda queue: queue.name):
        if climbed := _read_rung(queue):
            exchange, key, number = climbed
            rungs = by_path.setdefault((exchange, key), {})
            if number not in rungs or queue.name == f"{exchange}-rung-{number}":
                rungs[number] = queue
    return [_make_set(found, *path, rungs) for path, rungs in sorted(by_path.items())]


def _read_rung(queue: Queue) -> tuple[str, str, int] | None:
    """The exchange, key and number that a rung dies back with; None for what is none."""
    tried = _TRIED.fullmatch(queue.dead_letter_routing_key or "")
    if tried is None or not queue.dead_letter_exchange or queue.message_ttl_ms is None:
        return None
    if queue.arguments.number("x-expires") is not None:
        return None
    return queue.dead_letter_exchange, tried[1], int(tried[2])


def _make_set(
    found: Definitions, exchange: str, key: str, by_number: Mapping[int, Queue]
) -> LadderSet:
    numbers = sorted(by_number)
    rungs = tuple(by_number[number] for number in numbers)
    return LadderSet(
        exchange=exchange,
        key=key,
        rungs=rungs,
        gaps=tuple(sorted(set(range(1, numbers[-1])) - set(numbers))),
        parking=_find_parking(found, f"{exchange}-ladder", key, numbers[-1]),
    )


def _find_parking(found: Definitions, ladder: str, key: str, last: int) -> str:
    """Where the ladder sends what was tried so often, whether its exchange is direct or a topic."""
    ends = (f"{key}.try.{last}", f"#.try.{last}")
    leading = [
        b for b in found.leaving(ladder) if b.routing_key in ends and not is_tap(b.destination)
    ]
    queues = [found.queue(b.destination) for b in leading if b.destination_is_queue]
    parking = [queue.name for queue in queues if queue and queue.message_ttl_ms is None]
    usual = f"{ladder.removesuffix('-ladder')}-parking"
    return usual if usual in parking else next(iter(parking), "")
