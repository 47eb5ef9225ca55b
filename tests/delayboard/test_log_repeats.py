"""Equal failures are logged once, then once a minute with their count."""

from __future__ import annotations

import logging
import sys
from concurrent.futures import ThreadPoolExecutor

from delayboard.log_format import EVERY_SECONDS, FORGET_SECONDS, MOST_KEYS, RepeatFilter


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Log:
    """What passes the filter, with the seconds at which it does."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.filter = RepeatFilter(self.clock)
        self.lines: list[str] = []

    def write(self, text: str, error: Exception | None = None, level: int = logging.ERROR) -> None:
        info = None
        if error is not None:
            try:
                raise error
            except Exception:
                info = sys.exc_info()
        record = logging.LogRecord("worker", level, __file__, 1, "%s", (text,), info)
        if self.filter.filter(record):
            self.lines.append(logging.Formatter("%(message)s").format(record))


def test_the_first_has_its_traceback_and_the_others_are_counted_once_a_minute() -> None:
    log = Log()
    for second in range(121):
        log.clock.now = float(second)
        log.write("It failed.", OSError("no room"))
    first, *later = log.lines
    assert "Traceback" in first
    assert later == [
        "It failed. OSError: no room (repeated 60 times in 60 s)",
        "It failed. OSError: no room (repeated 60 times in 60 s)",
    ]


def test_another_text_another_error_and_information_pass() -> None:
    log = Log()
    log.write("It failed.", OSError("no room"))
    log.write("It failed.", OSError("no rights"))
    log.write("Something else failed.", OSError("no room"))
    log.write("It goes well.", level=logging.INFO)
    log.write("It goes well.", level=logging.INFO)
    assert len(log.lines) == 5


def test_a_failure_that_returns_after_an_hour_has_its_traceback_again() -> None:
    log = Log()
    log.write("It failed.", OSError("no room"))
    log.clock.now = FORGET_SECONDS + 1
    log.write("It failed.", OSError("no room"))
    assert [line.count("Traceback") for line in log.lines] == [1, 1]


def test_texts_that_never_repeat_do_not_fill_the_memory() -> None:
    log = Log()
    for number in range(2 * MOST_KEYS):
        log.write(f"{number} failed.")
    assert len(log.filter._seen) == MOST_KEYS
    log.clock.now = EVERY_SECONDS
    log.write("0 failed.")
    assert log.lines[-1] == "0 failed."


def test_lines_in_the_place_of_audit_entries_are_never_dropped() -> None:
    log = RepeatFilter(Clock())
    record = logging.LogRecord("worker", logging.WARNING, __file__, 1, "%s", ("looked",), None)
    record.is_audit = True
    assert [log.filter(record) for _ in range(3)] == [True] * 3


def test_a_line_that_cannot_be_formatted_does_not_fail_who_logs_it() -> None:
    record = logging.LogRecord("worker", logging.ERROR, __file__, 1, "%d", ("text",), None)
    assert RepeatFilter(Clock()).filter(record)


def test_threads_that_log_at_once_neither_fail_nor_lose_a_count() -> None:
    log = Log()

    def write(first: int) -> None:
        for number in range(first, first + 2 * MOST_KEYS):
            log.write(f"{number} failed.")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(0, 8 * MOST_KEYS, 2 * MOST_KEYS)))
    assert len(log.filter._seen) == MOST_KEYS
