"""The broker and the topology that a command names by their slugs."""

from __future__ import annotations

from django.db.models import QuerySet

from topology.management.exit_codes import BadInput
from topology.models import Broker, State, Topology

# Most names in an error.
MOST_NAMES = 20


def find_broker(slug: str) -> Broker:
    """Raises BadInput with a sentence that names the brokers that exist."""
    found = Broker.objects.filter(slug=slug).first()
    if found is None:
        raise BadInput(_explain("broker", slug, Broker.objects.all()))
    return found


def find_topology(slug: str, rows: QuerySet[Topology] | None = None) -> Topology:
    """One of `rows`, by default of all. Raises BadInput, which names those not deleted."""
    rows = Topology.objects.all() if rows is None else rows
    found = rows.select_related("broker").filter(slug=slug).first()
    if found is None:
        raise BadInput(_explain("topology", slug, rows.exclude(state=State.DELETED)))
    return found


def _explain(kind: str, slug: str, rows: QuerySet[Broker] | QuerySet[Topology]) -> str:
    known = ", ".join(rows.values_list("slug", flat=True)[:MOST_NAMES]) or "none"
    many = {"broker": "brokers", "topology": "topologies"}[kind]
    return f"The {kind} “{slug}” does not exist. Existing {many}: {known}."
