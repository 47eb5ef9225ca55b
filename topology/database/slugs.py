"""Slugs that are unique for ever: immutable, and never given to another row."""

from __future__ import annotations

import re
import secrets
import unicodedata
from collections.abc import Callable

# Words that addresses of pages use themselves, so that no slug may be one.
RESERVED = frozenset({"add", "patterns"})


def new_slug(name: str, is_taken: Callable[[str], bool], *, longest: int) -> str:
    """A readable slug of a name; a random tail where it is taken or nothing readable is left."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    words = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[: longest - 7].strip("-")
    slug = words or secrets.token_hex(3)
    while slug in RESERVED or is_taken(slug):
        slug = f"{words or 'x'}-{secrets.token_hex(3)}"
    return slug
