"""What the text of a filter means in the messages that wait."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import merge
from itertools import islice

from django.db.models import QuerySet

from analytics.models import ScheduledMessage, ScheduledText
from analytics.scheduled.queries import texts
from analytics.scheduled.queries.filter import FIELDS, Filter
from analytics.scheduled.queries.listing import after_row
from analytics.search.conditions import filter_value, filter_words
from analytics.search.find import MOST, cut
from analytics.search.query import Pattern, Query, Word
from analytics.search.rights import find_refusal
from topology.database import text_index
from topology.database.select_keys import match_keys
from topology.database.text_index import Ids
from topology.models import Broker, Topology
from topology.redaction import Redaction


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
    """Those of the rows, which are of these brokers, in their order, that match the query.

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
    """Those of the rows that meet the conditions on columns."""
    for one in query.conditions:
        if one.field in FIELDS:
            column = FIELDS[one.field].column
            is_met = filter_value(one.value, column, column, is_folded=False)
            rows = rows.exclude(is_met) if one.is_negated else rows.filter(is_met)
    return rows
