"""Equal failures are logged once, then once a minute with their count."""

from __future__ import annotations

import logging
import sys

from delayboard.log_repeats import EVERY_SECONDS, FORGET_SECONDS, MOST_KEYS, RepeatFilter


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
