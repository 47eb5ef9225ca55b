"""What a query asks of columns and texts, as conditions of the database."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from django.db import connection
from django.db.models import BooleanField, F, Func, Model, Q, QuerySet
from django.db.models import Value as Constant
from django.db.models.functions import StrIndex

from analytics.search.query import Pattern, Value, Word

Row = TypeVar("Row", bound=Model)


def filter_words(rows: QuerySet[Row], words: Iterable[Word]) -> QuerySet[Row]:
    """The rows whose searched text has these words."""
    for number, word in enumerate(words):
        place = f"place_{number}"
        rows = rows.alias(**{place: StrIndex(F("searched__text"), Constant(word.text))})
        rows = rows.filter(**{place: 0} if word.is_negated else {f"{place}__gt": 0})
    return rows


def filter_value(wanted: Value, text: str, number: str, *, is_folded: bool = True) -> Q:
    """A filter on a value: on the column `text` or `number`, whichever can decide.

    What is not folded is compared with its cases folded as the database does it.
    """
    if isinstance(wanted, Pattern):
        is_equal = Q() if number == text or wanted.number is None else Q(**{number: wanted.number})
        return _is_like(text, wanted, is_folded=is_folded) | is_equal
    bounds = {"gte": wanted.low, "lt": wanted.high, "isnull": False}
    return Q(*((f"{number}__{how}", one) for how, one in bounds.items() if one is not None))


def _is_like(column: str, pattern: Pattern, *, is_folded: bool) -> Q:
    if pattern.is_exact:
        return Q(**{column + ("" if is_folded else "__iexact"): pattern.pieces[0][:255]})
    escaped = "%".join(
        "".join(f"!{sign}" if sign in "!%_" else sign for sign in piece) for piece in pattern.pieces
    )
    # PostgreSQL alone distinguishes cases; what is folded has none.
    is_plain = is_folded or connection.vendor != "postgresql"
    return Q(_Like(F(column), Constant(escaped), arg_joiner=" LIKE " if is_plain else " ILIKE "))


class _Like(Func):
    """Neither database goes back more than one “%”, so that this takes no longer than the texts
    are long times the pattern.
    """

    function = ""
    template = "(%(expressions)s ESCAPE '!')"
    output_field = BooleanField()
