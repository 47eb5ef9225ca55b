"""Formats log lines as text or JSON: a name that a client chose begins no line of its own."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from datetime import UTC, datetime
from typing import Any

import structlog

from topology.content.text import is_printable


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
