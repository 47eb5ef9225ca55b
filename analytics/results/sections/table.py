"""The one table of sections."""

from __future__ import annotations

from collections.abc import Callable

from analytics.results.read import Report
from analytics.results.sections import dead_letters, lateness, messages, retries
from analytics.results.sections.section import Section

# In the order of the page.
MAKERS: tuple[Callable[[Report], Section], ...] = (
    lateness.make_lateness_by_day,
    lateness.make_lateness_by_delay,
    lateness.make_lateness_of_probes,
    retries.make_survival,
    dead_letters.make_by_reason,
    retries.make_recovery,
    retries.make_groups,
    retries.make_causes,
    dead_letters.make_by_origin,
    messages.make_ledger,
    messages.make_topologies,
    messages.make_slo,
)


def sections(report: Report) -> dict[str, Section]:
    """Every table by its key, in the order of the page."""
    made = [make(report) for make in MAKERS]
    return {section.key: section for section in made}
