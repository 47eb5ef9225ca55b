"""A query for one broker, and the parked messages that match it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from django.db import connection
from django.db.models import Exists, F, OuterRef, Q, QuerySet, Value

from analytics.search.find import MOST, cut, filter_value, filter_words
from analytics.search.query import Condition, Field, Pattern, Query, QueryError
from delayboard.dead_letters.parked.failure import put_placeholders
from delayboard.dead_letters.search import index
from delayboard.models import MessageGroup, ParkedField, ParkedMessage, ParkedState, ParkedText
from topology.content.text import fold
from topology.database import text_index
from topology.database.select_keys import match_keys
from topology.database.text_index import Ids
from topology.models import Broker

FIELDS: dict[str, Field] = {
    "reason": Field(column="reason"),
    "died": Field(column="died_in"),
    "exchange": Field(column="exchange"),
    "key": Field(column="routing_key"),
    "exception": Field(column="exception"),
    "type": Field(column="message_type"),
    "queue": Field(column="queue"),
    "id": Field(column="searched__message_id"),
    "group": Field("number", "pk"),
    "deaths": Field("number", "deaths"),
    "size": Field("size", "size"),
    "parked": Field("moment", "parked_at"),
    "died-at": Field("moment", "died_at"),
    "state": Field("choice", choices=(*ParkedState.values, "any")),
    "repeat": Field("choice", choices=("yes", "no")),
}
# Fields whose columns are those of a message's group.
OF_GROUPS = ("reason", "died", "exchange", "key", "exception", "type", "group")
# Most groups or queues that are each read by its index; of more the messages are read one by one.
MOST_SERIES = 100
MOST_QUEUES = 10_000
# Text that, behind another, is above every text that begins with it: UTF-8 orders as code points
# do.
LAST = "\U0010ffff"


@dataclass(frozen=True)
class Search:
    """`groups` and `queues` are those that match, None where all do. The newest come first."""

    broker: Broker
    query: Query
    groups: frozenset[int] | None = None
    queues: tuple[str, ...] | None = None
    is_oldest_first: bool = False

    @property
    def state(self) -> str:
        return self.query.chosen.get("state", ParkedState.PARKED)

    @property
    def states(self) -> tuple[str, ...]:
        return tuple(ParkedState.values) if self.state == "any" else (self.state,)

    @property
    def is_empty(self) -> bool:
        """Whether no group or no queue matches."""
        return self.groups == frozenset() or self.queues == ()

    @cached_property
    def conditions(self) -> tuple[Condition, ...]:
        """The conditions that groups and names of queues do not answer."""
        answered = (*OF_GROUPS, "queue")
        return tuple(one for one in self.query.conditions if one.field not in answered)

    @property
    def reads_messages(self) -> bool:
        keys = self._series_keys
        is_of_series = keys is None or (
            len(keys) <= MOST_SERIES and None in (self.groups, self.queues)
        )
        return self.reads_each or not is_of_series or "repeat" in self.query.chosen

    @property
    def reads_each(self) -> bool:
        """Whether more of each message must be read than its group, queue and state."""
        return bool(self.query.words or self.conditions)

    @property
    def needs_index(self) -> bool:
        """Whether a message that is not indexed yet cannot match."""
        return self.query.reads_content or any(one.field == "id" for one in self.conditions)

    def messages(self) -> QuerySet[ParkedMessage]:
        """All that match, the newest first; without those that are not indexed yet, if it reads
        what only the index has.
        """
        rows = self._filter_columns()
        if self.needs_index:
            rows = rows.filter(searched__isnull=False)
        for condition in self.conditions:
            is_met = _is_met(condition)
            rows = rows.exclude(is_met) if condition.is_negated else rows.filter(is_met)
        return filter_words(rows, self.query.words).order_by("-pk")

    def not_indexed(self) -> QuerySet[ParkedMessage]:
        """Messages that may match, and are omitted because they are not indexed yet."""
        if not self.needs_index:
            return ParkedMessage.objects.none()
        return (
            self._filter_columns().filter(pk__gt=index.read_to(), searched__isnull=True).order_by()
        )

    def index_newest(self, after: int | None) -> None:
        if self.needs_index:
            index.add_newest(None if self.is_oldest_first else after)

    def next(self, after: int | None, number: int) -> list[int]:
        if self.is_empty:
            return []
        rows = ParkedMessage.objects.all()
        if after is not None:
            rows = rows.filter(**{"pk__gt" if self.is_oldest_first else "pk__lt": after})
        order = "pk" if self.is_oldest_first else "-pk"
        # Parts of these rows, each of which an index has in order.
        of_broker = rows.filter(broker=self.broker)
        keys = self._series_keys
        if keys is None or len(keys) > MOST_SERIES:
            of_keys = [of_broker]
        elif self.groups is None:
            of_keys = [of_broker.filter(queue=key) for key in keys]
        else:
            of_keys = [rows.filter(group=key) for key in self.groups]
        return _read_ordered(
            [one.filter(state=state) for one in of_keys for state in self.states], order, number
        )

    def select(self, ids: Collection[int], most: int | None = None) -> list[int]:
        rows = self.messages().filter(match_keys(ids)) if ids else ParkedMessage.objects.none()
        return list(rows.values_list("pk", flat=True)[:most])

    def candidates(self, head: Sequence[int], after: int | None) -> Iterator[Ids]:
        """The ids from the index, the newest first."""
        for condition in self.conditions:
            if not condition.is_negated:
                yield from _list_ids(condition, after)
        for word in sorted(self.query.words, key=lambda word: -len(word.text)):
            if not word.is_negated:
                ids = text_index.find(ParkedText, "delayboard_parkedindex", word.text, head, after)
                if ids is not None:
                    yield ids if len(ids.ids) <= MOST else cut(ids.ids, MOST)
        yield cut(self.next(after, MOST + 1), MOST)

    @property
    def _series_keys(self) -> frozenset[int] | tuple[str, ...] | None:
        return self.queues if self.groups is None else self.groups

    def _filter_columns(self) -> QuerySet[ParkedMessage]:
        rows = ParkedMessage.objects.filter(broker=self.broker, state__in=self.states)
        if self.groups is not None:
            rows = rows.filter(group__in=self.groups)
        if self.queues is not None:
            rows = rows.filter(queue__in=self.queues)
        if (repeat := self.query.chosen.get("repeat")) is not None:
            rows = rows.filter(repeat_of__isnull=repeat == "no")
        return rows


def _read_ordered(rows: Sequence[QuerySet[Any]], order: str, number: int) -> list[int]:
    """The first ids in a column of these, each of which an index has in this order."""
    column, direction = order.removeprefix("-"), "DESC" if order.startswith("-") else "ASC"
    series = [one.order_by(order).values_list(column, flat=True) for one in rows]
    read = [one.query.sql_with_params() for one in series]
    # Each is ordered, so that PostgreSQL merges them, and does not sort them all.
    union = " UNION ALL ".join(f"SELECT * FROM ({sql}) AS series" for sql, _ in read)  # noqa: S608
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT * FROM ({union}) AS merged ORDER BY 1 {direction} LIMIT {number}",  # noqa: S608
            [value for _, params in read for value in params],
        )
        return [row[0] for row in cursor.fetchall()]


def search_for(broker: Broker, query: Query) -> Search:
    """Find out which groups and queues of the broker the query means."""
    return Search(broker, query, _find_groups(broker, query), _find_queues(broker, query))


def _find_groups(broker: Broker, query: Query) -> frozenset[int] | None:
    wanted = [one for one in query.conditions if one.field in OF_GROUPS]
    if not wanted:
        return None
    columns = ["pk", "merged_into", *(FIELDS[one.field].column for one in wanted)]
    rows = MessageGroup.objects.filter(broker=broker).order_by().values_list(*columns)
    return frozenset(
        pk
        for pk, shown_in, *values in rows
        if all(
            _is_group_match(one, value, shown_in) for one, value in zip(wanted, values, strict=True)
        )
    )


def _is_group_match(condition: Condition, value: str | int, shown_in: int | None) -> bool:
    """A number of a group means those that were merged into it too."""
    values = [value] if condition.field != "group" or shown_in is None else [value, shown_in]
    return any(_is_match(condition, one) for one in values) != condition.is_negated


def _is_match(condition: Condition, value: str | int) -> bool:
    wanted = condition.value
    if not isinstance(wanted, Pattern):
        return wanted.has(float(value))
    folded = fold(str(value))
    if wanted.matches(folded):
        return True
    # A group's key has placeholders: a whole key finds the group that it belongs to.
    is_key = condition.field == "key" and wanted.is_exact
    return is_key and fold(put_placeholders(wanted.pieces[0])) == folded


def _find_queues(broker: Broker, query: Query) -> tuple[str, ...] | None:
    wanted = [one for one in query.conditions if one.field == "queue"]
    if not wanted:
        return None
    names = queue_names(broker, MOST_QUEUES + 1)
    if len(names) > MOST_QUEUES:
        raise QueryError("There are too many queues to search for some of them.")
    return tuple(
        name for name in names if all(_is_match(one, name) != one.is_negated for one in wanted)
    )


def queue_names(broker: Broker, most: int) -> list[str]:
    """The first queues that messages of the broker were parked from; each is a step in an index."""
    with connection.cursor() as cursor:
        cursor.execute(QUEUE_NAMES, [broker.pk, broker.pk, most])
        return [row[0] for row in cursor.fetchall()]


QUEUE_NAMES = """
    WITH RECURSIVE known(name) AS (
        SELECT min(queue) FROM delayboard_parkedmessage WHERE broker_id = %s
        UNION ALL
        SELECT (
            SELECT min(queue) FROM delayboard_parkedmessage
            WHERE broker_id = %s AND queue > known.name
        ) FROM known WHERE known.name IS NOT NULL
    )
    SELECT name FROM known WHERE name IS NOT NULL LIMIT %s
"""


def _is_met(condition: Condition) -> Q:
    if condition.is_content:
        fields = ParkedField.objects.filter(parked_message=OuterRef("pk"), name=condition.field)
        # Added to nothing, so that no planner reads the index of numbers for each message.
        fields = fields.alias(value=F("number") + Value(0.0))
        return Q(Exists(fields.filter(filter_value(condition.value, "text", "value"))))
    column = FIELDS[condition.field].column
    return filter_value(condition.value, column, column)


def _list_ids(condition: Condition, below: int | None) -> Iterator[Ids]:
    """One list, or none where there are too many that the index does not have by id."""
    wanted = condition.value
    rows: Any
    if condition.is_content:
        rows = ParkedField.objects.filter(name=condition.field)
        column = "text" if isinstance(wanted, Pattern) else "number"
    else:
        rows = ParkedText.objects.all()
        column = FIELDS[condition.field].column.removeprefix("searched__")
    if isinstance(wanted, Pattern) and wanted.is_exact:
        older = rows if below is None else rows.filter(parked_message__lt=below)
        series = [older.filter(**{column: wanted.pieces[0][:255]})]
        if condition.is_content and wanted.number is not None:
            series.append(older.filter(number=wanted.number))
        # Most messages are in both.
        most = len(series) * MOST
        yield cut(_read_ordered(series, "-parked_message", most + 1), most)
        return
    if isinstance(wanted, Pattern):
        first = wanted.pieces[0]
        within = {f"{column}__gte": first, f"{column}__lt": first + LAST}
        rows = rows.filter(**within) if first else rows
    else:
        rows = rows.filter(filter_value(wanted, column, column))
    ids = list(rows.order_by(column).values_list("parked_message", flat=True)[: MOST + 1])
    if len(ids) <= MOST:
        yield Ids(tuple(pk for pk in ids if below is None or pk < below))
