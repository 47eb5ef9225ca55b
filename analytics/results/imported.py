"""What imported logs cannot know: the sentences that go with the figures of their days."""

from __future__ import annotations

from collections.abc import Collection

from analytics.models import LogImport
from analytics.results.period import Period
from topology.models import Broker

MOST_IMPORTS = 500


def find_notes(period: Period, brokers: Collection[Broker], topology: str) -> list[str]:
    """A note on each import that added events to these days, brokers and topology: its file, and
    what its log cannot know. `topology` "" is every one.
    """
    rows = LogImport.objects.filter(is_imported=True, broker__in=brokers).select_related("broker")
    days = {day.isoformat() for day in period.days}
    notes = []
    for row in rows.defer("mapping_text")[:MOST_IMPORTS]:
        names = row.result.get("topologies") or []
        is_of_topology = not topology or not names or topology in names
        if is_of_topology and row.notes and days.intersection(row.result.get("days", ())):
            place = ", ".join(names[:5]) or (row.broker.name if row.broker else "")
            notes.append(f"{place}, imported from {row.file_name}: {' '.join(row.notes)}")
    return list(dict.fromkeys(notes))
