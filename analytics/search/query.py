"""The query language of lists of messages: a text and a table of fields -> a Query; pure.

Words are searched in ids, headers and text bodies, `field:value` in one field. All conditions must
hold; one that begins with “-” must not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeAlias

from topology.content.text import fits, fold, is_encodable
from topology.delays import DelayError, parse_delay

LONGEST = 500
MOST_PARTS = 20
# Most wildcards of one value.
MOST_WILDCARDS = 8
# Characters of a value that are indexed.
LONGEST_VALUE = 255
# Largest whole number that a float can distinguish from the next.
EXACT = 2**53

_CONTENT = ("header.", "body.")
_SIZES = {"": 1, "b": 1, "k": 1000, "kb": 1000, "m": 1_000_000, "mb": 1_000_000, "g": 10**9}
_NUMBER = re.compile(r"[+-]?\d{1,30}(?:\.\d{1,30})?(?:[eE][+-]?\d{1,2})?")
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([a-z]{0,2})")
_WILDCARDS = re.compile(r"\*|(?:[^*\\]|\\.|\\$)+", re.DOTALL)
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_NAME = rf'(?:(?!""){_QUOTED}|[^\s:"][^\s:]*)'
# A field with its value, words in quotes, a quote that is not closed, or a word.
_PART = re.compile(
    rf"""(?P<minus>-(?=\S))?(?:
        (?P<name>{_NAME}):(?P<how>[<>]=?)?+(?P<value>{_QUOTED}|(?!")\S*)
        | (?P<quoted>{_QUOTED})(?P<rest>{_QUOTED}|(?!")\S*)
        | (?:{_NAME}:(?:[<>]=?)?|{_QUOTED})?(?P<open>")
        | (?P<word>\S+)
    )""",
    re.DOTALL | re.VERBOSE,
)
_AGE = re.compile(r"[\d.]+\s*[a-z].*", re.IGNORECASE)


class QueryError(ValueError):
    """The text is not a valid query; the message says what is wrong and where."""


@dataclass(frozen=True)
class Field:
    """A field of a list: the kind of its values, the column that has them, what one may choose."""

    kind: Literal["text", "number", "size", "moment", "choice"] = "text"
    column: str = ""
    choices: tuple[str, ...] = ()


Fields: TypeAlias = Mapping[str, Field]


@dataclass(frozen=True)
class FieldValue:
    """One value: `header.tenant` or `body.order.amount`, folded; `number` where it is one."""

    name: str
    text: str
    number: float | None


@dataclass(frozen=True)
class Pattern:
    """A folded text with any signs between its pieces; one piece is the whole text."""

    pieces: tuple[str, ...]

    @property
    def is_exact(self) -> bool:
        return len(self.pieces) == 1

    @property
    def number(self) -> float | None:
        """The value as a number."""
        return number_of(self.pieces[0]) if self.is_exact else None

    def matches(self, folded: str) -> bool:
        return fits(self.pieces, folded)

    def fits(self, one: FieldValue) -> bool:
        is_equal = self.number is not None and self.number == one.number
        return is_equal or fits([piece[:LONGEST_VALUE] for piece in self.pieces], one.text)


@dataclass(frozen=True)
class Range:
    """Numbers or times from `low` on and below `high`; None is open."""

    low: Any = None
    high: Any = None

    def has(self, value: Any) -> bool:
        return (self.low is None or self.low <= value) and (self.high is None or value < self.high)

    def fits(self, one: FieldValue) -> bool:
        return one.number is not None and self.has(one.number)


Value: TypeAlias = Pattern | Range


@dataclass(frozen=True)
class Condition:
    """What must hold, or not, of one field. Names of fields are folded."""

    field: str
    value: Value
    is_negated: bool = False

    @property
    def is_content(self) -> bool:
        """Whether it is about a header or the body."""
        return self.field.startswith(_CONTENT)

    def is_met_by(self, values: Iterable[FieldValue]) -> bool:
        """Whether any of a message's values is what it asks for, or none where it is negated."""
        named = (one for one in values if one.name == self.field)
        return any(map(self.value.fits, named)) != self.is_negated


@dataclass(frozen=True)
class Word:
    text: str
    is_negated: bool = False


@dataclass(frozen=True)
class Query:
    """`chosen` has the value of each field of choices that was given."""

    words: tuple[Word, ...] = ()
    conditions: tuple[Condition, ...] = ()
    chosen: Mapping[str, str] = field(default_factory=dict)

    @property
    def reads_content(self) -> bool:
        """Whether it has conditions on the content of messages."""
        return bool(self.words or self.content)

    @property
    def content(self) -> tuple[Condition, ...]:
        """The conditions on headers and bodies."""
        return tuple(one for one in self.conditions if one.is_content)

    def has_words(self, text: str) -> bool:
        """Whether the folded text has its words."""
        return all((word.text in text) != word.is_negated for word in self.words)

    def has_values(self, values: Collection[FieldValue]) -> bool:
        """Whether a message with these values meets its conditions on headers and bodies."""
        return all(one.is_met_by(values) for one in self.content)


@dataclass(frozen=True)
class _Part:
    """One piece of the text: `-field:>value`. Values keep their backslashes."""

    typed: str
    is_negated: bool
    field: str
    kind: str
    how: str
    value: str

    def refused(self, why: str) -> QueryError:
        return QueryError(f"In “{self.typed}” {why}")


def number_of(text: str) -> float | None:
    """The number in a text; None when there is none, or none that a float represents exactly."""
    if len(text) > 40 or not _NUMBER.fullmatch(text):
        return None
    value = float(text)
    return value if abs(value) < EXACT else None


def parse(text: str, now: datetime, fields: Fields) -> Query:
    """Read a query. Raises QueryError; `now` is what ages count from."""
    if len(text) > LONGEST:
        raise QueryError(f"The search is longer than {LONGEST} characters.")
    if not is_encodable(text):
        raise QueryError("The search contains invalid characters.")
    words: list[Word] = []
    conditions: list[Condition] = []
    chosen: dict[str, str] = {}
    for number, part in enumerate(_split_parts(text, fields), start=1):
        if number > MOST_PARTS:
            raise QueryError(f"The search has more than {MOST_PARTS} conditions.")
        if not part.field:
            words.append(Word(fold(_remove_escapes(part.value)), part.is_negated))
        elif part.kind == "choice":
            value = _read_choice(part, fields[part.field].choices)
            if chosen.setdefault(part.field, value) != value:
                raise QueryError(f"“{part.field}:” has two different values. Use one value.")
        else:
            conditions.append(Condition(part.field, _read_value(part, now), part.is_negated))
    return Query(tuple(word for word in words if word.text), tuple(conditions), chosen)


def _split_parts(text: str, fields: Fields) -> Iterator[_Part]:
    for found in _PART.finditer(text):
        if found["open"]:
            place = found.start("open") + 1
            raise QueryError(f"The quote at character {place} is not closed.")
        name, value, is_negated = found["name"], found["value"], bool(found["minus"])
        if name is None:
            word = found["word"] or _remove_quotes(found["quoted"]) + _remove_quotes(found["rest"])
            yield _Part(found[0], is_negated, "", "", "", word)
            continue
        name, kind = _read_field(_remove_quotes(name), found[0], fields)
        how = found["how"] or ""
        part = _Part(found[0], is_negated, name, kind, how, _remove_quotes(value))
        if not value:
            raise part.refused(f'the value is missing. Write {name}:"" for an empty one.')
        if value.startswith(":"):
            raise part.refused(f'the value begins with a colon. Write {name}:"{value}" if it does.')
        yield part


def _remove_quotes(text: str) -> str:
    return text[1:-1] if text.startswith('"') else text


def _read_field(name: str, typed: str, fields: Fields) -> tuple[str, str]:
    """The field and its kind."""
    folded = fold(_remove_escapes(name))
    if folded in fields:
        return folded, fields[folded].kind
    if folded.startswith(_CONTENT) and not folded.endswith("."):
        return folded, "content"
    known = ", ".join((*fields, "header.NAME", "body.PATH"))
    raise QueryError(
        f"In “{typed}” the field is unknown. Use one of {known}. "
        f'To search for the text, put it in quotes: "{typed}".'
    )


def _read_value(part: _Part, now: datetime) -> Value:
    if part.kind == "moment":
        return _read_time(part, now)
    if part.kind == "size":
        found = _SIZE.fullmatch(part.value.casefold())
        if found is None or found[2] not in _SIZES:
            raise part.refused(f"a size is expected, such as {part.field}:>10k.")
        return _read_number(part, float(found[1]) * _SIZES[found[2]])
    if part.kind == "number" or part.how:
        if part.kind == "text":
            raise part.refused(f"{part.field} is a text field, which allows no < or >.")
        number = number_of(part.value)
        if number is None:
            raise part.refused(f"a number is expected, such as {part.field}:>3.")
        return _read_number(part, number)
    # Folded, split at each star that has no backslash before it.
    texts = [""]
    for piece in _WILDCARDS.findall(part.value):
        if piece == "*":
            texts.append("")
        else:
            texts[-1] += piece
    pieces = tuple(fold(_remove_escapes(text)) for text in texts)
    if len(pieces) > MOST_WILDCARDS + 1:
        raise part.refused(f"there are more than {MOST_WILDCARDS} wildcards (*).")
    return Pattern(pieces)


def _read_number(part: _Part, number: float) -> Range:
    return _make_range(part.how, number, math.nextafter(number, math.inf))


def _make_range(how: str, first: Any, after: Any) -> Range:
    """What is in a comparison with all from `first` on and before `after`."""
    low = {"": first, ">=": first, ">": after}.get(how)
    return Range(low, {"": after, "<=": after, "<": first}.get(how))


def _read_time(part: _Part, now: datetime) -> Range:
    """An age (`<2h`: less than two hours ago) or a day or moment in UTC (`>2026-11-01`)."""
    is_age = _AGE.fullmatch(part.value)
    if is_age and not part.how:
        raise part.refused(f"an age needs < or >, such as {part.field}:<2h.")
    try:
        if is_age:
            at = now - parse_delay(part.value)
            return Range(at) if part.how.startswith("<") else Range(high=at)
        first = datetime.fromisoformat(part.value)
        first = (first if first.tzinfo else first.replace(tzinfo=UTC)).astimezone(UTC)
        return _make_range(part.how, first, first + _read_precision(part.value))
    except (DelayError, OverflowError, ValueError) as error:
        raise part.refused(
            f"a time is expected, such as {part.field}:>2026-11-01, "
            f'{part.field}:<2h or {part.field}:>"2026-11-21 15:30" (UTC).'
        ) from error


def _read_precision(text: str) -> timedelta:
    """How long what was written lasts: a day, a minute, or a second."""
    if len(text) <= len("2026-11-21"):
        return timedelta(days=1)
    return timedelta(minutes=1) if text.count(":") == 1 else timedelta(seconds=1)


def _read_choice(part: _Part, choices: Sequence[str]) -> str:
    value = fold(part.value)
    if part.is_negated or part.how or value not in choices:
        raise part.refused(f"write {part.field}: and one of {', '.join(choices)}.")
    return value


def _remove_escapes(text: str) -> str:
    """The text without the backslashes before quotes, stars and backslashes."""
    return re.sub(r'\\(["*\\])', r"\1", text)
