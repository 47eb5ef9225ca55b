"""The queues of a vhost as rows of a table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from topology.definitions import TAP_PREFIX, Queue
from topology.graph.cells import MARK_WORDS, level_names, queue_cells, queue_mark
from topology.snapshot import Snapshot


@dataclass(frozen=True)
class QueueLine:
    """A queue with the texts of its live cells and its state; `cells` are (key, text)."""

    queue: Queue
    mark: str
    words: str
    cells: tuple[tuple[str, str], ...]
    is_tap: bool

    @property
    def delay(self) -> timedelta | None:
        """How long its messages live in it; None for ever."""
        ttl_ms = self.queue.message_ttl_ms
        return None if ttl_ms is None else timedelta(milliseconds=ttl_ms)


def queue_lines(snapshot: Snapshot, queues: Iterable[Queue] | None = None) -> list[QueueLine]:
    """These queues, or all of them, by name and the taps last; left out: what does not exist."""
    names = {queue.name for queue in queues} if queues is not None else None
    levels = level_names(snapshot.definitions)
    lines = [
        _line(queue, snapshot, is_level=queue.name in levels)
        for queue in snapshot.definitions.queues
        if names is None or queue.name in names
    ]
    return sorted(lines, key=lambda line: (line.is_tap, line.queue.name))


def _line(queue: Queue, snapshot: Snapshot, *, is_level: bool) -> QueueLine:
    numbers = snapshot.numbers.get(queue.name)
    mark = queue_mark(queue, numbers, is_level=is_level)
    cells = queue_cells(queue.name, numbers) if numbers else {}
    is_tap = queue.name.startswith(TAP_PREFIX)
    words = "Delayboard’s copy of what passes" if is_tap else MARK_WORDS[mark]
    return QueueLine(queue, mark, words, tuple(cells.items()), is_tap)
