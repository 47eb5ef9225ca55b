from __future__ import annotations

from hypothesis import strategies as st

from tests.topology.pattern_cases.case import Case, delays, names, queue_types, routing_keys
from topology.patterns.retry_pair import params as retry_pair_params

CASE = Case(
    st.builds(retry_pair_params.Params, names, delays, routing_keys, queue_types),
    (
        ({}, "name", "The name is missing."),
        ({"name": "n" * 250}, "name", "A name has at most 249 bytes"),
        ({"name": "é" * 125}, "name", "A name has at most 249 bytes"),
        ({"name": "amq.direct"}, "name", "RabbitMQ reserves"),
        ({"name": "a\x00b"}, "name", "control characters"),
        ({"name": "  "}, "name", "at least one visible character"),
        ({"name": "a\u2029"}, "name", "such as U+2029"),
        (
            {"name": "a", "routing_key": "\ud800"},
            "routing_key",
            "U+D800, which is not a valid Unicode character",
        ),
        ({"name": "a", "routing_key": "k" * 256}, "routing_key", "at most 255 bytes"),
        ({"name": "a", "delay": "0s"}, "delay", "at least 1 ms"),
        ({"name": "a", "delay": "3651d"}, "delay", "no delay over 3650 days"),
        ({"name": "a", "queue_type": "stream"}, "queue_type", "Choose one of classic, quorum"),
        ({"name": "a", "delay": "soon"}, "delay", "“soon” is not a duration"),
    ),
)
