"""Where letters that fit one condition stand in an index: all of them when they are few.

Every question here is put so that one index has its answer in its order, and a planner that is
wrong about how many there are has no better way to go.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from django.db import OperationalError, connection, transaction
from django.db.models import QuerySet

from delayboard.dead_letters.search.query import Compared, Condition, Pattern, Span, Value
from delayboard.models import LetterField, LetterText

# What more letters than that hold is common.
MOST = 5000
# So many texts at most are read to see whether they hold a word.
MOST_READ = 10_000
TEXT_MS = 80
LETTERS = 3
SAMPLE = 100
# Threes of letters that more than every other text holds tell nothing, and cost the most.
TELLING = 0.5
ASKED_FOR = 5
_BETWEEN = re.compile(r"[\W_]+")
# Above every text that begins alike; UTF-8 orders as code points do.
LAST = "\U0010ffff"


@dataclass(frozen=True)
class Source:
    """Ids from the newest on: all of them down to `known_to`, or simply all for None."""

    ids: tuple[int, ...]
    known_to: int | None = None

    @property
    def is_all(self) -> bool:
        return self.known_to is None

    @cached_property
    def members(self) -> frozenset[int]:
        return frozenset(self.ids)


def of_condition(condition: Condition, before: int | None) -> Source | None:
    """None where no index helps, or where there are too many to be put in order."""
    if condition.is_negated:
        return None
    value = condition.value
    if condition.is_content:
        fields = LetterField.objects.filter(name=condition.field)
        if isinstance(value, Pattern):
            return _by_text(fields, "text", value, before, with_numbers=True)
        assert isinstance(value, Compared)
        return _unordered(_compared(fields, "number", value), "number", before)
    return _of_column(condition.field, value, before)


def _of_column(field: str, value: Value, before: int | None) -> Source | None:
    texts = LetterText.objects.all()
    match value:
        case Pattern() if field == "id":
            return _by_text(texts, "message_id", value, before)
        case Compared():
            return _unordered(_compared(texts, field, value), field, before)
        case Span():
            column = "parked_at" if field == "parked" else "died_at"
            return _unordered(_between(texts, column, value), column, before)
    return None


def _by_text(
    rows: QuerySet[Any],
    column: str,
    wanted: Pattern,
    before: int | None,
    *,
    with_numbers: bool = False,
) -> Source | None:
    beginning = wanted.pieces[0]
    if not wanted.is_exact:
        within = {f"{column}__gte": beginning, f"{column}__lt": beginning + LAST}
        return _unordered(rows.filter(**within) if beginning else rows, column, before)
    equal = _newest(rows.filter(**{column: beginning[:255]}), before)
    number = wanted.number if with_numbers else None
    if number is None:
        return equal
    # 42 is also written 42.0.
    also = _newest(rows.filter(number=number), before)
    ids = tuple(sorted({*equal.ids, *also.ids}, reverse=True))
    bounds = [one.known_to for one in (equal, also) if one.known_to is not None]
    if not bounds:
        return Source(ids)
    return Source(tuple(pk for pk in ids if pk >= max(bounds)), max(bounds))


def _compared(rows: QuerySet[Any], column: str, wanted: Compared) -> QuerySet[Any]:
    return rows.filter(**within(column, wanted))


def within(column: str, wanted: Compared) -> dict[str, float]:
    """The filter for rows whose number is on that side of the bound."""
    lookups = {None: "", "<": "__lt", "<=": "__lte", ">": "__gt", ">=": "__gte"}
    return {column + lookups[wanted.how]: wanted.bound}


def _between(rows: QuerySet[Any], column: str, wanted: Span) -> QuerySet[Any]:
    bounds: dict[str, datetime | None] = {"gte": wanted.from_at, "lt": wanted.until_at}
    return rows.filter(**{f"{column}__{name}": at for name, at in bounds.items() if at})


def _newest(rows: QuerySet[Any], before: int | None) -> Source:
    """Where the index has the letters of one value in order."""
    if before is not None:
        rows = rows.filter(letter__lt=before)
    ids = list(rows.order_by("-letter").values_list("letter", flat=True)[: MOST + 1])
    return Source(tuple(dict.fromkeys(ids)), ids[-1] if len(ids) > MOST else None)


def _unordered(rows: QuerySet[Any], column: str, before: int | None) -> Source | None:
    """Where the index has them by value: only when all of them are few."""
    ids = list(rows.order_by(column).values_list("letter", flat=True)[: MOST + 1])
    if len(ids) > MOST:
        return None
    older = {pk for pk in ids if before is None or pk < before}
    return Source(tuple(sorted(older, reverse=True)))


def of_word(word: str, sample: Collection[int], before: int | None) -> Source | None:
    """Letters whose text holds the word; `sample` are some letters to tell what is common."""
    if len(word) < LETTERS:
        return None
    rows = LetterText.objects.filter(pk__in=list(sample)[:SAMPLE])
    texts = list(rows.values_list("text", flat=True))
    if connection.vendor == "sqlite":
        return _by_letters(word, telling(word, texts), before)
    return None if is_common(word, texts) else _by_text_index(word, before)


def is_common(word: str, sample: Collection[str]) -> bool:
    """Whether PostgreSQL's index knows no three letters of it that few texts of a sample hold.

    It has the threes of a text's words alone: not of what stands between letters and digits.
    """
    pieces = [piece for piece in _BETWEEN.split(word) if len(piece) >= LETTERS]
    threes = {p[at : at + LETTERS] for p in pieces for at in range(len(p) - LETTERS + 1)}
    most = TELLING * len(sample)
    return bool(sample) and all(sum(three in text for text in sample) > most for three in threes)


def telling(term: str, sample: Collection[str]) -> list[str]:
    """The threes of letters of the term that few texts of a sample hold, or else all of them."""
    threes = dict.fromkeys(term[at : at + LETTERS] for at in range(len(term) - LETTERS + 1))
    shares = {three: sum(three in text for text in sample) for three in threes}
    few = [three for three in threes if shares[three] <= TELLING * len(sample)]
    return sorted(few, key=shares.__getitem__)[:ASKED_FOR] or list(threes)


def _by_letters(word: str, threes: Collection[str], before: int | None) -> Source:
    """Of SQLite: the index knows which texts hold every three letters, the text says the rest."""
    quoted = " AND ".join('"' + three.replace('"', '""') + '"' for three in threes)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT rowid, instr(text, %s) > 0 FROM delayboard_letterindex"
            " WHERE delayboard_letterindex MATCH %s AND rowid < %s ORDER BY rowid DESC LIMIT %s",
            [word, quoted, 2**62 if before is None else before, MOST_READ + 1],
        )
        rows = cursor.fetchall()
    ids = tuple(row[0] for row in rows if row[1])
    return Source(ids, rows[-1][0] if len(rows) > MOST_READ else None)


def _by_text_index(word: str, before: int | None) -> Source | None:
    """Of PostgreSQL. What is made of common letters alone would read nearly every text."""
    holding = LetterText.objects.filter(text__contains=word).order_by()
    if before is not None:
        holding = holding.filter(letter__lt=before)
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"SET LOCAL statement_timeout = {TEXT_MS}")
            ids = list(holding.values_list("pk", flat=True)[: MOST + 1])
            cursor.execute("SET LOCAL statement_timeout TO DEFAULT")
    except OperationalError:
        return None
    return Source(tuple(sorted(ids, reverse=True))) if len(ids) <= MOST else None
