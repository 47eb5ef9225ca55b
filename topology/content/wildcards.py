"""Texts that fit a pattern with any signs between its pieces; pure."""

from __future__ import annotations

from collections.abc import Sequence


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
