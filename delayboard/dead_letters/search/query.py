"""The language in which parked letters are asked for: a text -> a Query; pure.

Words are looked for in ids, headers and text bodies, `field:value` in one field. Everything that
is said must hold; what begins with “-” must not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, TypeAlias

from topology.delays import DelayError, parse_delay
from topology.text import is_encodable
from topology.wildcards import fits

LONGEST = 500
MOST_PARTS = 20
# In one value.
MOST_STARS = 8
# Longer values are cut when they are indexed.
LONGEST_VALUE = 255
# Whole numbers beyond are not told apart by a float.
EXACT = 2**53

TEXT_FIELDS = ("reason", "died", "exchange", "key", "exception", "type", "queue", "id")
NUMBER_FIELDS = ("group", "deaths", "size")
MOMENT_FIELDS = ("parked", "died-at")
FIELDS = (
    *TEXT_FIELDS,
    *NUMBER_FIELDS,
    *MOMENT_FIELDS,
    "state",
    "repeat",
    "header.NAME",
    "body.PATH",
)
STATES = ("parked", "discarded", "replaying", "handed", "replayed", "any")
_SIZES = {"": 1, "b": 1, "k": 1000, "kb": 1000, "m": 1_000_000, "mb": 1_000_000, "g": 10**9}
_NUMBER = re.compile(r"[+-]?\d{1,30}(?:\.\d{1,30})?(?:[eE][+-]?\d{1,2})?")
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([a-z]{0,2})")
_AGE = re.compile(r"[\d.]+\s*[a-z].*", re.IGNORECASE)

Comparison: TypeAlias = Literal["<", "<=", ">", ">="]


class QueryError(ValueError):
    """The text is no query; the sentence says what is wrong and where."""


@dataclass(frozen=True)
class Pattern:
    """A folded text with any signs between its pieces; one piece is the whole text."""

    pieces: tuple[str, ...]

    @property
    def is_exact(self) -> bool:
        return len(self.pieces) == 1

    @property
    def number(self) -> float | None:
        """What it says as a number."""
        return number_of(self.pieces[0]) if self.is_exact else None

    def fits(self, folded: str) -> bool:
        if self.is_exact and folded == self.pieces[0][:LONGEST_VALUE]:
            return True
        return fits(self.pieces, folded)


@dataclass(frozen=True)
class Compared:
    """A number on one side of a bound; `how` None: equal to it."""

    how: Comparison | None
    bound: float

    def fits(self, number: float | None) -> bool:
        if number is None:
            return False
        match self.how:
            case "<":
                return number < self.bound
            case "<=":
                return number <= self.bound
            case ">":
                return number > self.bound
            case ">=":
                return number >= self.bound
        return number == self.bound


@dataclass(frozen=True)
class Span:
    """A time from `from_at` on and before `until_at`; None is open."""

    from_at: datetime | None = None
    until_at: datetime | None = None

    def fits(self, at: datetime | None) -> bool:
        if at is None or (self.from_at is not None and at < self.from_at):
            return False
        return self.until_at is None or at < self.until_at


Value: TypeAlias = Pattern | Compared | Span


@dataclass(frozen=True)
class Condition:
    """What must hold, or not, of one field. Names of fields are folded."""

    field: str
    value: Value
    is_negated: bool = False

    @property
    def is_content(self) -> bool:
        """Whether it is about a header or the body."""
        return self.field.startswith(("header.", "body."))


@dataclass(frozen=True)
class Word:
    text: str
    is_negated: bool = False


@dataclass(frozen=True)
class Query:
    """`repeats`: only those that may be repeats, or only those that are none."""

    words: tuple[Word, ...] = ()
    conditions: tuple[Condition, ...] = ()
    state: str = "parked"
    repeats: bool | None = None

    @property
    def reads_content(self) -> bool:
        """Whether it asks about what is in the messages."""
        return bool(self.words) or any(one.is_content for one in self.conditions)


@dataclass(frozen=True)
class _Part:
    """One piece of the text: `-field:>value`. Values keep their backslashes."""

    typed: str
    is_negated: bool
    field: str
    how: Comparison | None
    value: str
    is_quoted: bool


def fold(text: str) -> str:
    """A text without its cases, in which a folded one is looked for."""
    return text.casefold().replace("\x00", "")


def number_of(text: str) -> float | None:
    """The number that a text says; None where it says none, or one that cannot be told exactly."""
    if len(text) > 40 or not _NUMBER.fullmatch(text):
        return None
    value = float(text)
    return value if abs(value) < EXACT else None


def parse(text: str, now: datetime) -> Query:
    """Read a query. Raises QueryError; `now` is what ages count from."""
    if len(text) > LONGEST:
        raise QueryError(f"This is longer than {LONGEST} characters.")
    if not is_encodable(text):
        raise QueryError("This holds signs that no text has: they cannot be searched.")
    words: list[Word] = []
    conditions: list[Condition] = []
    states: list[str] = []
    repeats: list[bool] = []
    for number, part in enumerate(_parts(text), start=1):
        if number > MOST_PARTS:
            raise QueryError(f"This asks for more than {MOST_PARTS} things at once.")
        if not part.field:
            words.append(Word(fold(_unescaped(part.value)), part.is_negated))
        elif part.field == "state":
            states.append(_state(part))
        elif part.field == "repeat":
            repeats.append(_yes(part) != part.is_negated)
        else:
            conditions.append(Condition(part.field, _value(part, now), part.is_negated))
    if len(set(states)) > 1 or len(set(repeats)) > 1:
        name = "state" if len(set(states)) > 1 else "repeat"
        raise QueryError(f"“{name}:” is said twice, and differently.")
    state = states[0] if states else "parked"
    kept = tuple(word for word in words if word.text)
    return Query(kept, tuple(conditions), state, repeats[0] if repeats else None)


def _parts(text: str) -> Iterator[_Part]:
    place = 0
    while True:
        while place < len(text) and text[place].isspace():
            place += 1
        if place == len(text):
            return
        start = place
        is_negated = text[place] == "-" and place + 1 < len(text) and not text[place + 1].isspace()
        place += is_negated
        first, is_quoted, place = _piece(text, place, ends=":")
        if place < len(text) and text[place] == ":" and first:
            how, place = _comparison(text, place + 1)
            value, is_quoted, place = _piece(text, place, ends="")
            typed = text[start:place]
            field = _field(first, typed)
            if not value and not is_quoted:
                raise QueryError(
                    f'In “{typed}” the value is missing. Write {field}:"" for an empty one.'
                )
            yield _Part(typed, is_negated, field, how, value, is_quoted)
        else:
            rest, _, place = _piece(text, place, ends="")
            yield _Part(text[start:place], is_negated, "", None, first + rest, is_quoted)


def _piece(text: str, place: int, *, ends: str) -> tuple[str, bool, int]:
    """What stands here up to a space or one of `ends`, or in quotes; and where it ends."""
    if place < len(text) and text[place] == '"':
        found = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL).match(text, place)
        if found is None:
            raise QueryError(f"The quote that begins at sign {place + 1} is not closed.")
        return found[1], True, found.end()
    start = place
    while place < len(text) and not text[place].isspace() and text[place] not in ends:
        place += 1
    return text[start:place], False, place


def _comparison(text: str, place: int) -> tuple[Comparison | None, int]:
    signs: tuple[Comparison, ...] = ("<=", ">=", "<", ">")
    for sign in signs:
        if text.startswith(sign, place):
            return sign, place + len(sign)
    return None, place


def _field(name: str, typed: str) -> str:
    folded = fold(_unescaped(name))
    known = (*TEXT_FIELDS, *NUMBER_FIELDS, *MOMENT_FIELDS, "state", "repeat")
    if folded in known:
        return folded
    if folded.startswith(("header.", "body.")) and not folded.endswith("."):
        return folded
    raise QueryError(
        f"In “{typed}” the field is not known. Fields are {', '.join(FIELDS)}. "
        f'To look for it as a text, put it in quotes: "{typed}".'
    )


def _value(part: _Part, now: datetime) -> Value:
    if part.field in MOMENT_FIELDS:
        return _span(part, now)
    if part.field == "size":
        return Compared(part.how, _size(part))
    if part.field in NUMBER_FIELDS or part.how is not None:
        return _compared(part)
    pieces = _pieces(part.value)
    if len(pieces) > MOST_STARS + 1:
        raise QueryError(f"In “{part.typed}” there are more than {MOST_STARS} stars.")
    return Pattern(pieces)


def _compared(part: _Part) -> Compared:
    if part.field in TEXT_FIELDS:
        raise QueryError(f"In “{part.typed}” {part.field} is a text: it is not compared.")
    number = number_of(part.value)
    if number is None:
        raise QueryError(f"In “{part.typed}” a number is expected, such as {part.field}:>3.")
    return Compared(part.how, number)


def _size(part: _Part) -> float:
    found = _SIZE.fullmatch(part.value.casefold())
    if found is None or found[2] not in _SIZES:
        raise QueryError(f"In “{part.typed}” a size is expected, such as size:>10k or size:<2M.")
    return float(found[1]) * _SIZES[found[2]]


def _span(part: _Part, now: datetime) -> Span:
    """An age (`<2h`: less than two hours ago) or a day or moment in UTC (`>2026-11-01`)."""
    try:
        if _AGE.fullmatch(part.value):
            if part.how is None:
                raise QueryError(f"In “{part.typed}” say < or > before an age: {part.field}:<2h.")
            then = now - parse_delay(part.value)
            return Span(from_at=then) if part.how[0] == "<" else Span(until_at=then)
        moment = datetime.fromisoformat(part.value)
        moment = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
        step = _step(part.value)
        after = moment + step
    except (DelayError, OverflowError, ValueError) as error:
        if isinstance(error, QueryError):
            raise
        raise QueryError(
            f"In “{part.typed}” a time is expected, such as {part.field}:>2026-11-01, "
            f'{part.field}:<2h or {part.field}:>"2026-11-21 15:30" (UTC).'
        ) from error
    match part.how:
        case ">":
            return Span(from_at=after)
        case ">=":
            return Span(from_at=moment)
        case "<":
            return Span(until_at=moment)
        case "<=":
            return Span(until_at=after)
    return Span(moment, after)


def _step(text: str) -> timedelta:
    """How long what was written lasts: a day, a minute, or a second."""
    if len(text) <= len("2026-11-21"):
        return timedelta(days=1)
    return timedelta(minutes=1) if text.count(":") == 1 else timedelta(seconds=1)


def _state(part: _Part) -> str:
    value = fold(part.value)
    if part.is_negated or part.how or value not in STATES:
        raise QueryError(f"In “{part.typed}” the state is one of {', '.join(STATES)}.")
    return value


def _yes(part: _Part) -> bool:
    value = fold(part.value)
    if part.how or value not in ("yes", "no"):
        raise QueryError(f"In “{part.typed}” write repeat:yes or repeat:no.")
    return value == "yes"


def _pieces(value: str) -> tuple[str, ...]:
    """Folded, divided where a star stands that has no backslash before it."""
    pieces = re.split(r"((?:[^*\\]|\\.|\\$)*)", value)
    texts = [""]
    for piece in pieces:
        if piece and set(piece) == {"*"}:
            texts.append("")
        else:
            texts[-1] += piece
    return tuple(fold(_unescaped(text)) for text in texts)


def _unescaped(text: str) -> str:
    """Without the backslashes before quotes, stars and backslashes."""
    return re.sub(r'\\(["*\\])', r"\1", text)
