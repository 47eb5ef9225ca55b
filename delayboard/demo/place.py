"""Where the programs of a node come from: this machine, or a root file system inside bubblewrap."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

# Debian's wrappers under /usr/sbin insist on the user rabbitmq.
SERVER = "/usr/lib/rabbitmq/bin/rabbitmq-server"

_INSIDE = Path("/srv")
_END_WITH_PARENT = ("setpriv", "--pdeathsig", "TERM")


@dataclass(frozen=True)
class Place:
    """The node's folder, absolute, and the root file system of its programs (None: our own)."""

    folder: Path
    root: Path | None = None

    @property
    def inside(self) -> Path:
        """The folder as the node's processes see it."""
        return self.folder if self.root is None else _INSIDE

    @property
    def path(self) -> str:
        """The PATH in which Erlang is found."""
        if self.root is None:
            return os.environ.get("PATH", os.defpath)
        return "/usr/sbin:/usr/bin:/sbin:/bin"

    def missing(self) -> str:
        """Say in a sentence what it takes to run a node here and is not there; "" if nothing."""
        server = Path(f"{self.root or ''}{SERVER}")
        if not server.exists():
            return f"RabbitMQ is not installed: {server} is missing"
        needed = "epmd" if self.root is None else "bwrap"
        if shutil.which(needed) is None:
            return f"RabbitMQ cannot be run: the program {needed} is missing"
        return ""

    def command(self, *program: str) -> list[str]:
        """Return the command that runs `program` here, and asks it to end when we end.

        bubblewrap shares the network and needs no root where users may make namespaces. It does
        not pass on the signal that ends it, so the program inside watches it in turn.
        """
        if self.root is None:
            return [*_END_WITH_PARENT, *program]
        bubblewrap = _bubblewrap(self.root, self.folder)
        return [*_END_WITH_PARENT, *bubblewrap, *_END_WITH_PARENT, *program]


def _bubblewrap(root: Path, folder: Path) -> list[str]:
    mounts = (
        ("--ro-bind", str(root), "/"),
        ("--proc", "/proc"),
        ("--dev", "/dev"),
        ("--tmpfs", "/tmp"),  # noqa: S108
        # Without it the port mapper finds no localhost, and says so after 40 seconds.
        ("--ro-bind", "/etc/hosts", "/etc/hosts"),
        ("--ro-bind-try", "/etc/resolv.conf", "/etc/resolv.conf"),
        ("--bind", str(folder), str(_INSIDE)),
        ("--chdir", str(_INSIDE)),
    )
    return ["bwrap", *(part for mount in mounts for part in mount)]
