"""What a client chose cannot begin a line of the log."""

from __future__ import annotations

import logging
import logging.config
import sys

import pytest
from django.conf import settings


@pytest.fixture
def formatter() -> logging.Formatter:
    """The one of the settings."""
    configurator = logging.config.DictConfigurator(settings.LOGGING)
    made = configurator.configure_formatter(settings.LOGGING["formatters"]["plain"])
    assert isinstance(made, logging.Formatter)
    return made


def test_line_breaks_and_control_characters_are_escaped(formatter: logging.Formatter) -> None:
    hostile = "eve\n2026-11-22 INFO forged\r\x1b[2J\u2028\x85é"
    record = logging.LogRecord("site", logging.WARNING, __file__, 1, "by %s", (hostile,), None)
    line = formatter.format(record)
    assert len(line.splitlines()) == 1
    assert line.endswith(r"by eve\n2026-11-22 INFO forged\r\x1b[2J\u2028\x85é")


def test_a_traceback_keeps_its_lines(formatter: logging.Formatter) -> None:
    try:
        raise ValueError("odd")
    except ValueError:
        info = sys.exc_info()
    record = logging.LogRecord("site", logging.ERROR, __file__, 1, "It failed.", (), info)
    assert len(formatter.format(record).splitlines()) > 2
