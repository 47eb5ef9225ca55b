"""How often a message failed, as its client counts it.

A consumer that publishes a failed message again begins a new x-death from RabbitMQ 4.0 on, so that
only its own counter goes on. Tried with the libraries as packages, and with services to the letter
of the sources of others (tests/outside).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from topology.message import ATTEMPT_HEADER, Headers

# Header -> the library that counts failures in it: our examples, golevelup, Celery, taskiq (text),
# NServiceBus (text), MassTransit.
COUNTERS = (
    ATTEMPT_HEADER,
    "x-retry-count",
    "retries",
    "_retries",
    "NServiceBus.Retries",
    "MT-Redelivery-Count",
)
# Symfony Messenger: Symfony's serializer writes stamps into headers, PHP's into the body.
_STAMP = "Symfony\\Component\\Messenger\\Stamp\\RedeliveryStamp"
REDELIVERY_STAMP = f"X-Message-Stamp-{_STAMP}"
_STAMP_IN_BODY = re.compile(rb'RedeliveryStamp\\0retryCount\\";i:([0-9]{1,6});')
# It keeps the last ten.
_LONGEST_STAMPS = 10_000


def count_failures(headers: Headers, queue: str, body: bytes = b"") -> int:
    """Failures so far in this queue; 0 where the client counts none.

    `body`: of messages whose library may count there.
    """
    for name in COUNTERS:
        if number := _read_number(headers.get(name)):
            return number
    return _read_number(
        _find(headers, "rascal", "recovery", queue, "forwarded")
        or _find(headers, "laravel", "attempts")
        or _read_stamps(headers.get(REDELIVERY_STAMP))
        or _read_last(_STAMP_IN_BODY.findall(body))
    )


def _find(headers: Headers, *path: str) -> Any:
    """The value on this path of tables; None where there is none."""
    found: Any = headers
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _read_stamps(value: object) -> Any:
    """The count of the last stamp."""
    if not isinstance(value, str) or len(value) > _LONGEST_STAMPS:
        return None
    try:
        stamps = json.loads(value)
    except (ValueError, RecursionError):
        return None
    return _find(stamps[-1], "retryCount") if isinstance(stamps, list) and stamps else None


def _read_last(counts: list[bytes]) -> Any:
    return int(counts[-1]) if counts else None


def _read_number(value: object) -> int:
    """A whole number up to a million, also as text; 0 for anything else."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 7:
        return int(value)
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and isinstance(value, int) and 0 < value <= 1_000_000 else 0
