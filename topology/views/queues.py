"""The queues of a vhost as rows of a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from topology.definitions import Queue, is_tap
from topology.graph.live_values import MARK_WORDS, level_names, queue_cells, queue_mark
from topology.snapshot import Snapshot

PAGE = 200


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


@dataclass(frozen=True)
class QueuePage:
    """Some rows of many: `first` counts from 0, `total` are all whose name holds the search."""

    lines: Sequence[QueueLine]
    first: int
    total: int

    @property
    def from_row(self) -> int:
        return self.first + 1

    @property
    def to_row(self) -> int:
        return self.first + len(self.lines)

    @property
    def previous_row(self) -> int | None:
        return max(0, self.first - PAGE) if self.first else None

    @property
    def next_row(self) -> int | None:
        return self.first + PAGE if self.first + PAGE < self.total else None

    @property
    def is_part(self) -> bool:
        return len(self.lines) < self.total


def queue_page(snapshot: Snapshot, search: str, first: int) -> QueuePage:
    """At most PAGE queues whose name holds `search` in any case, from row `first` on."""
    wanted = search.casefold()
    fitting = [q for q in snapshot.definitions.queues if wanted in q.name.casefold()]
    fitting.sort(key=_place)
    shown = queue_lines(snapshot, fitting[first : first + PAGE])
    return QueuePage(shown, first, len(fitting))


def queue_lines(snapshot: Snapshot, queues: Iterable[Queue] | None = None) -> list[QueueLine]:
    """These queues, or all of them, by name and the taps last; left out: what does not exist."""
    there = snapshot.definitions
    wanted = there.queues if queues is None else {there.queue(queue.name) for queue in queues}
    levels = level_names(there)
    shown = sorted((queue for queue in wanted if queue is not None), key=_place)
    return [_line(queue, snapshot, is_level=queue.name in levels) for queue in shown]


def _place(queue: Queue) -> tuple[bool, str]:
    return is_tap(queue.name), queue.name


def _line(queue: Queue, snapshot: Snapshot, *, is_level: bool) -> QueueLine:
    numbers = snapshot.numbers.get(queue.name)
    mark = queue_mark(queue, numbers, is_level=is_level)
    cells = queue_cells(queue.name, numbers) if numbers else {}
    ours = is_tap(queue.name)
    words = "tap of Delayboard" if ours else MARK_WORDS[mark]
    return QueueLine(queue, mark, words, tuple(cells.items()), ours)
