"""The page of waiting messages, as values: numbers, doubts, and each message as people read it."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from analytics.buckets import OVERDUE_AFTER
from analytics.models import ScheduledBody, ScheduledMessage
from analytics.models.scheduled_message import LEFT, NOT_OBSERVED
from analytics.observation import StuckRange, due_before, stuck_ranges, unobserved
from analytics.scheduled.queries import listing, texts
from analytics.scheduled.queries.listing import Filter, ScheduledSearch
from analytics.scheduled.summaries import counts
from analytics.scheduled.summaries.completeness import Doubt, find_doubts
from analytics.scheduled.summaries.counts import Scope, Summary
from analytics.search.find import Found, find
from topology import snapshots
from topology.clients.describe import Description, describe
from topology.content.bodies import Body, show_body, unpack
from topology.content.text import make_encodable
from topology.delays import format_span
from topology.message import PUBLISHED_AT_HEADER
from topology.models import Broker, MissingBinding, State, Topology
from topology.patterns.pattern import ParamsError
from topology.redaction import HIDDEN, NOTHING, Redaction, hides_fact

STAMPED = "delayboard"
# Source of a publish time -> its text: header, our stamp in a header, recorder.
SOURCES = {
    STAMPED: "Delayboard’s timestamp",
    "NServiceBus.Retries.Timestamp": "the header NServiceBus.Retries.Timestamp",
    "timestamp_in_ms": "the header timestamp_in_ms",
    "NServiceBus.TimeSent": "the header NServiceBus.TimeSent",
    "recorded": "time of recording",
    "timestamp": "the AMQP timestamp, in whole seconds",
}
PAGE = 50
DEPTHS_AGE = timedelta(seconds=5)
OFFERED = 200


@dataclass(frozen=True)
class ScheduledLine:
    """`hops` is how many waits its delay consists of, `remaining_hops` how many are not over.

    None when unknown. `overdue_by` is None while it is not overdue. `is_stuck`: it is due, and
    RabbitMQ keeps it because it cannot route it. `is_unobserved`: it is due, and its delivery is
    not observed. `hidden` are the redacted parts of messages of its broker: values
    derived from a redacted header are redacted too.
    """

    row: ScheduledMessage
    overdue_by: timedelta | None
    hops: int | None
    remaining_hops: int | None
    hidden: Redaction = NOTHING
    is_stuck: bool = False
    is_unobserved: bool = False

    @property
    def is_masked(self) -> bool:
        """Whether there is a rule that hides something from the reader."""
        return not self.hidden.is_empty

    @property
    def hides_something(self) -> bool:
        """Whether a header of it, or what is derived from one, is hidden from the reader."""
        if not self.is_masked:
            return False
        read: dict[str, Any] = json.loads(self.row.headers_json)
        is_derived = self.hides_published_at or self.published_by != self.row.published_by
        return is_derived or self.headers != read

    @property
    def headers(self) -> dict[str, Any]:
        """The headers as they were recorded, with HIDDEN in the place of what is hidden."""
        return self.hidden.headers(json.loads(self.row.headers_json))

    @property
    def hides_published_at(self) -> bool:
        source = self.row.published_at_source
        header = PUBLISHED_AT_HEADER if source == STAMPED else source
        return bool(self.row.published_at) and self.hidden.hides_header(header)

    @property
    def published_at(self) -> datetime | None:
        """None also when the header with the time is redacted."""
        return None if self.hides_published_at else self.row.published_at

    @property
    def published_by(self) -> str:
        """HIDDEN when a header that may contain it is redacted; "" when unknown."""
        by = self.row.published_by
        return HIDDEN if by and hides_fact(self.hidden, "publisher") else by

    @cached_property
    def client(self) -> Description | None:
        """What its client library wrote into its headers, as far as the reader may see it."""
        return describe(self.headers, routing_key=self.row.routing_key)

    @property
    def message_type(self) -> str:
        """The type or task that its headers state; "" when they do not."""
        return (self.client and self.client.message_type) or ""

    @property
    def is_overdue(self) -> bool:
        return self.overdue_by is not None

    @property
    def state(self) -> str:
        """ "stuck", "overdue", NOT_OBSERVED, LEFT or "waiting"."""
        if self.is_stuck:
            return "stuck"
        if self.is_overdue:
            return "overdue"
        if self.is_unobserved:
            return NOT_OBSERVED
        return "waiting" if self.row.left_at is None else LEFT

    @property
    def overdue_words(self) -> str:
        """How much; "" while it is not overdue."""
        by = self.overdue_by
        return format_span(by) if by else ""

    @property
    def published_source(self) -> str:
        """Where the time of its publication is from, in words; "" when it is not known."""
        return SOURCES.get(self.row.published_at_source, self.row.published_at_source)

    @property
    def name(self) -> str:
        """The message id, else the id of its library, else the beginning of its content's hash."""
        stated = self.client and self.client.message_id
        known = "" if stated == HIDDEN else stated
        return self.row.message_id or known or f"{self.row.content_id[:12]}…"


class Reader:
    """Reads rows; each topology's parameters are parsed once.

    `hidden` has the redaction rules by broker for the reader; None redacts nothing. `not_observed`
    are the topologies without observed deliveries, and `stuck` the stuck messages, if the caller
    has them.
    """

    def __init__(
        self,
        hidden: Mapping[int, Redaction] | None,
        not_observed: Collection[int] | None = None,
        stuck: Collection[StuckRange] | None = None,
    ) -> None:
        self._hidden = hidden
        self._params: dict[int, Any] = {}
        if not_observed is None:
            not_observed = [one.pk for one in unobserved()]
        self._not_observed = set(not_observed)
        self._stuck = stuck_ranges() if stuck is None else stuck

    def line(self, row: ScheduledMessage, now: datetime) -> ScheduledLine:
        """The row in its current state."""
        waits = self.find_waits(row)
        is_seen = (row.topology_id or 0) not in self._not_observed
        by, is_left = row.overdue_by(now), row.left_at is not None
        is_stuck = bool(by) and any(
            one.holds(row.topology_id, row.destination, row.due_at) for one in self._stuck
        )
        return ScheduledLine(
            row=row,
            overdue_by=by if by > OVERDUE_AFTER and (is_seen or is_stuck) else None,
            hops=None if waits is None else len(waits),
            remaining_hops=None
            if waits is None
            else _count_remaining(waits, row.entered_at or now, now),
            hidden=NOTHING if self._hidden is None else self._hidden[row.broker_id],
            is_stuck=is_stuck,
            is_unobserved=not is_seen if by else is_left and row.ending == NOT_OBSERVED,
        )

    def find_waits(self, row: ScheduledMessage) -> Sequence[timedelta] | None:
        """The waits that its delay consists of; None when unknown."""
        topology = row.topology
        if topology is None:
            return None
        try:
            if topology.pk not in self._params:
                self._params[topology.pk] = topology.parsed
            return topology.pattern.waits(self._params[topology.pk], row.requested_delay)
        except ParamsError:
            return None


def _count_remaining(waits: Iterable[timedelta], entered_at: datetime, now: datetime) -> int:
    left, end_at = 0, entered_at
    for wait in waits:
        end_at += wait
        left += end_at > now
    return left


@dataclass(frozen=True)
class Wait:
    """A planned stay in a delay; `mark` is over, now, to come, or that of a message which remains:
    stuck, overdue."""

    begins_at: datetime
    length: timedelta
    mark: str


@dataclass(frozen=True)
class MessagePage:
    """`headers` are (name, text, whether the text is JSON of several lines).

    `is_masked`: something of it is hidden from the reader by a rule.
    """

    line: ScheduledLine
    headers: tuple[tuple[str, str, bool], ...]
    path: tuple[Wait, ...]
    has_body: bool
    is_masked: bool


def make_page(row: ScheduledMessage, now: datetime, hidden: Redaction) -> MessagePage:
    reader = Reader({row.broker_id: hidden})
    line = reader.line(row, now)
    has_body = ScheduledBody.objects.filter(message=row).exists()
    begins_at = row.entered_at
    path: list[Wait] = []
    for length in reader.find_waits(row) or () if begins_at else ():
        assert begins_at is not None
        ends_at = begins_at + length
        is_over = ends_at <= now or row.left_at is not None
        mark = "over" if is_over else "now" if begins_at <= now else "to come"
        path.append(Wait(begins_at, length, mark))
        begins_at = ends_at
    if path and (line.is_stuck or line.is_overdue):
        path[-1] = replace(path[-1], mark=line.state)
    return MessagePage(
        line=line,
        headers=tuple(
            (make_encodable(name), *_value(value)) for name, value in line.headers.items()
        ),
        path=tuple(path),
        has_body=has_body,
        is_masked=line.hides_something or (has_body and bool(hidden.body_paths)),
    )


def body(row: ScheduledMessage, hidden: Redaction) -> Body | None:
    """None where all of it is hidden. Raises ScheduledBody.DoesNotExist where none is kept."""
    kept = bytes(ScheduledBody.objects.get(message=row).body)
    if not hidden.body_paths:
        return show_body(kept)
    shown = hidden.body(unpack(kept).data)
    return None if shown == HIDDEN.encode() else replace(show_body(shown), size=len(kept))


def _value(value: Any) -> tuple[str, bool]:
    if isinstance(value, str):
        return make_encodable(value), False
    is_long = isinstance(value, (dict, list))
    text = json.dumps(value, indent=2 if is_long else None, ensure_ascii=False)
    return make_encodable(text), is_long


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
