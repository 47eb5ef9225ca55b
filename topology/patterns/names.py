"""What a name in a broker may look like, and what of it we take for our own."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from topology.definitions import TAP_PREFIX, is_tap
from topology.patterns.pattern import MADE_UP

# Longest name or routing key: a short string of AMQP 0-9-1.
LONGEST_NAME_BYTES = 255
# Most invisible code points that an error writes out.
MOST_POINTS = 4
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_HALF = re.compile("[\ud800-\udfff]")
# Unicode categories of controls, formats such as U+202E, and ends of lines and paragraphs (Unicode
# 16, table 4-4).
_HIDDEN = frozenset({"Cc", "Cf", "Zl", "Zp"})
# Characters that are drawn as nothing: Hangul's fillers and Braille's blank.
_BLANK = frozenset("\u115f\u1160\u2800\u3164\uffa0")


# Whether names come from a row, which the rules of its day accepted.
_is_stored: ContextVar[bool] = ContextVar("is_stored", default=False)


@contextmanager
def as_stored() -> Iterator[None]:
    """Do not check names in the block by what a person sees of them: they are stored ones."""
    token = _is_stored.set(True)
    try:
        yield
    finally:
        _is_stored.reset(token)


def byte_length(text: str) -> int:
    """The length in bytes of UTF-8, also of what `unicode_problem` refuses."""
    return len(text.encode("utf-8", "surrogatepass"))


def unicode_problem(text: str) -> str:
    """Why this cannot be written as UTF-8: JSON can hold half of a surrogate pair; "" if it can."""
    half = _HALF.search(text)
    return (
        f"The text contains U+{ord(half[0]):X}, which is not a valid Unicode character."
        if half
        else ""
    )


def control_problem(text: str) -> str:
    """What no name can hold, whoever made it: neither a header's nor that of another's queue."""
    wrong = "A name cannot contain control characters." if _CONTROL.search(text) else ""
    return unicode_problem(text) or wrong


def name_problem(name: str, longest_bytes: int, ending: str = "") -> str:
    """Why no exchange or queue gets this name; "" for a valid one.

    `ending` is what the names of further objects add.
    """
    if not name:
        return "The name is missing."
    if byte_length(name) > longest_bytes:
        room = f", so that “{ending}” still fits" if ending else ""
        return f"A name has at most {longest_bytes} bytes{room}."
    if name.startswith("amq."):
        return "RabbitMQ reserves names that begin with “amq.”. Choose another name."
    if (is_tap(name) or name.startswith(MADE_UP)) and not _is_stored.get():
        prefix, use = (TAP_PREFIX, "taps") if is_tap(name) else (MADE_UP, "probes")
        return (
            f"Delayboard reserves names that begin with “{prefix}” for its {use}. Choose another "
            "name."
        )
    return visibility_problem(name)


def visibility_problem(name: str) -> str:
    """Why a person could not see or read this name as it is; "" for none and for an empty one."""
    if (wrong := control_problem(name)) or _is_stored.get():
        return wrong
    hidden = next(
        (character for character in name if unicodedata.category(character) in _HIDDEN),
        "",
    )
    if hidden:
        return f"A name cannot contain invisible characters such as U+{ord(hidden):04X}."
    if name and not any(map(_is_visible, name)):
        return "A name needs at least one visible character."
    return ""


def describe_invisible(name: str) -> str:
    """What of this name nobody sees, to be written beside it; "" where all of it can be seen."""
    if not name:
        return "no name"
    is_blank = not any(map(_is_visible, name))
    characters = [one for one in name if is_blank or unicodedata.category(one) in _HIDDEN]
    if not characters:
        return ""
    points = [f"U+{ord(character):04X}" for character in dict.fromkeys(characters)]
    shown = ", ".join(points[:MOST_POINTS]) + (" and others" if points[MOST_POINTS:] else "")
    return f"blank: {shown}" if is_blank else f"contains {shown}"


def key_problem(key: str) -> str:
    """Why no message can have this routing key; "" when one can."""
    if byte_length(key) > LONGEST_NAME_BYTES:
        return f"A routing key has at most {LONGEST_NAME_BYTES} bytes."
    return unicode_problem(key)


def header_problem(name: str) -> str:
    """Why no header can be named so; "" when one can."""
    if byte_length(name) > LONGEST_NAME_BYTES:
        return f"A header name has at most {LONGEST_NAME_BYTES} bytes."
    return control_problem(name)


def _is_visible(character: str) -> bool:
    """Neither a blank nor a mark that only changes the character before it."""
    return unicodedata.category(character)[0] not in "ZM" and character not in _BLANK
