"""What a client chose cannot begin a line of the log, as text and as JSON."""

from __future__ import annotations

import json
import logging
import logging.config
import sys
from collections.abc import Iterator

import pytest
from django.conf import settings
from structlog.contextvars import bind_contextvars, clear_contextvars


def make_formatter(name: str) -> logging.Formatter:
    """One of the settings."""
    configurator = logging.config.DictConfigurator(settings.LOGGING)
    made = configurator.configure_formatter(dict(settings.LOGGING["formatters"][name]))
    assert isinstance(made, logging.Formatter)
    return made


@pytest.fixture
def formatter() -> logging.Formatter:
    return make_formatter("text")


@pytest.fixture
def json_formatter() -> Iterator[logging.Formatter]:
    clear_contextvars()
    yield make_formatter("json")
    clear_contextvars()


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


def test_json_has_the_ids_that_are_known_in_one_line_of_ascii(
    json_formatter: logging.Formatter,
) -> None:
    bind_contextvars(request_id="r-1", actor_id=None, broker_id=3)
    hostile = "eve\n{}\u2028\ud800é"
    record = logging.LogRecord("site", logging.WARNING, __file__, 1, "by %s", (hostile,), None)
    record.created = 1_795_910_400.25
    line = json_formatter.format(record)
    assert (line.isascii(), len(line.splitlines())) == (True, 1)
    assert list(json.loads(line).items()) == [
        ("time", "2026-11-29T00:00:00.250+00:00"),
        ("level", "warning"),
        ("logger", "site"),
        ("event", f"by {hostile}"),
        ("broker_id", 3),
        ("request_id", "r-1"),
    ]


def test_json_has_a_traceback_in_its_line(json_formatter: logging.Formatter) -> None:
    try:
        raise ValueError("odd")
    except ValueError:
        info = sys.exc_info()
    record = logging.LogRecord("site", logging.ERROR, __file__, 1, "It failed.", (), info)
    (line,) = json_formatter.format(record).splitlines()
    assert json.loads(line)["exception"].endswith("ValueError: odd")


def test_an_access_is_logged_without_what_was_searched_for(
    json_formatter: logging.Formatter,
) -> None:
    args = ("10.0.0.7:4711", "GET", "/scheduled/?q=card%3A4111", "1.1", 200)
    message = '%s - "%s %s HTTP/%s" %d'
    record = logging.LogRecord("uvicorn.access", logging.INFO, __file__, 1, message, args, None)
    line = json_formatter.format(record)
    read = json.loads(line)
    assert "4111" not in line
    assert (read["event"], read["status"]) == ("GET /scheduled/", 200)
    assert (read["method"], read["path"]) == ("GET", "/scheduled/")
    assert read["client"] == "10.0.0.7:4711"
