"""What a name in a broker may look like."""

from __future__ import annotations

import re


def name_problem(name: str, longest_bytes: int) -> str:
    """Why no exchange or queue can be named so; "" when one can."""
    if not name:
        return "A name is missing."
    if len(name.encode()) > longest_bytes:
        return f"A name has at most {longest_bytes} bytes."
    if name.startswith("amq."):
        return "Names that begin with “amq.” belong to the broker."
    if re.search(r"[\x00-\x1f\x7f]", name):
        return "A name cannot hold control characters."
    return ""
