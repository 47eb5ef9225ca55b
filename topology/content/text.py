"""Text that others wrote, made such that every page, file and database can hold it; pure.

JSON can hold half of a surrogate pair (JavaScript makes one by cutting an emoji), which UTF-8
cannot; bytes need not be UTF-8; and PostgreSQL takes no NUL.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

# Characters of an id that lists show.
SHORT_ID = 8
# Separator of thousands in a number.
NARROW_SPACE = "\u202f"
BIDI_CONTROLS = frozenset(
    "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
)
_PLURALS = {"is": "are", "was": "were"}
# Around a name of any script inside an English sentence, so that it stays where it was put: by the
# Unicode Bidirectional Algorithm (UAX 9) one written from right to left draws the digits and the
# punctuation beside it to its other side; between FSI and PDI it cannot.
FIRST_STRONG, POP = "\u2068", "\u2069"
# Blocks of Hebrew, Arabic, Syriac and all others that are written from right to left.
_RIGHT = "\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff\U00010800-\U00010fff\U0001e800-\U0001efff"
_QUOTED = re.compile(f"(?<=“)[^“”]*[{_RIGHT}][^“”]*(?=”)")
_BARE = rf"[^\s“”]*[{_RIGHT}](?:[^\s“”]*[^\s“”.,:;!?)])?"
_EITHER = re.compile(f"{_QUOTED.pattern}|{_BARE}")


def make_encodable(value: object) -> str:
    """The value as text; what UTF-8 or a database cannot hold becomes a visible escape.

    Such as \\ud83d, \\xff and \\x00. Bytes are read as UTF-8.
    """
    if isinstance(value, (bytes, bytearray)):
        value = bytes(value).decode("utf-8", "backslashreplace")
    text = value if isinstance(value, str) else str(value)
    if text.isascii() and "\x00" not in text:
        return text
    return text.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\x00")


def is_encodable(text: str) -> bool:
    """Whether every page, file and database holds the text as it is."""
    return make_encodable(text) == text


def fold(text: str) -> str:
    """The text without the difference of upper and lower case."""
    return text.casefold().replace("\x00", "")


def format_bytes(number: int | None) -> str:
    """A size in B, kB, MB or GB of 1000, with one digit after the point below 10."""
    if number is None:
        return "–"
    size, unit = float(number), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 999.5:
            break
        size, unit = size / 1000, larger
    digits = f"{size:.1f}" if unit != "B" and size < 9.95 else f"{size:.0f}"
    return f"{digits}\u00a0{unit}"


def visible(text: str) -> str:
    """Text with control characters as pictures and direction overrides as a replacement sign."""
    if text.replace(NARROW_SPACE, "").isprintable():
        # Counts hold narrow spaces, which Python takes for unprintable.
        return text
    return "".join(
        chr(0x2400 + ord(sign))
        if sign < " "
        else "\ufffd"
        if sign in BIDI_CONTROLS or unicodedata.category(sign) in ("Cc", "Cs")
        else sign
        for sign in text
    )


def is_printable(sign: str) -> bool:
    """Whether a terminal shows it and obeys nothing; also the space that our numbers have."""
    return sign.isprintable() or sign == NARROW_SPACE


def make_printable(text: str, most: int = 200) -> str:
    """The text on one line, cut to so many characters, with nothing that a terminal would obey."""
    shown = "".join(sign if is_printable(sign) else "�" for sign in text)
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def count_text(number: int | None) -> str:
    """A count in groups of three parted by narrow spaces; a dash when it is unknown."""
    return "–" if number is None else f"{number:,}".replace(",", NARROW_SPACE)


def count_of(number: int, noun: str, verb: str = "") -> str:
    """A number with its noun: "1 message", "1 200 messages"; with "is" "1 message is", "2 messages
    are".
    """
    if number == 1:
        return f"1 {noun} {verb}".rstrip()
    verbs = _PLURALS.get(verb, verb.removesuffix("s"))
    return f"{count_text(number)} {noun}s {verbs}".rstrip()


def isolate_names(sentence: str) -> str:
    """The sentence with control characters made visible and right-to-left names set apart.

    A quoted name is set apart as a whole, any other word by word.
    """
    return _EITHER.sub(lambda found: f"{FIRST_STRONG}{found[0]}{POP}", visible(sentence))


def fits(pieces: Sequence[str], text: str) -> bool:
    """Whether the whole text is the pieces with any signs between them; one is the text itself.

    In one pass, whatever both hold.
    """
    first, *rest = pieces
    if not rest:
        return text == first
    if not text.startswith(first):
        return False
    place = len(first)
    for piece in rest[:-1]:
        found = text.find(piece, place)
        if found < 0:
            return False
        place = found + len(piece)
    return len(text) - len(rest[-1]) >= place and text.endswith(rest[-1])
