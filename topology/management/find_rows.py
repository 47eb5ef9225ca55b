"""The broker and the topology that a command names by their slugs."""

from __future__ import annotations

from collections.abc import Callable

from django.core.management.base import CommandError
from django.db.models import QuerySet

from topology.models import Broker, State, Topology

# So many names stand in an error.
MOST_NAMES = 20


def find_broker(slug: str, error: Callable[[str], Exception] = CommandError) -> Broker:
    """Raises `error` with a sentence that names the brokers that exist."""
    found = Broker.objects.filter(slug=slug).first()
    if found is None:
        raise error(_explain("broker", slug, Broker.objects.all()))
    return found


def find_topology(
    slug: str,
    rows: QuerySet[Topology] | None = None,
    error: Callable[[str], Exception] = CommandError,
) -> Topology:
    """One of `rows`, by default of all. Raises `error`, which names those that are not deleted."""
    rows = Topology.objects.all() if rows is None else rows
    found = rows.select_related("broker").filter(slug=slug).first()
    if found is None:
        raise error(_explain("topology", slug, rows.exclude(state=State.DELETED)))
    return found


def _explain(kind: str, slug: str, rows: QuerySet[Broker] | QuerySet[Topology]) -> str:
    known = ", ".join(rows.values_list("slug", flat=True)[:MOST_NAMES]) or "none"
    many = {"broker": "brokers", "topology": "topologies"}[kind]
    return f"The {kind} “{slug}” does not exist. Existing {many}: {known}."
