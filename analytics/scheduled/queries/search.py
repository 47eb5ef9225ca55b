"""Finds a text in the messages that wait, with a bound on what one request reads.

The next messages in due order are read first, which finds what is common at once. What is rarer
the index of texts finds, beside what is too young for it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

from django.db.models import QuerySet, Value
from django.db.models.functions import StrIndex

from analytics.models import ScheduledMessage, ScheduledText
from analytics.scheduled.queries import texts
from analytics.scheduled.queries.filter import Filter
from topology.content.text import fold
from topology.database import text_index
from topology.models import Broker, Topology
from topology.redaction import Redaction

# Next due messages that are read first: enough to fill a page with common matches.
HEAD = 300
# Messages read next, when the text is too common for the index and too rare for the first ones.
DEPTHS = (3000, 10_000)
# Matches of the index that are put in order.
MOST = 5000
# Rows passed at most that are not indexed yet.
YOUNG = 10_000
YOUNG_READ = 2000
NAMED = 3


class Match(NamedTuple):
    """The position of a match in the list, and its destination."""

    due_at: datetime
    pk: int
    destination: str
    topology: int


@dataclass(frozen=True)
class Found:
    """The matches in due order. `remark` says why there may be more, "" when these are all."""

    matches: tuple[Match, ...]
    remark: str = ""


def allowed(
    filters: Filter, brokers: Collection[Broker], hidden: Mapping[int, Redaction]
) -> Filter:
    """The same filter; its text is a problem when a search would reveal redacted values.

    `hidden` has the redaction rules by broker for the user of the filter.
    """
    hiding = {broker.pk: broker.name for broker in brokers if not hidden[broker.pk].is_empty}
    if filters.text and filters.topology and hiding:
        where = Topology.objects.filter(slug=filters.topology).values_list("broker", flat=True)
        hiding = {pk: hiding[pk] for pk in where if pk in hiding}
    if not filters.text or not hiding:
        return filters
    return replace(
        filters, problems={**filters.problems, "text": _refusal(sorted(hiding.values()))}
    )


def _refusal(names: Sequence[str]) -> str:
    sentence = ", ".join(f"“{name}”" for name in names[:NAMED])
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return (
        "Text search is not available because redaction rules hide headers or body values "
        f"on {sentence}{more} from you. Clear the text field."
    )


def search(rows: QuerySet[ScheduledMessage], text: str, number: int) -> Found:
    """Those of the rows, which are in due order, that hold the text; at least `number` if so many.

    Upper and lower case are the same. What is searched: message id, correlation id, headers,
    and the beginning of a kept body that is text.
    """
    term = fold(text)
    first, is_all = _matching(rows, term, HEAD)
    if is_all or len(first) >= number:
        return Found(first, "" if is_all else _only_next(HEAD))
    sample = rows.filter(searched__isnull=False).values_list("pk", flat=True)[: text_index.SAMPLE]
    indexed = text_index.find(ScheduledText, "analytics_textindex", term, list(sample))
    remarks = []
    if indexed is None or indexed.floor is not None or len(indexed.ids) > MOST:
        for depth in DEPTHS:
            first, is_all = _matching(rows, term, depth)
            if is_all or len(first) >= number:
                break
        if indexed is None or is_all or len(first) >= number:
            return Found(first, "" if is_all else _only_next(depth))
        remarks.append(
            f"More than {MOST} messages contain this text. The list shows some of them."
            if len(indexed.ids) > MOST
            else "The text may match too many messages. Delayboard searched some of them."
        )
    newest = ScheduledMessage.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
    read_to = texts.read_to()
    younger = rows.filter(pk__gt=max(read_to, newest - YOUNG), pk__lte=newest).order_by("-pk")
    young, is_all = _matching(younger, term, YOUNG_READ)
    if not is_all or newest - read_to > YOUNG:
        remarks.append("The search does not yet cover all messages of the last minutes.")
    known = rows.filter(pk__in=indexed.ids[:MOST]).order_by().values_list(*Match._fields)
    found = {*first, *map(Match._make, known), *young}
    return Found(tuple(sorted(found)), " ".join(remarks))


def _only_next(number: int) -> str:
    return f"Delayboard searched only the next {number} messages in due order."


def _matching(
    rows: QuerySet[ScheduledMessage], term: str, number: int
) -> tuple[tuple[Match, ...], bool]:
    """Those of the first rows that contain the term, indexed or not; whether these are all rows."""
    place = StrIndex("searched__text", Value(term))
    read = list(rows.values_list(*Match._fields, place)[:number])
    unknown = texts.texts_of([row[1] for row in read if row[4] is None])
    return tuple(
        Match._make(row[:4])
        for row in read
        if (term in unknown.get(row[1], "") if row[4] is None else row[4] > 0)
    ), len(read) < number
