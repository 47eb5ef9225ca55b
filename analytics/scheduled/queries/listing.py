"""What waits in the delays: the query of a filter, and what its text means in the messages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from heapq import merge
from itertools import islice

from django.db import connection
from django.db.models import F, Q, QuerySet

from analytics.buckets import OVERDUE_AFTER
from analytics.models import ScheduledMessage, ScheduledText
from analytics.models.scheduled_message import LEFT, WAITING, measure_lateness
from analytics.observation import is_presumed_delivered, is_stuck, stuck_ranges
from analytics.scheduled.queries import texts
from analytics.scheduled.queries.filter import FIELDS, Filter
from analytics.search.conditions import filter_value, filter_words
from analytics.search.find import MOST, cut
from analytics.search.query import Pattern, Query, Word
from analytics.search.rights import find_refusal
from topology.database import paging, text_index
from topology.database.select_keys import match_keys
from topology.database.text_index import Ids
from topology.models import Broker, Topology
from topology.redaction import Redaction


class AmbiguousId(ValueError):
    """A name means messages in two ways; the message says what to use."""


@dataclass(frozen=True)
class Observation:
    """What the taps saw of a tracked message's first trip; None is not seen yet.

    `message` is the number of its row. `lateness` is negative when it arrived early. When
    `caught_up` is false a recording was made late, so that the lateness may be the recorder's and
    not the broker's.
    """

    message: int
    entered_at: datetime | None
    due_at: datetime | None
    arrived_at: datetime | None
    lateness: timedelta | None
    attempt: int
    caught_up: bool


def read_observations(tracking_ids: Collection[str]) -> dict[str, Observation]:
    """What was seen of the messages with these tracking ids, where anything was."""
    rows = ScheduledMessage.objects.filter(tracking_id__in=tracking_ids).exclude(tracking_id="")
    # The first attempt is the last to be kept.
    return {row.tracking_id: _observe(row) for row in rows.order_by("-attempt", "-id")}


def _observe(row: ScheduledMessage) -> Observation:
    is_seen = row.ending == LEFT
    return Observation(
        message=row.pk,
        entered_at=row.entered_at,
        due_at=row.due_at,
        arrived_at=row.left_at if is_seen else None,
        lateness=measure_lateness(row) if is_seen else None,
        attempt=row.attempt,
        caught_up=row.caught_up,
    )


def waiting(
    brokers: Iterable[Broker],
    *,
    topology_slug: str = "",
    now: datetime | None = None,
    delivered: Q | None = None,
) -> QuerySet[ScheduledMessage]:
    """The waiting messages of these brokers, the soonest due first.

    Without observed deliveries, a message counts as delivered when it was due, unless it is stuck:
    `delivered` selects these rows, if the caller has it.
    """
    rows = ScheduledMessage.objects.filter(WAITING)
    visible = [broker.pk for broker in brokers]
    if connection.vendor == "sqlite":
        # Without the sum SQLite reads its index by brokers to the end, and sorts that.
        rows = rows.alias(of_broker=F("broker_id") + 0).filter(of_broker__in=visible)
    else:
        rows = rows.filter(broker__in=visible)
    rows = rows.exclude(
        is_presumed_delivered(now or datetime.now(UTC)) if delivered is None else delivered
    )
    if topology_slug:
        named = Topology.objects.filter(slug=topology_slug).values_list("pk", flat=True)
        rows = rows.filter(topology__in=list(named))
    return rows.select_related("broker", "topology").order_by("due_at", "id")


def filter_waiting(
    brokers: Iterable[Broker], filters: Filter, now: datetime, *, delivered: Q | None = None
) -> QuerySet[ScheduledMessage]:
    """The waiting rows that match a filter, without its text; `delivered` as in `waiting`."""
    rows = waiting(brokers, topology_slug=filters.topology, now=now, delivered=delivered)
    if filters.destination:
        rows = rows.filter(destination=filters.destination)
    if filters.from_at is not None:
        rows = rows.filter(due_at__gte=filters.from_at)
    if filters.until_at is not None:
        rows = rows.filter(due_at__lt=filters.until_at)
    if filters.is_stuck:
        rows = rows.filter(is_stuck(stuck_ranges(), now))
    return rows.filter(due_at__lt=now - OVERDUE_AFTER) if filters.is_overdue else rows


def read_ids(rows: QuerySet[ScheduledMessage], names: Collection[str]) -> dict[str, set[int]]:
    """As `match_ids`, of these rows."""
    numbers = (number for name in names if (number := paging.row_number(name)) is not None)
    named = Q(key__in=names) | Q(correlation_id__in=names) | Q(pk__in=numbers)
    return match_ids(rows.filter(named).values_list("pk", "key", "correlation_id"), names)


def match_ids(rows: Iterable[tuple[int, str, str]], names: Collection[str]) -> dict[str, set[int]]:
    """The numbers of the rows that each of these names means; a name of none is omitted.

    A row is its number, key and correlation id. A name is a message id, or the content id of a
    message without one; else a correlation id, which for Celery is the task's id; else the number
    of a row. Raises AmbiguousId for a name that is the number of one message and the id of another.
    """
    numbers = {name: number for name in names if (number := paging.row_number(name)) is not None}
    by_name: dict[str, dict[str, set[int]]] = {name: defaultdict(set) for name in names}
    numbered = set()
    for row_id, *ids in rows:
        numbered.add(row_id)
        for kind, name in zip(("key", "correlation"), ids, strict=True):
            if name in by_name:
                by_name[name][kind].add(row_id)
    found = {name: kinds["key"] or kinds["correlation"] for name, kinds in by_name.items()}
    for name, number in numbers.items():
        if number in numbered and found[name] - {number}:
            raise AmbiguousId(
                f"“{name}” is the number of one message and the id of another. Use the message id "
                "or the content id."
            )
        found[name] |= {number} & numbered
    return {name: ids for name, ids in found.items() if ids}


def after_row(
    rows: QuerySet[ScheduledMessage], row: ScheduledMessage | None
) -> QuerySet[ScheduledMessage]:
    """The rows, in due order or reversed, that follow this one; all of them for None."""
    if row is None or row.due_at is None:
        return rows
    if rows.query.standard_ordering:
        # The first condition alone lets the index begin there.
        return rows.filter(due_at__gte=row.due_at).exclude(due_at=row.due_at, id__lte=row.pk)
    return rows.filter(due_at__lte=row.due_at).exclude(due_at=row.due_at, id__gte=row.pk)


def allowed(
    filters: Filter, brokers: Collection[Broker], hidden: Mapping[int, Redaction]
) -> Filter:
    """The same filter; its text is a problem when a search would reveal redacted values.

    `hidden` has the redaction rules by broker for the user of the filter.
    """
    searched = {broker.pk for broker in brokers}
    if filters.text and filters.topology:
        named = Topology.objects.filter(slug=filters.topology)
        searched.intersection_update(named.values_list("broker", flat=True))
    for broker in brokers if filters.query != Query() else ():
        refusal = find_refusal(hidden[broker.pk], filters.query) if broker.pk in searched else ""
        if refusal:
            sentence = f"{refusal} The rules are those of “{broker.name}”."
            return replace(filters, problems={**filters.problems, "text": sentence})
    return filters


@dataclass(frozen=True)
class ScheduledSearch:
    """The rows, which are of these brokers, that match the query, in their order.

    `parts` are the topologies of which the rows are read one by one, where few of all rows are
    theirs: each has an index in due order.
    """

    brokers: Collection[Broker]
    rows: QuerySet[ScheduledMessage]
    query: Query
    parts: Sequence[int] | None = None

    @property
    def reads_messages(self) -> bool:
        return self.query != Query()

    def index_newest(self, after: int | None) -> None:
        if self.query.words or self._terms:
            texts.add_newest()

    def next(self, after: int | None, number: int) -> list[int]:
        known = ScheduledMessage.objects.filter(broker__in=self.brokers)
        rows = after_row(self.rows, known.filter(pk=after).first() if after else None)
        if self.parts is None:
            return list(rows.values_list("pk", flat=True)[:number])
        places = rows.values_list("due_at", "pk")
        pages = [list(places.filter(topology=one)[:number]) for one in self.parts]
        return [pk for _, pk in islice(merge(*pages), number)]

    def select(self, ids: Collection[int], most: int | None = None) -> list[int]:
        if not ids:
            return []
        rows = filter_columns(self.rows.filter(match_keys(ids)), self.query)
        words = (*self.query.words, *map(Word, self._terms))
        found = list(filter_words(rows, words).values_list("pk", flat=True))
        if self.query.content:
            values = texts.values_of(found)
            found = [pk for pk in found if self.query.has_values(values.get(pk, ()))]
        return found[:most]

    def candidates(self, head: Sequence[int], after: int | None) -> Iterator[Ids]:
        for term in self._terms:
            ids = text_index.find(ScheduledText, "analytics_textindex", term, head)
            if ids is not None and ids.floor is None and len(ids.ids) <= MOST:
                yield ids
        yield cut(self.next(after, MOST + 1), MOST)

    @cached_property
    def _terms(self) -> list[str]:
        """What the text of each match contains, the longest first."""
        terms = [word.text for word in self.query.words if not word.is_negated]
        for one in self.query.conditions:
            # A value of a body may be behind what is indexed of it, a number written otherwise.
            is_in_text = one.field in ("id", "correlation") or one.field.startswith("header.")
            value = one.value
            if isinstance(value, Pattern) and value.number is None and is_in_text:
                terms += () if one.is_negated else filter(None, value.pieces)
        return sorted(set(terms), key=len, reverse=True)


def filter_columns(rows: QuerySet[ScheduledMessage], query: Query) -> QuerySet[ScheduledMessage]:
    """The rows that meet the conditions on columns."""
    for one in query.conditions:
        if one.field in FIELDS:
            column = FIELDS[one.field].column
            is_met = filter_value(one.value, column, column, is_folded=False)
            rows = rows.exclude(is_met) if one.is_negated else rows.filter(is_met)
    return rows
