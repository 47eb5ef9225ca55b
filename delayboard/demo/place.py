"""Where the programs of a node come from: this machine. The tests have other root file systems."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

# RabbitMQ's own script: Debian's wrappers under /usr/sbin insist on the user rabbitmq.
SERVER = "/usr/lib/rabbitmq/bin/rabbitmq-server"
END_WITH_PARENT = ("setpriv", "--pdeathsig", "TERM")


@dataclass(frozen=True)
class Place:
    """The node's folder, absolute."""

    folder: Path

    @property
    def inside(self) -> Path:
        """The folder as the node's processes see it."""
        return self.folder

    @property
    def path(self) -> str:
        """The PATH in which Erlang is found."""
        return os.environ.get("PATH", os.defpath)

    def missing(self) -> str:
        """Say in a sentence what it takes to run a node here and is not there; "" if nothing."""
        if not Path(SERVER).exists():
            return f"RabbitMQ is not installed: {SERVER} is missing"
        if shutil.which("epmd") is None:
            return "RabbitMQ cannot be run: the program epmd is missing"
        return ""

    def command(self, *program: str) -> list[str]:
        """Return the command that runs `program` here, and asks it to end when we end."""
        return [*END_WITH_PARENT, *program]

    def to_stop(self, server: int) -> list[int]:
        """The processes to ask, so that the server that was started with this id stops."""
        return [server]
