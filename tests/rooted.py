"""A node of another generation: its programs are a root file system's, inside bubblewrap."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass
from pathlib import Path

from delayboard.demo.node import PrivateNode
from delayboard.demo.place import END_WITH_PARENT, SERVER, Place
from delayboard.demo.processes import list_processes, stat_fields

_INSIDE = Path("/srv")


def make_node(
    folder: Path, name: str, statistics_interval_ms: int = 5000, root: Path | None = None
) -> PrivateNode:
    """A node with the programs of this machine, or of the root file system `root`."""
    place = RootedPlace(folder.resolve(), root) if root is not None else None
    return PrivateNode(folder, name, statistics_interval_ms, place)


@dataclass(frozen=True)
class RootedPlace(Place):
    """The root file system of a node's programs, such as tests/rootfs.sh makes."""

    root: Path

    @property
    def inside(self) -> Path:
        return _INSIDE

    @property
    def path(self) -> str:
        return "/usr/sbin:/usr/bin:/sbin:/bin"

    def missing(self) -> str:
        server = Path(f"{self.root}{SERVER}")
        if not server.exists():
            return f"RabbitMQ is not installed: {server} is missing"
        if shutil.which("bwrap") is None:
            return "RabbitMQ cannot be run: the program bwrap is missing"
        return ""

    def command(self, *program: str) -> list[str]:
        """bubblewrap shares the network and needs no root where users may make namespaces. It does
        not pass on the signal that ends it, so the program inside watches it in turn.
        """
        bubblewrap = _bubblewrap(self.root, self.folder)
        return [*END_WITH_PARENT, *bubblewrap, *END_WITH_PARENT, *program]

    def to_stop(self, server: int) -> list[int]:
        """bubblewrap passes no signal on: what it runs is asked."""
        return children(server)


def children(parent: int) -> list[int]:
    """Return the ids of the processes that `parent` started itself and that still run."""
    found = []
    for process in list_processes():
        with contextlib.suppress(OSError):
            if int(stat_fields(Path(f"/proc/{process}/stat"))[1]) == parent:
                found.append(process)
    return found


def _bubblewrap(root: Path, folder: Path) -> list[str]:
    mounts = (
        ("--ro-bind", str(root), "/"),
        ("--proc", "/proc"),
        ("--dev", "/dev"),
        ("--tmpfs", "/tmp"),
        # Without it the port mapper finds no localhost, and says so after 40 seconds.
        ("--ro-bind", "/etc/hosts", "/etc/hosts"),
        ("--ro-bind-try", "/etc/resolv.conf", "/etc/resolv.conf"),
        ("--bind", str(folder), str(_INSIDE)),
        ("--chdir", str(_INSIDE)),
    )
    return ["bwrap", *(part for mount in mounts for part in mount)]
