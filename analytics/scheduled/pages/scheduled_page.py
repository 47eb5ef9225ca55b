"""The page of what waits, as values: numbers, rows, and what may be wrong with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from analytics.models import ScheduledMessage
from analytics.observation import due_before
from analytics.scheduled.pages.lines import Reader, ScheduledLine
from analytics.scheduled.queries import listing, texts
from analytics.scheduled.queries.filter import Filter
from analytics.scheduled.queries.listing import ScheduledSearch
from analytics.scheduled.summaries import counts
from analytics.scheduled.summaries.completeness import Doubt, find_doubts
from analytics.scheduled.summaries.counts import Scope, Summary
from analytics.search.find import Found, find
from topology import snapshots
from topology.models import Broker, MissingBinding, State, Topology
from topology.redaction import Redaction

PAGE = 50
DEPTHS_AGE = timedelta(seconds=5)
OFFERED = 200


@dataclass(frozen=True)
class ScheduledList:
    """`summary` is None on later pages and when it was not requested.

    `stuck_in` are the topologies with stuck messages, each with how many no recording names.
    `matching` is how many messages match the filter, None when nobody counted, or more than
    counts.MOST.
    """

    now: datetime
    topologies: Sequence[Topology]
    destinations: Sequence[str]
    not_observed: Sequence[Topology]
    doubts: Sequence[Doubt]
    stuck_in: Sequence[tuple[Topology, int]] = ()
    lines: Sequence[ScheduledLine] = ()
    summary: Summary | None = None
    found: Found = field(default_factory=Found)
    matching: int | None = None
    not_searchable: int = 0

    @property
    def matching_text(self) -> str:
        return "" if self.matching is None else counts.describe(self.matching)

    @property
    def select_number(self) -> int | None:
        """How many “all that match” are, where that is exact."""
        is_exact = self.matching is not None and self.matching <= counts.MOST
        return self.matching if is_exact else None


def load_list(
    brokers: Sequence[Broker],
    filters: Filter,
    now: datetime,
    *,
    hidden: Mapping[int, Redaction],
    after: int | None = None,
    is_reversed: bool = False,
    page: int = PAGE,
) -> ScheduledList:
    """The page after the message `after`; nothing is listed while the filter has problems.

    Without rows on a `page`, only what is around the list is read.

    `hidden` has the redaction rules by broker for the reader. The numbers are None on later pages,
    and the summary where a text is searched.
    """
    topologies = _with_messages(brokers, now)
    whole = counts.scope_of(topologies, now)
    around = _narrow(whole, topologies, filters)
    scope = replace(around, destination=filters.destination) if filters.destination else around
    shown = ScheduledList(
        now=now,
        topologies=topologies,
        destinations=list(
            around.rows(is_ordered=True)
            .order_by("destination")
            .values_list("destination", flat=True)
            .distinct()[:OFFERED]
        ),
        not_observed=[
            one for one in topologies if one.pk in scope.not_observed and one.state != State.DELETED
        ],
        doubts=doubts(around, brokers, topologies),
        stuck_in=_with_stuck(scope, topologies),
    )
    if filters.problems:
        return shown
    if not page:
        return replace(shown, summary=None if filters.text else counts.of_counts(scope, filters))
    delivered = due_before(whole.delivered_before, whole.stuck)
    rows = listing.filter_waiting(brokers, filters, now, delivered=delivered)
    rows = rows.reverse() if is_reversed else rows
    search = ScheduledSearch(brokers, rows, filters.query)
    found, rows_found = find_page(search, after)
    reader = Reader(hidden, whole.not_observed, whole.stuck)
    lines = [reader.line(row, now) for row in rows_found]
    shown = replace(shown, lines=lines, found=found)
    if search.reads_messages:
        number = found.number if after is None else None
        return replace(shown, matching=number, not_searchable=texts.not_searchable(rows))
    if after is not None:
        return shown
    total = counts.of_counts(scope, filters)
    return replace(shown, summary=total, matching=total.matching)


def find_page(search: ScheduledSearch, after: int | None) -> tuple[Found, list[ScheduledMessage]]:
    """The messages of a page, each with its topology and broker, in the order of the search."""
    found = find(search, after, PAGE)
    rows = ScheduledMessage.objects.select_related("broker", "topology__broker").in_bulk(found.ids)
    return found, [rows[pk] for pk in found.ids if pk in rows]


def _with_messages(brokers: Sequence[Broker], now: datetime) -> list[Topology]:
    """The topologies of these brokers; deleted ones only while messages still wait in them."""
    found = list(Topology.objects.filter(broker__in=brokers).select_related("broker"))
    deleted = [one.pk for one in found if one.state == State.DELETED]
    if not deleted:
        return found
    waiting = listing.waiting(brokers, now=now).filter(topology__in=deleted).order_by()
    kept = set(waiting.values_list("topology_id", flat=True).distinct())
    return [one for one in found if one.state != State.DELETED or one.pk in kept]


def scope_of_list(topologies: Sequence[Topology], filters: Filter, now: datetime) -> Scope:
    """The counted messages of a filter's topology and destination, due at any time."""
    around = _narrow(counts.scope_of(topologies, now), topologies, filters)
    return replace(around, destination=filters.destination)


def _narrow(whole: Scope, topologies: Sequence[Topology], filters: Filter) -> Scope:
    if not filters.topology:
        return whole
    named = [one for one in topologies if one.slug == filters.topology]
    return whole.only(named[0].pk if named else 0)


def _with_stuck(scope: Scope, topologies: Iterable[Topology]) -> list[tuple[Topology, int]]:
    """The topologies of the scope in which messages are stuck, and how many are in no list."""
    listed = counts.count_by_topology(scope.stuck_rows())
    rows = MissingBinding.objects.filter(topology__in=scope.ids, destination="", from_at=None)
    unlisted = dict(rows.values_list("topology", "stuck"))
    return [
        (one, unlisted.get(one.pk, 0)) for one in topologies if listed[one.pk] or one.pk in unlisted
    ]


def make_summary(brokers: Sequence[Broker], filters: Filter, now: datetime) -> dict[str, Any]:
    """The last line of `scheduled --json`; `matching` is None where a text is searched."""
    around = counts.scope(brokers, now, topology_slug=filters.topology)
    total = counts.of_counts(replace(around, destination=filters.destination), filters)
    found = doubts(around, brokers, Topology.objects.select_related("broker"))
    return {
        "kind": "summary",
        "waiting": total.waiting,
        "overdue": total.overdue,
        "stuck": total.stuck,
        "matching": None if filters.text else total.matching,
        "counted_to": counts.MOST,
        "incomplete": [doubt.record for doubt in found],
    }


def doubts(scope: Scope, brokers: Sequence[Broker], topologies: Iterable[Topology]) -> list[Doubt]:
    """Why the list may be incomplete, for each topology of the scope with a known reason."""
    known = snapshots.fresh_all(brokers, DEPTHS_AGE)
    by_broker = {broker.pk: one for broker, one in zip(brokers, known, strict=True)}
    ids = set(scope.ids)
    return find_doubts(scope, [one for one in topologies if one.pk in ids], by_broker)
