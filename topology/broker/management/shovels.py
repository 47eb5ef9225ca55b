"""The shovel plugin's part of the management API."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from topology.broker.management.client import Management, path
from topology.broker.management.schema import read_objects


class Shovels(Management):
    def __enter__(self) -> Shovels:
        return self

    def read_status(self) -> list[dict[str, Any]]:
        """Raises NotFound where the plugin is disabled: then this path does not exist."""
        return read_objects(self._call("GET", path("shovels", self._address.vhost)))

    def create(self, name: str, queue: str, target: str, *, prefetch: int) -> None:
        """Move what is in `queue` now, each acknowledged after its confirm, then delete itself.

        A URI without a host has no password (tag policymaker).
        """
        uri = f"amqp:///{quote(self._address.vhost, safe='')}"
        value = {
            "src-protocol": "amqp091",
            "src-uri": uri,
            "src-queue": queue,
            "src-prefetch-count": prefetch,
            "src-delete-after": "queue-length",
            "dest-protocol": "amqp091",
            "dest-uri": uri,
            "dest-queue": target,
            "dest-add-forward-headers": False,
            "ack-mode": "on-confirm",
        }
        self._call("PUT", self._parameter(name), {"value": value})

    def delete(self, name: str) -> None:
        self._delete(self._parameter(name))

    def _parameter(self, name: str) -> str:
        return path("parameters", "shovel", self._address.vhost, name)
