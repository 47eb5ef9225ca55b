from __future__ import annotations

from datetime import timedelta
from typing import Any

from hypothesis import strategies as st

from tests.topology.builders import a_queue
from tests.topology.pattern_cases.case import Case, delays, names, queue_types
from topology.definitions import Binding, Definitions
from topology.patterns.pattern import ParamsError
from topology.patterns.retry_ladder import params as retry_ladder_params
from topology.patterns.retry_ladder.params import LONGEST_OWN_NAME_BYTES


@st.composite
def ladder_params(draw: st.DrawFn) -> retry_ladder_params.Params:
    """Any names and keys that fit, those that look like a ladder's own and a topic's too."""
    name = draw(names.filter(lambda name: len(name.encode()) <= LONGEST_OWN_NAME_BYTES))
    waits = draw(st.lists(delays, min_size=1, max_size=4).map(sorted))
    odd = st.sampled_from(["", "a.b", "#", "*.try.1", f"{name}.try.1"[:60], ".try.", "try.1"])
    keys = st.one_of(odd, st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
    parking = draw(st.one_of(st.just(""), names))
    try:
        return retry_ladder_params.Params(
            name, tuple(waits), draw(keys), parking, draw(queue_types)
        )
    except ParamsError:
        return retry_ladder_params.Params(name, tuple(waits))


def beside_ladder(params: Any) -> Definitions:
    """What gets other keys of the work exchange, and a hold queue that dies back like a rung."""
    key = f"{params.routing_key}.try.1"
    return Definitions.of(
        [
            a_queue("audit"),
            Binding(params.name, "audit", f"{key}.audit"),
            a_queue("held", ttl=5, dlx=params.name, key=key, x_expires=9),
        ]
    )


def between(params: retry_ladder_params.Params) -> list[timedelta]:
    """Delays that no rung has: they are rounded up."""
    return [timedelta(milliseconds=1), max(params.delays) - timedelta(microseconds=1)]


CASE = Case(
    ladder_params(),
    (
        ({}, "name", "The name is missing."),
        ({"name": "n" * 248}, "name", "A name has at most 247 bytes"),
        ({"name": "amq.direct"}, "name", "RabbitMQ reserves"),
        ({"name": "a\x00b"}, "name", "control characters"),
        (
            {"name": "a", "routing_key": "\udc00"},
            "routing_key",
            "U+DC00, which is not a valid Unicode character",
        ),
        ({"name": "  "}, "name", "at least one visible character"),
        ({"name": "a", "parking": " "}, "parking", "at least one visible character"),
        ({"name": "a", "routing_key": "k" * 250}, "routing_key", "at most 249 bytes"),
        ({"name": "a", "delays": "1m, soon"}, "delays", "“soon” is not a duration"),
        ({"name": "a", "delays": "0s"}, "delays", "at least 1 ms"),
        ({"name": "a", "delays": "1m, 10s"}, "delays", "at least as long as the one before"),
        ({"name": "a", "delays": "3651d"}, "delays", "no delay over 3650 days"),
        ({"name": "a", "delays": "1s," * 50 + "1s"}, "delays", "at most 50"),
        ({"name": "a", "delays": "1s,"}, "delays", "The duration is missing"),
        ({"name": "a", "parking": "a"}, "parking", "must differ from the ladder's other queues"),
        (
            {"name": "a", "parking": "a-rung-1"},
            "parking",
            "must differ from the ladder's other queues",
        ),
        ({"name": "a", "parking": "p" * 256}, "parking", "at most 255 bytes"),
    ),
    beside_ladder,
    between,
)
