"""The queues of a vhost as rows of a table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from django.core.paginator import Page, Paginator

from topology.content.text import count_text
from topology.definitions import Queue, is_own_queue, is_tap
from topology.graph.live_values import MARK_WORDS, level_names, queue_mark, rate_text
from topology.models import Topology
from topology.patterns.pattern import ParamsError
from topology.snapshot import QueueNumbers, Snapshot

PAGE = 200


@dataclass(frozen=True)
class QueueLine:
    """A queue with the texts of its numbers and its state."""

    queue: Queue
    mark: str
    words: str
    cells: tuple[str, ...]
    is_tap: bool


def queue_page(snapshot: Snapshot, search: str, number: str) -> Page[QueueLine]:
    """The page `number`, from "1" on, of the queues whose name holds `search` in any case."""
    wanted = search.casefold()
    fitting = [q for q in snapshot.definitions.queues if wanted in q.name.casefold()]
    page: Page[Any] = Paginator(sorted(fitting, key=_place), PAGE).get_page(number)
    return Page(queue_lines(snapshot, page.object_list), page.number, page.paginator)


@dataclass(frozen=True)
class QueueGroup:
    """The queues of one topology, or those of none where `topology` is None."""

    topology: Topology | None
    lines: tuple[QueueLine, ...]
    messages: str


def group_lines(
    lines: Iterable[QueueLine], topologies: Iterable[Topology], snapshot: Snapshot
) -> list[QueueGroup]:
    """Group lines by topology, in their order; the queues of none are last. A shared queue is in
    the first.
    """
    owners: dict[str, Topology] = {}
    ordered = list(topologies)
    for topology in ordered:
        # A row that no longer reads says so on its own page.
        with suppress(ParamsError):
            own = {queue.name for queue in topology.definitions.queues}
            own |= {
                queue.name
                for queue in topology.pattern.members(topology.parsed, snapshot.definitions)
            }
            for name in own:
                owners.setdefault(name, topology)
    by_owner: dict[int, list[QueueLine]] = defaultdict(list)
    for line in lines:
        owner = owners.get(line.queue.name)
        by_owner[owner.pk if owner else 0].append(line)
    found = [*((one, by_owner[one.pk]) for one in ordered), (None, by_owner[0])]
    return [
        QueueGroup(topology, tuple(group), _count_messages(group, snapshot))
        for topology, group in found
        if group
    ]


def _count_messages(lines: Iterable[QueueLine], snapshot: Snapshot) -> str:
    """Count messages without taps, which hold copies; "–" where one is unknown."""
    names = [line.queue.name for line in lines if not line.is_tap]
    known = [snapshot.numbers.get(name, QueueNumbers()).messages for name in names]
    return count_text(None if None in known else sum(number or 0 for number in known))


def queue_lines(snapshot: Snapshot, queues: Iterable[Queue] | None = None) -> list[QueueLine]:
    """These queues, or all of them, by name and our own last; left out: what does not exist."""
    there = snapshot.definitions
    wanted = there.queues if queues is None else {there.queue(queue.name) for queue in queues}
    levels = level_names(there)
    shown = sorted((queue for queue in wanted if queue is not None), key=_place)
    return [_line(queue, snapshot, is_level=queue.name in levels) for queue in shown]


def _place(queue: Queue) -> tuple[bool, str]:
    return is_own_queue(queue.name), queue.name


def _line(queue: Queue, snapshot: Snapshot, *, is_level: bool) -> QueueLine:
    numbers = snapshot.numbers.get(queue.name)
    mark = queue_mark(queue, numbers, snapshot.trend_of(queue.name), is_level=is_level)
    ours = is_own_queue(queue.name)
    words = MARK_WORDS[mark]
    if ours:
        words = "tap of Delayboard" if is_tap(queue.name) else "probe queue of Delayboard"
    return QueueLine(queue, mark, words, _cells(numbers) if numbers else (), ours)


def _cells(numbers: QueueNumbers) -> tuple[str, ...]:
    counts = (numbers.messages, numbers.ready, numbers.unacked, numbers.consumers)
    return (*map(count_text, counts), *map(rate_text, (numbers.publish_rate, numbers.deliver_rate)))
