"""What a command examines: exported definitions, or the vhost of a broker."""

from __future__ import annotations

from topology.broker.errors import Unreachable
from topology.broker.management.definitions_file import NotDefinitions, read_export
from topology.management.exit_codes import BadInput
from topology.management.input_file import is_file, read_json
from topology.snapshot import Snapshot, version_numbers


def read_snapshots(source: str, version: str = "") -> dict[str, Snapshot]:
    """By vhost, of a file, - for standard input, or a broker's slug.

    `version` is that of RabbitMQ for a file that does not name it. Raises BadInput and Unreachable.
    """
    if version and not version_numbers(version):
        raise BadInput(f"“{version}” is no version of RabbitMQ. Give a number such as 4.3.")
    if not is_file(source):
        return _read_broker(source)
    try:
        return read_export(read_json(source), version)
    except NotDefinitions as error:
        raise BadInput(str(error)) from error


def _read_broker(slug: str) -> dict[str, Snapshot]:
    """Raises BadInput and Unreachable."""
    from topology import snapshots
    from topology.models import Broker

    broker = Broker.objects.filter(slug=slug).first()
    if broker is None:
        names = ", ".join(Broker.objects.values_list("slug", flat=True)) or "none"
        raise BadInput(f"“{slug}” is neither a file nor a broker. Existing brokers: {names}.")
    known = snapshots.poll(broker, 60)
    if known.snapshot is None or known.error:
        raise Unreachable(known.error)
    return {broker.vhost: known.snapshot}


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
