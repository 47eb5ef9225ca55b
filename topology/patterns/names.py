"""What a name in a broker may look like."""

from __future__ import annotations

import re

# A name and a routing key are short strings of AMQP 0-9-1.
LONGEST_NAME_BYTES = 255
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def name_problem(name: str, longest_bytes: int) -> str:
    """Why no exchange or queue can be named so; "" when one can."""
    if not name:
        return "A name is missing."
    if len(name.encode()) > longest_bytes:
        return f"A name has at most {longest_bytes} bytes."
    if name.startswith("amq."):
        return "Names that begin with “amq.” belong to the broker."
    return control_problem(name)


def control_problem(name: str) -> str:
    return "A name cannot hold control characters." if _CONTROL.search(name) else ""
