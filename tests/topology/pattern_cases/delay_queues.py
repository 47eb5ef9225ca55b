from __future__ import annotations

from datetime import timedelta

from hypothesis import strategies as st

from tests.topology.builders import a_queue
from tests.topology.pattern_cases import case
from tests.topology.pattern_cases.case import Case
from topology.definitions import Definitions
from topology.patterns.delay_queues import params as delay_queues_params
from topology.patterns.delay_queues.params import LONGEST_SECONDS

LONGEST_NAME = 255 - len(f"_dlq_{LONGEST_SECONDS}")

names = case.names.filter(lambda name: len(name.encode()) <= LONGEST_NAME)

# One that looks like a delay queue itself.
odd_names = names.map(lambda name: f"{name[:60]}_dlq_10")

few_delays = st.lists(
    st.integers(1, LONGEST_SECONDS).map(lambda s: timedelta(seconds=s)), min_size=1, max_size=4
).map(tuple)


def beside_delay_queues(params: delay_queues_params.Params) -> Definitions:
    """The work queue, and one that has only the name of a delay queue."""
    return Definitions.of([a_queue(params.queue), a_queue("other_dlq_10", ttl=10_000)])


CASE = Case(
    st.builds(
        delay_queues_params.Params, st.one_of(names, odd_names), few_delays, case.queue_types
    ),
    (
        ({"delays": "10s"}, "queue", "The name is missing."),
        ({"queue": "amq.work", "delays": "10s"}, "queue", "RabbitMQ reserves"),
        ({"queue": "a\x00b", "delays": "10s"}, "queue", "control characters"),
        ({"queue": "  ", "delays": "10s"}, "queue", "at least one visible character"),
        ({"queue": "a\u202eb", "delays": "10s"}, "queue", "such as U+202E"),
        ({"queue": "delayboard.tap.a", "delays": "10s"}, "queue", "for its taps"),
        ({"queue": "q" * 250, "delays": "10s"}, "queue", "at most 249 bytes"),
        ({"queue": "q" * 249, "delays": "10s"}, "delays", "The queue name for 10s would exceed"),
        ({"queue": "q"}, "delays", "at least one delay"),
        ({"queue": "q", "delays": " , "}, "delays", "at least one delay"),
        ({"queue": "q", "delays": "10s, soon"}, "delays", "“soon” is not a duration"),
        ({"queue": "q", "delays": "10s, 0s"}, "delays", "0s is not a whole number of seconds"),
        ({"queue": "q", "delays": "250ms"}, "delays", "250ms is not a whole number of seconds"),
        ({"queue": "q", "delays": "1.5s, 3s"}, "delays", "1.5s is not a whole number"),
        ({"queue": "q", "delays": "3651d"}, "delays", "no delay over 3650 days"),
    ),
    beside_delay_queues,
)
