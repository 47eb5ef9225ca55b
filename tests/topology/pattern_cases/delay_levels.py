from __future__ import annotations

from datetime import timedelta
from typing import Any

from hypothesis import strategies as st

from tests.topology.builders import a_queue
from tests.topology.pattern_cases.case import Case, names
from topology.definitions import Definitions
from topology.patterns.delay_levels import params as delay_levels_params
from topology.patterns.delay_levels.params import LONGEST_PREFIX_BYTES, QUEUE_TYPES


def levels_params() -> st.SearchStrategy[delay_levels_params.Params]:
    own = st.builds(
        delay_levels_params.Params,
        st.just("own"),
        names.filter(lambda name: len(name.encode()) <= LONGEST_PREFIX_BYTES),
        st.integers(1, 28),
        st.integers(50, 1170).map(lambda ms: timedelta(milliseconds=ms)),
        st.sampled_from(list(QUEUE_TYPES)),
    )
    fixed = [
        delay_levels_params.Params("nsb-v1"),
        delay_levels_params.Params("nsb-v2"),
        delay_levels_params.Params("celery"),
        delay_levels_params.Params("celery", "shop", queue_type="classic"),
    ]
    return st.one_of(own, st.sampled_from(fixed))


def beside_levels(params: Any) -> Definitions:
    return Definitions.of([a_queue("work"), a_queue("some.where")])


def any_delay(params: delay_levels_params.Params) -> list[timedelta]:
    odd = params.unit * 2 - timedelta(milliseconds=1)
    return [params.unit, min(odd, params.maximum), params.maximum]


CASE = Case(
    levels_params(),
    (
        ({"preset": "nsb-v3"}, "preset", "Choose one of nsb-v2, nsb-v1, celery, own."),
        ({"preset": "own"}, "prefix", "need a prefix"),
        ({"preset": "own", "prefix": "p" * 201}, "prefix", "at most 200 bytes"),
        ({"preset": "own", "prefix": "amq.x"}, "prefix", "RabbitMQ reserves"),
        ({"preset": "own", "prefix": "  "}, "prefix", "at least one visible character"),
        ({"preset": "own", "prefix": "\u202ep"}, "prefix", "such as U+202E"),
        ({"prefix": "p"}, "prefix", "has no prefix"),
        ({"preset": "own", "prefix": "p", "levels": "0"}, "levels", "a number from 1 to 28"),
        ({"preset": "own", "prefix": "p", "levels": "29"}, "levels", "a number from 1 to 28"),
        ({"preset": "own", "prefix": "p", "levels": "many"}, "levels", "a number from 1 to 28"),
        ({"levels": "27"}, "levels", "This preset has 28 levels. Enter 28."),
        ({"unit": "2s"}, "unit", "steps of 1s"),
        ({"preset": "own", "prefix": "p", "unit": "49ms"}, "unit", "at least 50ms"),
        ({"preset": "own", "prefix": "p", "unit": "3s"}, "unit", "limit of 3650 days"),
        ({"unit": "soon"}, "unit", "“soon” is not a duration"),
        ({"preset": "celery", "queue_type": "stream"}, "queue_type", "Choose one of quorum"),
        ({"destinations": "people"}, "destinations", "Choose one of queues, exchanges."),
    ),
    beside_levels,
    any_delay,
    ("work", "some.where"),
)
