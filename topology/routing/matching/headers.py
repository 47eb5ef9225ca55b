"""Does a binding of a headers exchange take a message."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

NEWEST: tuple[int, ...] = (4, 3)


def headers_match(
    arguments: Mapping[str, Any], headers: Mapping[str, Any], version: tuple[int, ...] = NEWEST
) -> bool:
    """x-match all (the default), any, all-with-x, any-with-x; the first two ignore x- names.

    Values match when their kind does too: `True` is not `1`. Before 4.0 a whole number equals
    the same floating-point one, from 4.0 on it does not (`==` and `=:=` in
    rabbit_exchange_type_headers.erl 3.10.8 and 4.0.5).
    """
    mode = str(arguments.get("x-match", "all"))
    with_x = mode in ("all-with-x", "any-with-x")
    hits = (
        name in headers and _equal(value, headers[name], version)
        for name, value in arguments.items()
        if name != "x-match" and (with_x or not name.startswith("x-"))
    )
    return any(hits) if mode.startswith("any") else all(hits)


def _equal(wanted: Any, stated: Any, version: tuple[int, ...]) -> bool:
    given = _comparable(stated, version)
    if version < (4, 0) and isinstance(wanted, float | int) and isinstance(given, float | int):
        return isinstance(wanted, bool) == isinstance(given, bool) and wanted == given
    return type(wanted) is type(given) and bool(wanted == given)


def _comparable(value: Any, version: tuple[int, ...]) -> Any:
    """Bytes as text; a timestamp in seconds, from 4.0 on in milliseconds (mc_amqpl.erl 4.0.5)."""
    if isinstance(value, datetime):
        return int(value.timestamp()) * (1 if version < (4, 0) else 1000)
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "surrogateescape")
    return value
