"""What waits in the delays: the filter of an address or a command, its query, and what its text
means in the messages. Times of a filter may be relative, so `now` is a parameter.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from heapq import merge
from itertools import islice
from urllib.parse import urlencode

from django.db import connection
from django.db.models import F, Q, QuerySet

from analytics.buckets import OVERDUE_AFTER
from analytics.models import ScheduledMessage, ScheduledText
from analytics.models.scheduled_message import LEFT, WAITING, measure_lateness
from analytics.observation import is_presumed_delivered, is_stuck, stuck_ranges
from analytics.scheduled.queries import texts
from analytics.search.find import MOST, cut, filter_value, filter_words, find_refusal
from analytics.search.query import Field, Pattern, Query, QueryError, Word
from analytics.search.query import parse as parse_query
from topology.database import paging, text_index
from topology.database.select_keys import match_keys
from topology.database.text_index import Ids
from topology.delays import MomentError, read_moment
from topology.models import Broker, Topology
from topology.redaction import Redaction

LONGEST_NAME = 255
# Fields of the query beside words and values of headers and bodies.
FIELDS = {
    "id": Field(column="message_id"),
    "correlation": Field(column="correlation_id"),
    "exchange": Field(column="exchange"),
    "key": Field(column="routing_key"),
    "queue": Field(column="queue"),
    "attempt": Field("number", "attempt"),
    "size": Field("size", "size"),
    "entered": Field("moment", "entered_at"),
}
# Names in an address, and of the command's options.
NAMES = ("topology", "destination", "from", "until", "text")


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
    # Empty is no id, but the column of all messages without one.
    names = [name for name in names if name.strip()]
    numbers = (number for name in names if (number := paging.row_number(name)) is not None)
    named = Q(key__in=names) | Q(correlation_id__in=names) | Q(pk__in=numbers)
    return match_ids(rows.filter(named).values_list("pk", "key", "correlation_id"), names)


def match_ids(rows: Iterable[tuple[int, str, str]], names: Collection[str]) -> dict[str, set[int]]:
    """The numbers of the rows that each of these names means; a name of none is omitted.

    A row is its number, key and correlation id, "" for none. A name is a message id, or the content
    id of a message without one; else a correlation id, which for Celery is the task's id; else the
    number of a row. Raises AmbiguousId for a name that is the number of one message and the id of
    another.
    """
    numbers = {name: number for name in names if (number := paging.row_number(name)) is not None}
    by_name: dict[str, dict[str, set[int]]] = {name: defaultdict(set) for name in names}
    numbered = set()
    for row_id, *ids in rows:
        numbered.add(row_id)
        for kind, name in zip(("key", "correlation"), ids, strict=True):
            if name and name in by_name:
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


@dataclass(frozen=True)
class Filter:
    """Empty texts select everything. `broker` is a slug, which the reader looks up. `from_at` is
    inclusive, `until_at` is exclusive.

    `query` is what the text means. `from_text` and `until_text` are as typed, `problems` has a
    sentence for each invalid field: then nothing should be listed.
    """

    topology: str = ""
    destination: str = ""
    text: str = ""
    query: Query = field(default_factory=Query)
    broker: str = ""
    is_overdue: bool = False
    is_stuck: bool = False
    from_text: str = ""
    until_text: str = ""
    from_at: datetime | None = None
    until_at: datetime | None = None
    problems: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_narrowed(self) -> bool:
        """Whether it leaves out anything of its brokers."""
        return bool(self.as_values().keys() - {"broker"})

    def as_values(self) -> dict[str, str]:
        """The values that `parse` reads back; only those that are set."""
        values = {
            "broker": self.broker,
            "topology": self.topology,
            "destination": self.destination,
            "from": self.from_text,
            "until": self.until_text,
            "text": self.text,
            "overdue": "1" if self.is_overdue else "",
            "stuck": "1" if self.is_stuck else "",
        }
        return {name: value for name, value in values.items() if value}

    def url(self, **changes: str) -> str:
        """A query string of this filter, with changes; "?" alone for everything.

        `from_` means "from".
        """
        values = self.as_values() | {name.rstrip("_"): value for name, value in changes.items()}
        return "?" + urlencode({name: value for name, value in values.items() if value})


def parse(values: Mapping[str, str], now: datetime) -> Filter:
    """Read the values of a form or an address; invalid ones are kept and listed in `problems`."""
    typed = {name: values.get(name, "").strip() for name in NAMES}
    problems = {
        name: f"The text is longer than {LONGEST_NAME} characters. Shorten it."
        for name in ("topology", "destination")
        if len(typed[name]) > LONGEST_NAME
    }
    query = Query()
    try:
        query = parse_query(typed["text"], now, FIELDS)
    except QueryError as error:
        problems["text"] = str(error)
    moments: dict[str, datetime | None] = {}
    for name in ("from", "until"):
        try:
            moments[name] = read_moment(typed[name], now) if typed[name] else None
        except MomentError as error:
            moments[name] = None
            problems[name] = str(error)
    from_at, until_at = moments["from"], moments["until"]
    if from_at and until_at and from_at >= until_at:
        problems["until"] = "The end must be later than the start."
    return Filter(
        topology=typed["topology"],
        destination=typed["destination"],
        text=typed["text"],
        query=query,
        broker=values.get("broker", "").strip(),
        is_overdue=values.get("overdue", "") not in ("", "0"),
        is_stuck=values.get("stuck", "") not in ("", "0"),
        from_text=typed["from"],
        until_text=typed["until"],
        from_at=from_at,
        until_at=until_at,
        problems=problems,
    )


def written_moment(moment: datetime) -> str:
    """A time as `read_moment` reads it, to the second and short enough to be read by people."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="seconds")
