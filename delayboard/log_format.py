"""Formats log lines: a name or path that a client chose cannot begin a line of its own."""

from __future__ import annotations

import logging

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
