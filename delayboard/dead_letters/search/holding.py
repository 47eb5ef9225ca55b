"""Which of a few letters a query means: looked at one by one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db.models import F, Q, Value
from django.db.models.functions import StrIndex, Substr

from delayboard.dead_letters.search import content
from delayboard.dead_letters.search.asked import Asked
from delayboard.dead_letters.search.content import Content, Held
from delayboard.dead_letters.search.query import Compared, Condition, Pattern, fold
from delayboard.dead_letters.search.sources import within
from delayboard.models import DeadLetter, LetterField, LetterPosition
from topology.broker.properties import read_properties

COLUMNS = {"id": "message_id", "parked": "parked_at", "died-at": "died_at"}
# So many that are not indexed yet are read for one answer.
MOST_READ = 300
# Among so many ids one that is meant is close enough to the next.
CLOSE = 3


@dataclass
class Looker:
    """Looks at letters for one answer; has room to read so many that are not indexed yet."""

    asked: Asked
    room: int = MOST_READ
    _read_to: int = field(init=False)
    _words: tuple[str, ...] = field(init=False)
    _content: tuple[Condition, ...] = field(init=False)
    _plain: tuple[Condition, ...] = field(init=False)

    def __post_init__(self) -> None:
        self._read_to = read_to()
        self._words = tuple(word.text for word in self.asked.query.words)
        self._content = tuple(one for one in self.asked.conditions if one.is_content)
        self._plain = tuple(one for one in self.asked.conditions if not one.is_content)

    def fitting(self, ids: Collection[int]) -> list[int]:
        """Those of the letters that fit, the newest first."""
        if self._content:
            # Where few fit, this spares reading the rows of the others.
            old = [pk for pk in ids if pk <= self._read_to]
            ids = [*self._by_fields(old), *(pk for pk in ids if pk > self._read_to)]
        if not ids:
            return []
        indexed, others = self._by_columns(ids)
        if self._content:
            young = {pk for pk in indexed if pk > self._read_to}
            fitting = self._by_fields(young)
            indexed = [pk for pk in indexed if pk not in young or pk in fitting]
        return sorted([*indexed, *self._read(others)], reverse=True)

    def _by_fields(self, ids: Collection[int]) -> set[int]:
        """Of letters that are indexed, those that fit as far as their fields tell."""
        if not ids:
            return set()
        fields = self._fields(ids)
        return {pk for pk in ids if self._fits(fields[pk])}

    def _by_columns(self, ids: Collection[int]) -> tuple[list[int], list[int]]:
        """Those that fit as far as rows and texts tell; and those without a text."""
        asked = self.asked
        rows = DeadLetter.objects.filter(
            _are("pk", ids), broker=asked.broker, state__in=asked.states
        ).order_by()
        if asked.groups is not None:
            rows = rows.filter(group__in=asked.groups)
        if asked.queues is not None:
            rows = rows.filter(queue__in=asked.queues)
        places = [StrIndex("searched__text", Value(word)) for word in self._words]
        # What nobody asks of the texts is not read of them.
        has_text = F("searched__size") if asked.query.reads_content else Value(1)
        columns = [COLUMNS.get(one.field, one.field) for one in self._plain]
        indexed, others = [], []
        wanted = frozenset(ids)
        for row in rows.values_list("pk", "repeat_of", has_text, *columns, *places):
            if row[0] not in wanted or not self._row_fits(row[1], row[3 : 3 + len(columns)]):
                continue
            if row[2] is None:
                others.append(row[0])
            elif self._words_fit(row[3 + len(columns) :]):
                indexed.append(row[0])
        return indexed, others

    def _row_fits(self, repeat_of: int | None, values: Sequence[Any]) -> bool:
        repeats = self.asked.query.repeats
        if repeats is not None and repeats != (repeat_of is not None):
            return False
        return all(
            _value_fits(one, value) != one.is_negated
            for one, value in zip(self._plain, values, strict=True)
        )

    def _words_fit(self, places: Iterable[int]) -> bool:
        words = self.asked.query.words
        return all(
            (place > 0) != word.is_negated for word, place in zip(words, places, strict=True)
        )

    def _fields(self, ids: Collection[int]) -> dict[int, list[Held]]:
        found: dict[int, list[Held]] = defaultdict(list)
        # Added to nothing, so that no planner goes by the index of numbers for these few letters.
        rows = LetterField.objects.annotate(value=F("number") + Value(0.0))
        names = {one.field for one in self._content}
        rows = rows.filter(_may_tell(self._content), _are("letter", ids), name__in=names)
        for pk, name, text, number in rows.values_list("letter", "name", "text", "number"):
            found[pk].append(Held(name, text, number))
        return found

    def _fits(self, fields: Collection[Held]) -> bool:
        return all(_any_fits(one, fields) != one.is_negated for one in self._content)

    def _read(self, ids: list[int]) -> list[int]:
        """Those that fit among letters that are not indexed yet, as far as there is room."""
        if not ids:
            return []
        near = sorted(ids, reverse=True)[: self.room]
        self.room -= len(near)
        return [
            pk
            for pk, held in contents_of(near).items()
            if self._words_fit([held.text.find(word) + 1 for word in self._words])
            and self._fits(held.fields)
        ]


def _are(column: str, ids: Collection[int]) -> Q:
    """One of these, or as good as: where they stand close, all between the least and the greatest,
    since thousands of values take long to be asked for and to be found."""
    least, greatest = min(ids), max(ids)
    if greatest - least < CLOSE * len(ids):
        return Q(**{f"{column}__gte": least, f"{column}__lte": greatest})
    return Q(**{f"{column}__in": ids})


def _may_tell(conditions: Collection[Condition]) -> Q:
    """Fields that matter to one of these: of numbers (`value`) that are compared those that fit."""
    found = Q()
    for one in conditions:
        mine = Q(name=one.field)
        if isinstance(one.value, Compared) and not one.is_negated:
            mine &= Q(**within("value", one.value))
        found |= mine
    return found


def read_to() -> int:
    """All letters up to this id have their texts."""
    return LetterPosition.objects.values_list("read_to", flat=True).first() or 0


def contents_of(ids: Collection[int]) -> dict[int, Content]:
    """What is searched of these letters, from their own rows."""
    body = Substr("body__data", 1, content.JSON_BYTES + 1)
    rows = DeadLetter.objects.filter(pk__in=ids).order_by("pk")
    return {
        pk: content.read(read_properties(bytes(properties)), bytes(data or b""))
        for pk, properties, data in rows.values_list("pk", "properties", body).iterator(50)
    }


def _any_fits(condition: Condition, fields: Iterable[Held]) -> bool:
    return any(_fits(condition, held) for held in fields if held.name == condition.field)


def _fits(condition: Condition, held: Held) -> bool:
    wanted = condition.value
    if isinstance(wanted, Compared):
        return wanted.fits(held.number)
    assert isinstance(wanted, Pattern)
    number = wanted.number
    return wanted.fits(held.text) or (number is not None and held.number == number)


def _value_fits(condition: Condition, value: Any) -> bool:
    wanted = condition.value
    return wanted.fits(fold(value)) if isinstance(wanted, Pattern) else wanted.fits(value)
