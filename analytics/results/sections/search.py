"""The search for parked messages that the rows of a table link to."""

from __future__ import annotations

import re
from datetime import date, timedelta

# What a search takes for itself within quotes.
_QUOTED, _ESCAPED = re.compile(r'["\\*]'), r"\\\g<0>"


def search_of(first: date, last: date, **values: str) -> str:
    """What finds the messages parked on these days, by the fields that have a value."""
    quoted = (f'{name}:"{_QUOTED.sub(_ESCAPED, value)}"' for name, value in values.items() if value)
    days = f"parked:>={first} parked:<{last + timedelta(days=1)}"
    return " ".join((*quoted, days, "state:any"))
