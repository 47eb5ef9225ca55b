"""Reading processes from /proc: memory, open files, threads; who descends from whom."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from tests.rooted import children

KB_PER_MB = 1024
_COMMANDS = {"site": b"manage.py\0serve\0", "worker": b"manage.py\0worker\0"} | {
    "traffic": b"manage.py\0run_demo_traffic\0"
}


def members(run: int) -> dict[str, int]:
    """The processes of a `manage.py run` by what they are; those that live now."""
    found = {"run": run}
    for process in descendants(run):
        command, name = _bytes(process, "cmdline"), _bytes(process, "comm").strip()
        if name == b"beam.smp":
            # Erlang forks for a moment; the first one is the node.
            found.setdefault("broker", process)
        for member, words in _COMMANDS.items():
            if words in command:
                found[member] = process
    return found


def browsers(parent: int) -> list[int]:
    """The processes of the browsers that `parent` started."""
    return [p for p in descendants(parent) if b"chromium" in _bytes(p, "cmdline").split(b"\0")[0]]


def descendants(parent: int) -> Iterator[int]:
    for child in children(parent):
        yield child
        yield from descendants(child)


def read(processes: Iterable[int]) -> dict[str, float]:
    """Their sums: `memory` (MB of their own), `files`, `threads`.

    Memory that is no file's, swapped out or not: the share of a library moves with every other
    program that comes or goes. What ends meanwhile counts nothing.
    """
    sums = {"memory": 0.0, "files": 0.0, "threads": 0.0}
    for process in processes:
        folder = Path("/proc") / str(process)
        with suppress(OSError):
            sums["memory"] += _own_kb(folder) / KB_PER_MB
            sums["files"] += sum(1 for _ in (folder / "fd").iterdir())
            sums["threads"] += sum(1 for _ in (folder / "task").iterdir())
    return sums


def size_mb(path: Path) -> float:
    """Of a file, or of all files in a folder; 0 where there is nothing."""
    files = [path] if path.is_file() else path.rglob("*")
    total = 0
    for file in files:
        with suppress(OSError):
            total += file.stat().st_size if file.is_file() else 0
    return total / KB_PER_MB**2


def _own_kb(folder: Path) -> int:
    lines = (folder / "smaps_rollup").read_text().splitlines()
    words = (line.split() for line in lines)
    return sum(int(line[1]) for line in words if line[0] in ("Anonymous:", "Swap:"))


def _bytes(process: int, name: str) -> bytes:
    try:
        return (Path("/proc") / str(process) / name).read_bytes()
    except OSError:
        return b""
