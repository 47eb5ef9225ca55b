"""A file of exported definitions -> a Snapshot of each vhost in it: pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from topology.broker.management.observe import read_snapshot
from topology.broker.management.policies import name_policies, put_in_force
from topology.definitions import PREDECLARED
from topology.snapshot import Snapshot

LONGEST_NAME_BYTES = 255
_KINDS = ("queues", "exchanges", "bindings", "policies", "parameters")


class NotDefinitions(ValueError):
    """The file is not an export of definitions; the message says why in one sentence."""


def read_export(document: Any, version: str = "") -> dict[str, Snapshot]:
    """The snapshots by vhost, "" for the one of an export that does not name it.

    `version` counts in place of the file's. Raises NotDefinitions.
    """
    if not isinstance(document, Mapping) or not any(kind in document for kind in _KINDS[:3]):
        raise NotDefinitions(
            "The file is no export of RabbitMQ definitions: it has no queues, exchanges and "
            "bindings."
        )
    rows = {kind: _rows(document, kind) for kind in _KINDS}
    if not all(raw.get("name") for raw in rows["queues"]):
        raise NotDefinitions("A queue in the file has no name.")
    stated = version or str(document.get("rabbitmq_version") or document.get("rabbit_version", ""))
    own = str(document.get("original_vhost_name", ""))
    # In an export of one vhost RabbitMQ 3.10 names it in policies and parameters alone.
    stated_names = {str(raw["vhost"]) for kind in _KINDS for raw in rows[kind] if "vhost" in raw}
    if not own and len(stated_names) == 1:
        (own,) = stated_names
    named = _rows(document, "vhosts") if "vhosts" in document else []
    names = {str(raw.get("name", "")) for raw in named}
    names |= {str(raw.get("vhost", own)) for kind in _KINDS for raw in rows[kind]}
    # Cluster-wide parameters have no vhost of their own.
    return {name: _snapshot(rows, name, own, stated) for name in sorted(names or {own})}


def _rows(document: Mapping[str, Any], kind: str) -> list[dict[str, Any]]:
    found = document.get(kind, [])
    if not isinstance(found, list) or not all(isinstance(raw, dict) for raw in found):
        raise NotDefinitions(f"The part “{kind}” of the file is not a list of objects.")
    for raw in found:
        for field in ("name", "source", "destination", "routing_key", "vhost"):
            _check_name(kind, field, raw.get(field, ""))
    return found


def _check_name(kind: str, field: str, name: Any) -> None:
    if not isinstance(name, str):
        raise NotDefinitions(f"A “{field}” in the part “{kind}” of the file is not text.")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise NotDefinitions(
            f"A “{field}” in the part “{kind}” of the file is not valid Unicode."
        ) from None
    if size > LONGEST_NAME_BYTES and kind in ("queues", "exchanges", "bindings"):
        raise NotDefinitions(
            f"A “{field}” in the part “{kind}” of the file has more than {LONGEST_NAME_BYTES} "
            "bytes, which RabbitMQ does not allow."
        )


def _snapshot(
    rows: Mapping[str, Sequence[dict[str, Any]]], vhost: str, own: str, version: str
) -> Snapshot:
    def list_rows(kind: str) -> list[dict[str, Any]]:
        return [dict(raw) for raw in rows[kind] if raw.get("vhost", own) == vhost]

    queues = [{**raw, "type": _type_of(raw)} for raw in list_rows("queues")]
    policies = list_rows("policies")
    limits = [
        {**value, "name": raw.get("name", "")}
        for raw in list_rows("parameters")
        if raw.get("component") == "operator_policy"
        and isinstance(value := raw.get("value"), Mapping)
    ]
    unread = put_in_force(queues, policies, limits)
    exchanges = list_rows("exchanges")
    there = {raw.get("name") for raw in exchanges}
    exchanges += [
        {"name": one.name, "type": one.type, "durable": True}
        for one in PREDECLARED.exchanges
        if one.name not in there
    ]
    name_policies(exchanges, policies)
    doubts = tuple(f"The pattern of the policy “{name}” cannot be read." for name in unread)
    overview, bindings, now = (
        {"rabbitmq_version": version},
        list_rows("bindings"),
        datetime.now(UTC),
    )
    known = (overview, queues, exchanges, bindings)
    return read_snapshot(*known, alarms=[], policies=policies, doubts=doubts, taken_at=now)


def _type_of(raw: Mapping[str, Any]) -> str:
    """Newer exports state it beside the arguments."""
    arguments = raw.get("arguments")
    stated = arguments.get("x-queue-type") if isinstance(arguments, Mapping) else None
    return str(stated or raw.get("type") or "classic")
