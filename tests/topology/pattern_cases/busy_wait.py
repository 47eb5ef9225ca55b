from __future__ import annotations

from datetime import timedelta

from hypothesis import strategies as st

from tests.topology.builders import a_queue
from tests.topology.pattern_cases.case import Case, names, queue_types
from topology.definitions import MAXIMUM_TTL_MS, Definitions
from topology.patterns.busy_wait import params as busy_wait_params
from topology.patterns.busy_wait.params import LONGEST_QUEUE_BYTES
from topology.patterns.busy_wait.pattern import busy_wait


def wait_params() -> st.SearchStrategy[busy_wait_params.Params]:
    """What the broker can tell again: the divisor as the one delay, and the usual header."""
    laps = st.integers(50, MAXIMUM_TTL_MS).map(lambda ms: (timedelta(milliseconds=ms),))
    short = names.filter(lambda name: len(name.encode()) <= LONGEST_QUEUE_BYTES)
    return st.builds(busy_wait_params.Params, short, laps, queue_type=queue_types)


def beside_busy_wait(params: busy_wait_params.Params) -> Definitions:
    """The processing queue, which is none of it."""
    return Definitions.of([a_queue(params.queue)])


def any_delay(params: busy_wait_params.Params) -> list[timedelta]:
    """One lap and less, the most, and what takes whole and broken laps between them."""
    longest, tiny = busy_wait.longest(params), timedelta(milliseconds=1)
    wanted = [tiny, params.lap * 7, params.lap * 7 + tiny, longest]
    return [min(delay, longest) for delay in wanted]


CASE = Case(
    wait_params(),
    (
        ({"delays": "1m"}, "queue", "The name is missing."),
        ({"queue": "q" * 246, "delays": "1m"}, "queue", "at most 245 bytes"),
        ({"queue": "amq.q", "delays": "1m"}, "queue", "RabbitMQ reserves"),
        ({"queue": "a\x00b", "delays": "1m"}, "queue", "control characters"),
        (
            {"queue": "q", "delays": "1m", "due_header": "x-\ud800"},
            "due_header",
            "U+D800, which is not a valid Unicode character",
        ),
        ({"queue": "  ", "delays": "1m"}, "queue", "at least one visible character"),
        ({"queue": "delayboard.tap.a", "delays": "1m"}, "queue", "for its taps"),
        ({"queue": "q"}, "delays", "at least one delay"),
        ({"queue": "q", "delays": "0s, 1m"}, "delays", "at least 1 ms"),
        ({"queue": "q", "delays": "3651d"}, "delays", "no delay over 3650 days"),
        ({"queue": "q", "delays": "1m, 61001ms"}, "delays", "which is 1000 laps a second"),
        ({"queue": "q", "delays": "soon"}, "delays", "“soon” is not a duration"),
        ({"queue": "q", "delays": "1m", "due_header": "x-due"}, "due_header", "writes the header"),
        (
            {"queue": "q", "delays": "1m", "due_header": "delayboard-published-at-ms"},
            "due_header",
            "writes the header",
        ),
        ({"queue": "q", "delays": "1m", "due_header": "d" * 256}, "due_header", "at most 255"),
        ({"queue": "q", "delays": "1m", "due_header": "a\nb"}, "due_header", "control characters"),
    ),
    beside_busy_wait,
    any_delay,
)
