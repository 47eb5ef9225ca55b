"""Finds rows by a part of their column `text`, through its index of trigrams.

SQLite has the index by FTS5, PostgreSQL by pg_trgm (`SearchIndex` of the migrations). The texts
are written by `topology.content.text.fold`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from django.db import OperationalError, connection, transaction
from django.db.models import Model

# Characters of the shortest term with a trigram.
SHORTEST = 3
# Most texts that are read to see whether they contain a term.
MOST_READ = 10_000
TIMEOUT_MS = 80
# Share of texts above which a trigram is not used: it excludes little, and costs the most.
COMMON = 0.5
MOST_TRIGRAMS = 5
SAMPLE = 100


class Ids(NamedTuple):
    """Ids, the highest first: all of them, or those from `floor` up."""

    ids: tuple[int, ...]
    floor: int | None = None


def find(
    model: type[Model], index: str, term: str, sample: Collection[int], below: int | None = None
) -> Ids | None:
    """The ids below `below` whose text contains the folded term, of a table and its index.

    None when the term is too short or, in PostgreSQL, so common that the index takes too long.
    `sample` are ids whose texts show which trigrams are common.
    """
    if len(term) < SHORTEST:
        return None
    if connection.vendor == "sqlite":
        rows = model._default_manager.filter(pk__in=list(sample)[:SAMPLE])
        texts = list(rows.values_list("text", flat=True))
        return _find_in_fts5(index, term, rare_trigrams(term, texts), below)
    return _find_in_pg_trgm(model, term, below)


def rare_trigrams(term: str, sample: Collection[str]) -> list[str]:
    """The trigrams of the term that few texts of a sample contain, or else all of them."""
    trigrams = dict.fromkeys(term[at : at + SHORTEST] for at in range(len(term) - SHORTEST + 1))
    counts = {one: sum(one in text for text in sample) for one in trigrams}
    rare = [one for one in trigrams if counts[one] <= COMMON * len(sample)]
    return sorted(rare, key=counts.__getitem__)[:MOST_TRIGRAMS] or list(trigrams)


def _find_in_fts5(index: str, term: str, trigrams: Collection[str], below: int | None) -> Ids:
    """Find texts that contain all trigrams by the index, then check their order in the text."""
    match = " AND ".join('"' + one.replace('"', '""') + '"' for one in trigrams)
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT rowid, instr(text, %s) > 0 FROM {index}"  # noqa: S608
            f" WHERE {index} MATCH %s AND rowid < %s ORDER BY rowid DESC LIMIT %s",
            [term, match, 2**62 if below is None else below, MOST_READ + 1],
        )
        rows = cursor.fetchall()
    floor = rows[-1][0] if len(rows) > MOST_READ else None
    return Ids(tuple(pk for pk, contains in rows if contains), floor)


def _find_in_pg_trgm(model: type[Model], term: str, below: int | None) -> Ids | None:
    rows = model._default_manager.filter(text__contains=term).order_by()
    rows = rows if below is None else rows.filter(pk__lt=below)
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"SET LOCAL statement_timeout = {TIMEOUT_MS}")
            ids = list(rows.values_list("pk", flat=True)[: MOST_READ + 1])
            cursor.execute("SET LOCAL statement_timeout TO DEFAULT")
    except OperationalError:
        return None
    return None if len(ids) > MOST_READ else Ids(tuple(sorted(ids, reverse=True)))
