"""The query language of parked messages: a text -> a Query; pure.

Words are searched in ids, headers and text bodies, `field:value` in one field. All conditions must
hold; one that begins with “-” must not.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, TypeAlias

from topology.content.text import fold, is_encodable
from topology.content.wildcards import fits
from topology.delays import DelayError, parse_delay

LONGEST = 500
MOST_PARTS = 20
# In one value.
MOST_WILDCARDS = 8
# Longer values are cut when they are indexed.
LONGEST_VALUE = 255
# A float cannot distinguish larger whole numbers.
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
STATES = ("parked", "discarded", "replaying", "delayed", "replayed", "any")
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

Comparison: TypeAlias = Literal["<", "<=", ">", ">="]
_OPERATORS: dict[Comparison | None, Callable[[float, float], bool]] = {
    None: operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class QueryError(ValueError):
    """The text is not a valid query; the message says what is wrong and where."""


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


@dataclass(frozen=True)
class Compared:
    """A number on one side of a bound; `how` None: equal to it."""

    how: Comparison | None
    bound: float

    def matches(self, number: float) -> bool:
        return _OPERATORS[self.how](number, self.bound)


@dataclass(frozen=True)
class Span:
    """A time from `from_at` on and before `until_at`; None is open."""

    from_at: datetime | None = None
    until_at: datetime | None = None


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
        """Whether it has conditions on the content of messages."""
        return bool(self.words) or any(one.is_content for one in self.conditions)


@dataclass(frozen=True)
class _Part:
    """One piece of the text: `-field:>value`. Values keep their backslashes."""

    typed: str
    is_negated: bool
    field: str
    how: Comparison | None
    value: str

    def refused(self, why: str) -> QueryError:
        return QueryError(f"In “{self.typed}” {why}")


def number_of(text: str) -> float | None:
    """The number in a text; None when there is none, or none that a float represents exactly."""
    if len(text) > 40 or not _NUMBER.fullmatch(text):
        return None
    value = float(text)
    return value if abs(value) < EXACT else None


def parse(text: str, now: datetime) -> Query:
    """Read a query. Raises QueryError; `now` is what ages count from."""
    if len(text) > LONGEST:
        raise QueryError(f"The search is longer than {LONGEST} characters.")
    if not is_encodable(text):
        raise QueryError("The search contains invalid characters.")
    words: list[Word] = []
    conditions: list[Condition] = []
    states: list[str] = []
    repeats: list[bool] = []
    for number, part in enumerate(_split_parts(text), start=1):
        if number > MOST_PARTS:
            raise QueryError(f"The search has more than {MOST_PARTS} conditions.")
        if not part.field:
            words.append(Word(fold(_remove_escapes(part.value)), part.is_negated))
        elif part.field == "state":
            states.append(_read_state(part))
        elif part.field == "repeat":
            repeats.append(_read_yes(part) != part.is_negated)
        else:
            conditions.append(Condition(part.field, _read_value(part, now), part.is_negated))
    if len(set(states)) > 1 or len(set(repeats)) > 1:
        name = "state" if len(set(states)) > 1 else "repeat"
        raise QueryError(f"“{name}:” has two different values. Use one value.")
    state = states[0] if states else "parked"
    kept = tuple(word for word in words if word.text)
    return Query(kept, tuple(conditions), state, repeats[0] if repeats else None)


def _split_parts(text: str) -> Iterator[_Part]:
    for found in _PART.finditer(text):
        if found["open"]:
            place = found.start("open") + 1
            raise QueryError(f"The quote at character {place} is not closed.")
        name, value, is_negated = found["name"], found["value"], bool(found["minus"])
        if name is None:
            word = found["word"] or _remove_quotes(found["quoted"]) + _remove_quotes(found["rest"])
            yield _Part(found[0], is_negated, "", None, word)
            continue
        field = _read_field(_remove_quotes(name), found[0])
        part = _Part(
            found[0], is_negated, field, _read_comparison(found["how"]), _remove_quotes(value)
        )
        if not value:
            raise part.refused(f'the value is missing. Write {field}:"" for an empty one.')
        if value.startswith(":"):
            raise part.refused(
                f'the value begins with a colon. Write {field}:"{value}" if it does.'
            )
        yield part


def _remove_quotes(text: str) -> str:
    return text[1:-1] if text.startswith('"') else text


def _read_comparison(sign: str | None) -> Comparison | None:
    return next((one for one in _OPERATORS if one == sign), None)


def _read_field(name: str, typed: str) -> str:
    folded = fold(_remove_escapes(name))
    is_content = folded.startswith(("header.", "body.")) and not folded.endswith(".")
    if is_content or folded in FIELDS:
        return folded
    raise QueryError(
        f"In “{typed}” the field is unknown. Use one of {', '.join(FIELDS)}. "
        f'To search for the text, put it in quotes: "{typed}".'
    )


def _read_value(part: _Part, now: datetime) -> Value:
    if part.field in MOMENT_FIELDS:
        return _read_span(part, now)
    if part.field == "size":
        found = _SIZE.fullmatch(part.value.casefold())
        if found is None or found[2] not in _SIZES:
            raise part.refused("a size is expected, such as size:>10k or size:<2M.")
        return Compared(part.how, float(found[1]) * _SIZES[found[2]])
    if part.field in NUMBER_FIELDS or part.how is not None:
        if part.field in TEXT_FIELDS:
            raise part.refused(f"{part.field} is a text field, which allows no < or >.")
        number = number_of(part.value)
        if number is None:
            raise part.refused(f"a number is expected, such as {part.field}:>3.")
        return Compared(part.how, number)
    pieces = _split_pieces(part.value)
    if len(pieces) > MOST_WILDCARDS + 1:
        raise part.refused(f"there are more than {MOST_WILDCARDS} wildcards (*).")
    return Pattern(pieces)


def _read_span(part: _Part, now: datetime) -> Span:
    """An age (`<2h`: less than two hours ago) or a day or moment in UTC (`>2026-11-01`)."""
    is_age = _AGE.fullmatch(part.value)
    if is_age and part.how is None:
        raise part.refused(f"an age needs < or >, such as {part.field}:<2h.")
    try:
        if is_age:
            first = after = now - parse_delay(part.value)
        else:
            first = datetime.fromisoformat(part.value)
            first = (first if first.tzinfo else first.replace(tzinfo=UTC)).astimezone(UTC)
            after = first + _read_precision(part.value)
    except (DelayError, OverflowError, ValueError) as error:
        raise part.refused(
            f"a time is expected, such as {part.field}:>2026-11-01, "
            f'{part.field}:<2h or {part.field}:>"2026-11-21 15:30" (UTC).'
        ) from error
    is_from = (part.how or "")[:1] == ("<" if is_age else ">")
    if part.how is None:
        return Span(first, after)
    # “>” a day is after its end, and so is “<=” one.
    bound = after if part.how in (">", "<=") else first
    return Span(from_at=bound) if is_from else Span(until_at=bound)


def _read_precision(text: str) -> timedelta:
    """How long what was written lasts: a day, a minute, or a second."""
    if len(text) <= len("2026-11-21"):
        return timedelta(days=1)
    return timedelta(minutes=1) if text.count(":") == 1 else timedelta(seconds=1)


def _read_state(part: _Part) -> str:
    value = fold(part.value)
    if part.is_negated or part.how or value not in STATES:
        raise part.refused(f"the state is one of {', '.join(STATES)}.")
    return value


def _read_yes(part: _Part) -> bool:
    value = fold(part.value)
    if part.how or value not in ("yes", "no"):
        raise part.refused("write repeat:yes or repeat:no.")
    return value == "yes"


def _split_pieces(value: str) -> tuple[str, ...]:
    """Folded, split at each star that has no backslash before it."""
    texts = [""]
    for piece in _WILDCARDS.findall(value):
        if piece == "*":
            texts.append("")
        else:
            texts[-1] += piece
    return tuple(fold(_remove_escapes(text)) for text in texts)


def _remove_escapes(text: str) -> str:
    """Without the backslashes before quotes, stars and backslashes."""
    return re.sub(r'\\(["*\\])', r"\1", text)
