"""Names of any script inside an English sentence, so that each stays where it was put.

By the Unicode Bidirectional Algorithm (UAX 9) a name written from right to left draws the digits
and the punctuation beside it to its other side; between FSI and PDI it cannot.
"""

from __future__ import annotations

import re

from topology.content.text import visible

FIRST_STRONG, POP = "\u2068", "\u2069"
# The blocks of Hebrew, Arabic, Syriac and all others that are written from right to left.
_RIGHT = "\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff\U00010800-\U00010fff\U0001e800-\U0001efff"
_QUOTED = re.compile(f"(?<=“)[^“”]*[{_RIGHT}][^“”]*(?=”)")
_BARE = rf"[^\s“”]*[{_RIGHT}](?:[^\s“”]*[^\s“”.,:;!?)])?"
_EITHER = re.compile(f"{_QUOTED.pattern}|{_BARE}")


def isolate_names(sentence: str) -> str:
    """The sentence with control characters made visible and right-to-left names set apart.

    A quoted name is set apart as a whole, any other word by word.
    """
    return _EITHER.sub(lambda found: f"{FIRST_STRONG}{found[0]}{POP}", visible(sentence))
