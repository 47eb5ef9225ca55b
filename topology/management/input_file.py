"""What a command reads: a file, and of definitions also the virtual host of a broker."""

from __future__ import annotations

import json
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO, Any

from topology.broker.errors import Unreachable
from topology.broker.management.definitions_file import NotDefinitions, read_export
from topology.management.exit_codes import BadInput
from topology.snapshot import Snapshot, version_numbers

MAXIMUM_BYTES = 500_000_000


def is_file(source: str) -> bool:
    """Whether it is a file and not a broker, whose slug has neither a dot nor a slash."""
    return source == "-" or "." in source or "/" in source


def opened(file: str) -> AbstractContextManager[IO[bytes]]:
    """A path, or - for standard input. Raises BadInput."""
    try:
        return nullcontext(sys.stdin.buffer) if file == "-" else Path(file).open("rb")
    except OSError as error:
        raise BadInput(f"“{file}” cannot be read: {error.strerror}.") from error


def read_json(file: str) -> Any:
    """Parse a path, or - for standard input. Raises BadInput."""
    name = "The standard input" if file == "-" else f"The file “{file}”"
    try:
        with opened(file) as stream:
            raw = stream.read(MAXIMUM_BYTES + 1)
    except OSError as error:
        raise BadInput(f"{name} cannot be read: {error.strerror}.") from error
    if len(raw) > MAXIMUM_BYTES:
        raise BadInput(f"{name} is larger than {MAXIMUM_BYTES // 1_000_000} MB.")
    if not raw.strip():
        raise BadInput(f"{name} is empty.")
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{name} is not JSON.") from error


def read_snapshots(source: str, version: str = "") -> dict[str, Snapshot]:
    """Read snapshots by virtual host from a file, from standard input (-), or from the broker with
    a slug.

    `version` is that of RabbitMQ for a file that does not name it. Raises BadInput and Unreachable.
    """
    if version and not version_numbers(version):
        raise BadInput(f"“{version}” is no version of RabbitMQ. Give a number such as 4.3.")
    if not is_file(source):
        if version:
            raise BadInput("--rabbitmq-version is for a file: a broker reports its version.")
        # Raises BadInput and Unreachable.
        from topology import snapshots
        from topology.models import Broker

        broker = Broker.objects.filter(slug=source).first()
        if broker is None:
            names = ", ".join(Broker.objects.values_list("slug", flat=True)) or "none"
            raise BadInput(f"“{source}” is neither a file nor a broker. Existing brokers: {names}.")
        known = snapshots.poll(broker, 60)
        if known.snapshot is None or known.error:
            raise Unreachable(known.error)
        return {broker.vhost: known.snapshot}
    try:
        return read_export(read_json(source), version)
    except NotDefinitions as error:
        raise BadInput(str(error)) from error


def choose_vhost(snapshots: dict[str, Snapshot], vhost: str | None) -> dict[str, Snapshot]:
    """All of them for None. Raises BadInput."""
    if vhost is None:
        return snapshots
    if vhost not in snapshots:
        if names := ", ".join(f"“{name}”" for name in snapshots if name):
            raise BadInput(f"The virtual host “{vhost}” is not in the source. It has {names}.")
        raise BadInput(
            "The file is the export of one virtual host and does not name it. Omit --vhost."
        )
    return {vhost: snapshots[vhost]}
