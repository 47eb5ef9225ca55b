"""Looking for a text in what waits, with a bound on what one request reads.

The next few thousand in due order are read as they are, which finds what is common at once.
What is rarer the index of letters knows; what is too young for the index is read too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

from django.db import connection
from django.db.models import QuerySet, Value
from django.db.models.functions import StrIndex

from analytics.models import ScheduledMessage, ScheduledText
from analytics.scheduled import texts
from analytics.scheduled.filter import Filter
from analytics.scheduled.texts import keep_up
from topology.masks import Masks
from topology.models import Broker, Topology

__all__ = ["Found", "Match", "allowed", "holding", "keep_up", "search"]

# So many of the next due are read as they are: enough to fill a page with what is common.
HEAD = 300
# So many, when the text is too common for the index and too rare for that.
DEPTHS = (3000, 10_000)
# So many of what the index knows are put in order.
MOST = 5000
# So many rows that the index does not have yet are passed.
YOUNG = 10_000
YOUNG_READ = 2000
LETTERS = 3
SAMPLE = 100
# Threes of letters that more than every other text holds tell nothing, and cost the most.
TELLING = 0.5
ASKED_FOR = 5
NAMED = 3


class Match(NamedTuple):
    """Where a message that was found stands in the list, and for whom it is."""

    due_at: datetime
    pk: int
    destination: str
    topology: int


@dataclass(frozen=True)
class Found:
    """The matches in due order. `remark` says why there may be more, "" when these are all."""

    matches: tuple[Match, ...]
    remark: str = ""


def allowed(wanted: Filter, brokers: Collection[Broker], hidden: Mapping[int, Masks]) -> Filter:
    """The same filter; its text is a problem where a search would tell what rules hide.

    `hidden` says by broker what is hidden from whom the filter is of.
    """
    hiding = {broker.pk: broker.name for broker in brokers if not hidden[broker.pk].is_empty}
    if wanted.text and wanted.topology and hiding:
        where = Topology.objects.filter(slug=wanted.topology).values_list("broker", flat=True)
        hiding = {pk: hiding[pk] for pk in where if pk in hiding}
    if not wanted.text or not hiding:
        return wanted
    return replace(wanted, problems={**wanted.problems, "text": _refusal(sorted(hiding.values()))})


def _refusal(names: Sequence[str]) -> str:
    told = ", ".join(f"“{name}”" for name in names[:NAMED])
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return (
        "It cannot be searched: some headers or values of bodies are hidden from you on "
        f"{told}{more}. Leave it empty; every other field can be asked for."
    )


def search(rows: QuerySet[ScheduledMessage], text: str, wanted: int) -> Found:
    """Those of the rows, which are in due order, that hold the text; at least `wanted` if so many.

    Upper and lower case are the same. What is searched: message id, correlation id, headers,
    and the beginning of a kept body that is text.
    """
    term = texts.fold(text)
    head, is_all = _first(rows, term, HEAD)
    if is_all or len(head) >= wanted:
        return Found(head, "" if is_all else _only_next(HEAD))
    if len(term) < LETTERS:
        return _deep(rows, term, wanted)[0]
    known, is_cut = _indexed(term, rows)
    remarks = []
    if is_cut:
        deep, is_enough = _deep(rows, term, wanted)
        if is_enough:
            return deep
        head = deep.matches
        remarks.append(f"More than {MOST} messages hold this text: not all of them are here.")
    young, is_cut = _young(rows, term)
    if is_cut:
        remarks.append("Messages that came within the last minutes were not all searched yet.")
    ordered = rows.filter(pk__in=known).order_by().values_list(*COLUMNS)
    found = {*head, *map(Match._make, ordered), *young}
    return Found(tuple(sorted(found)), " ".join(remarks))


def holding(chunk: Collection[ScheduledMessage], text: str) -> set[int]:
    """The ids of those among a few rows that hold the text."""
    term = texts.fold(text)
    found = texts.texts_of([row.pk for row in chunk])
    return {pk for pk, held in found.items() if term in held}


def _deep(rows: QuerySet[ScheduledMessage], term: str, wanted: int) -> tuple[Found, bool]:
    """What more of the next rows hold; whether these are enough, or all."""
    for depth in DEPTHS:
        matches, is_all = _first(rows, term, depth)
        found = Found(matches, "" if is_all else _only_next(depth))
        if is_all or len(matches) >= wanted:
            return found, True
    return found, False


def _only_next(number: int) -> str:
    return f"Only the next {number} in due order were searched."


COLUMNS = ("due_at", "pk", "destination", "topology")
Looked = tuple[datetime, int, str, int, int | None]


def _looked_at(rows: QuerySet[ScheduledMessage], term: str) -> QuerySet[ScheduledMessage, Looked]:
    """With the place of the term in the text, 0 for nowhere, None where there is no text yet."""
    place = StrIndex("searched__text", Value(term))
    return rows.values_list(*COLUMNS, place)


def _first(
    rows: QuerySet[ScheduledMessage], term: str, number: int
) -> tuple[tuple[Match, ...], bool]:
    """Matches among the first rows; whether there are no more rows."""
    looked_at = list(_looked_at(rows, term)[:number])
    return tuple(_matching(looked_at, term)), len(looked_at) < number


def _matching(looked: Sequence[Looked], term: str) -> list[Match]:
    unknown = texts.texts_of([row[1] for row in looked if row[4] is None])
    return [
        Match._make(row[:4])
        for row in looked
        if (row[4] or 0) > 0 or (row[4] is None and term in unknown.get(row[1], ""))
    ]


def _young(rows: QuerySet[ScheduledMessage], term: str) -> tuple[list[Match], bool]:
    """Matches among what the index does not have yet; whether some of it was not looked at."""
    read_to = texts.read_to()
    newest = ScheduledMessage.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
    within = rows.filter(pk__gt=max(read_to, newest - YOUNG), pk__lte=newest).order_by("-pk")
    looked_at = list(_looked_at(within, term)[:YOUNG_READ])
    return _matching(looked_at, term), newest - read_to > YOUNG or len(looked_at) == YOUNG_READ


def _indexed(term: str, rows: QuerySet[ScheduledMessage]) -> tuple[Collection[int], bool]:
    """Ids of messages whose indexed text holds the term; whether there are more."""
    if connection.vendor == "sqlite":
        sample = rows.filter(searched__isnull=False).values_list("searched__text", flat=True)
        found = _by_letters(term, telling(term, list(sample[:SAMPLE])))
    else:
        holding = ScheduledText.objects.filter(text__contains=term).order_by()
        found = list(holding.values_list("pk", flat=True)[: MOST + 1])
    return found[:MOST], len(found) > MOST


def telling(term: str, sample: Collection[str]) -> list[str]:
    """The threes of letters of the term that few texts of a sample hold, or else all of them."""
    threes = dict.fromkeys(term[at : at + LETTERS] for at in range(len(term) - LETTERS + 1))
    shares = {three: sum(three in text for text in sample) for three in threes}
    few = [three for three in threes if shares[three] <= TELLING * len(sample)]
    return sorted(few, key=shares.__getitem__)[:ASKED_FOR] or list(threes)


def _by_letters(term: str, threes: Collection[str]) -> list[int]:
    """Of SQLite: the index knows which texts hold every three letters, the text says the rest."""
    quoted = (three.replace('"', '""') for three in threes)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT rowid FROM analytics_textindex"
            " WHERE analytics_textindex MATCH %s AND instr(text, %s) > 0 LIMIT %s",
            [" AND ".join(f'"{three}"' for three in quoted), term, MOST + 1],
        )
        return [row[0] for row in cursor.fetchall()]
