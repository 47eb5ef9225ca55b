"""Log lines as text or JSON, and equal failures once, then once a minute with their count.

A name that a client chose begins no line of its own.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import structlog

from topology.content.text import is_printable

EVERY_SECONDS = 60.0
# Seconds without a failure after which it is a new one, with its traceback.
FORGET_SECONDS = 3600.0
MOST_KEYS = 1000


class LineFormatter(logging.Formatter):
    """Escapes line breaks and other unprintable characters of the message."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """The line without its traceback, which keeps its lines."""
        record.message = escape(record.message)
        return super().formatMessage(record)


def escape(text: str) -> str:
    """The text with each unprintable character as Python writes it, such as `\\n`."""
    if text.isprintable():
        return text
    return "".join(
        sign if is_printable(sign) else sign.encode("unicode_escape").decode() for sign in text
    )


def make_json_formatter() -> logging.Formatter:
    """One JSON object a line, in ASCII: time, level, logger, event, and the bound ids."""
    return structlog.stdlib.ProcessorFormatter(
        pass_foreign_args=True,
        foreign_pre_chain=[structlog.contextvars.merge_contextvars],
        processors=[
            _describe_record,
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
    )


def _describe_record(_: Any, __: str, event: MutableMapping[str, Any]) -> dict[str, Any]:
    """The fields in the order in which a person reads them; an id that is None is unknown."""
    record: logging.LogRecord = event.pop("_record")
    del event["_from_structlog"]
    arguments = event.pop("positional_args", ())
    fields = {
        "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "event": event.pop("event"),
        # Context variables have no order.
        **{name: value for name, value in sorted(event.items()) if value is not None},
    }
    if record.name == "uvicorn.access":
        client, method, address, _version, status = arguments
        # What was searched for stands in the query.
        path = str(address).partition("?")[0]
        fields |= {"event": f"{method} {path}", "method": method, "path": path}
        fields |= {"status": status, "client": client}
    return fields


@dataclass
class _Seen:
    logged_at: float
    last_at: float
    dropped: int = 0


class RepeatFilter(logging.Filter):
    """Drops warnings and errors equal to one that was logged less than a minute ago.

    The next one after that minute contains their number, without the traceback. A line that
    replaces an audit entry (`extra={"is_audit": True}`) is never dropped.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: dict[tuple[object, ...], _Seen] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is logged."""
        if record.levelno < logging.WARNING or getattr(record, "is_audit", False):
            return True
        try:
            key = _key(record)
        except Exception:
            # The handler reports a line that cannot be formatted; who logs it must not fail.
            return True
        with self._lock:
            return self._is_logged(record, key)

    def _is_logged(self, record: logging.LogRecord, key: tuple[object, ...]) -> bool:
        now = self._clock()
        seen = self._seen.pop(key, None)
        if seen is None or now - seen.last_at > FORGET_SECONDS:
            self._seen[key] = _Seen(now, now)
            if len(self._seen) > MOST_KEYS:
                del self._seen[next(iter(self._seen))]
            return True
        # The newest key is the last, so that the oldest is forgotten first.
        self._seen[key] = seen
        seen.last_at = now
        seen.dropped += 1
        if now - seen.logged_at < EVERY_SECONDS:
            return False
        _shorten(record, seen.dropped, now - seen.logged_at)
        seen.logged_at, seen.dropped = now, 0
        return True


def _key(record: logging.LogRecord) -> tuple[object, ...]:
    error = record.exc_info[1] if record.exc_info else None
    return record.name, record.levelno, record.getMessage(), type(error), str(error)


def _shorten(record: logging.LogRecord, times: int, seconds: float) -> None:
    """Put the count, and the error in one line, in the traceback's place."""
    error = record.exc_info[1] if record.exc_info else None
    why = f" {type(error).__name__}: {error}" if error is not None else ""
    record.msg = f"{record.getMessage()}{why} (repeated {times} times in {seconds:.0f} s)"
    record.args = None
    record.exc_info = record.exc_text = None
