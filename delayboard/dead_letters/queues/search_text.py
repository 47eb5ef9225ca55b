"""The search for the parked messages of a queue; pure."""

from __future__ import annotations

import re


def make_query(name: str) -> str:
    """No sign of the name is read as a wildcard."""
    escaped = re.sub(r'([\\"*])', r"\\\1", name)
    return f'queue:"{escaped}"'
