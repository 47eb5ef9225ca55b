"""The page of what waits, as values: numbers, rows, and what may be wrong with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from analytics.models import ScheduledMessage
from analytics.observation import due_before
from analytics.scheduled.pages.lines import Line, Reader
from analytics.scheduled.queries import listing, search
from analytics.scheduled.queries.filter import Filter
from analytics.scheduled.queries.listing import Place
from analytics.scheduled.queries.search import Found
from analytics.scheduled.summaries import counts, status, summary
from analytics.scheduled.summaries.counts import Scope
from analytics.scheduled.summaries.status import TopologyDoubt
from analytics.scheduled.summaries.summary import Summary
from topology import snapshots
from topology.database.paging import first_page
from topology.models import Broker, MissingBinding, State, Topology
from topology.redaction import Redaction

PAGE = 50
DEPTHS_AGE = timedelta(seconds=5)
OFFERED = 200


@dataclass(frozen=True)
class ScheduledList:
    """`summary` is None on later pages and when it was not requested.

    `stuck_in` are the topologies with stuck messages, each with how many no recording names.
    `remark` says why a search may have found more. `next_place` is where the next page begins, ""
    on the last.
    """

    now: datetime
    topologies: Sequence[Topology]
    destinations: Sequence[str]
    not_observed: Sequence[Topology]
    doubts: Sequence[TopologyDoubt]
    stuck_in: Sequence[tuple[Topology, int]] = ()
    lines: Sequence[Line] = ()
    summary: Summary | None = None
    remark: str = ""
    is_first: bool = True
    next_place: str = ""


def load_list(
    brokers: Sequence[Broker],
    filters: Filter,
    now: datetime,
    *,
    hidden: Mapping[int, Redaction],
    place: Place | None = None,
    is_reversed: bool = False,
) -> ScheduledList:
    """The page for these brokers; nothing is listed while the filter has problems.

    `hidden` has the redaction rules by broker for the reader. `is_reversed` does not apply to a
    search for a text, which reads the next due first.
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
        is_first=place is None,
    )
    if filters.problems:
        return shown
    delivered = due_before(whole.delivered_before, whole.stuck)
    rows = listing.filter_waiting(brokers, filters, now, delivered=delivered).select_related(None)
    reader = Reader(hidden, whole.not_observed, whole.stuck)
    if filters.text:
        found = search.search(listing.after(rows, place), filters.text, PAGE + 1)
        shown = replace(_with_page(shown, reader, _in_order(found)), remark=found.remark)
        total = summary.of_matches(found.matches, scope) if place is None else None
    else:
        listed = listing.page_after(rows, place, PAGE + 1, is_reversed=is_reversed)
        shown = _with_page(shown, reader, listed)
        total = summary.of_counts(scope, filters) if place is None else None
    return replace(shown, summary=total)


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


def doubts(
    scope: Scope, brokers: Sequence[Broker], topologies: Iterable[Topology]
) -> list[TopologyDoubt]:
    """Why the list may be incomplete, for each topology of the scope with a known reason."""
    known = snapshots.fresh_all(brokers, DEPTHS_AGE)
    by_broker = {broker.pk: one for broker, one in zip(brokers, known, strict=True)}
    ids = set(scope.ids)
    return status.doubts(scope, [one for one in topologies if one.pk in ids], by_broker)


def _in_order(found: Found) -> list[ScheduledMessage]:
    """The rows of a page of what was found, and one more if there is one."""
    ids = [match.pk for match in found.matches[: PAGE + 1]]
    rows = ScheduledMessage.objects.in_bulk(ids)
    return [rows[pk] for pk in ids if pk in rows]


def _with_page(
    shown: ScheduledList, reader: Reader, rows: Sequence[ScheduledMessage]
) -> ScheduledList:
    """The list with a page of rows, given these and one more, if any; no row reads its topology."""
    topologies = {one.pk: one for one in shown.topologies}
    for row in rows:
        if topology := topologies.get(row.topology_id or 0):
            row.topology, row.broker = topology, topology.broker
    page, next_place = page_of(rows)
    lines = [reader.line(row, shown.now) for row in page]
    return replace(shown, lines=lines, next_place=next_place)


def page_of(rows: Sequence[ScheduledMessage]) -> tuple[Sequence[ScheduledMessage], str]:
    """The first page of rows in due order, and where the next one begins, "" on the last."""
    page, last = first_page(rows, PAGE)
    return page, f"{last.due_at.isoformat()},{last.pk}" if last and last.due_at else ""
