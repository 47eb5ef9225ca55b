from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.topology.builders import a_queue
from tests.topology.pattern_cases.case import Case, delays, names, routing_keys
from topology.definitions import Binding, Definitions
from topology.patterns.quorum_retry import params as quorum_retry_params
from topology.patterns.quorum_retry.params import KINDS, LONGEST_OWN_NAME_BYTES, MOST_RETRIES


@st.composite
def quorum_params(draw: st.DrawFn) -> quorum_retry_params.Params:
    name = draw(names.filter(lambda name: len(name.encode()) <= LONGEST_OWN_NAME_BYTES))
    parking = draw(st.one_of(st.just(""), names.filter(lambda parking: parking != name)))
    shortest, longest = sorted((draw(delays), draw(delays)))
    return quorum_retry_params.Params(
        name,
        draw(st.sampled_from(list(KINDS))),
        shortest,
        longest,
        draw(st.integers(1, MOST_RETRIES)),
        draw(routing_keys),
        parking,
    )


def beside_quorum(params: Any) -> Definitions:
    """Quorum queues that retry at once, one of them since it says so."""
    return Definitions.of(
        [
            a_queue("plain", type="quorum", dlx=params.name),
            a_queue("at once", type="quorum", x_delayed_retry_type="disabled"),
            a_queue("classic", x_delayed_retry_type="all", x_delayed_retry_min=5),
            Binding(params.name, "plain", f"{params.routing_key} and more"),
        ]
    )


CASE = Case(
    quorum_params(),
    (
        ({}, "name", "The name is missing."),
        ({"name": "n" * 248}, "name", "A name has at most 247 bytes"),
        ({"name": "amq.direct"}, "name", "RabbitMQ reserves"),
        ({"name": "\u00a0"}, "name", "at least one visible character"),
        (
            {"name": "a", "routing_key": "\udc00"},
            "routing_key",
            "U+DC00, which is not a valid Unicode character",
        ),
        ({"name": "a", "routing_key": "k" * 256}, "routing_key", "at most 255 bytes"),
        ({"name": "a", "retry": "always"}, "retry", "Choose one of failed, returned, all."),
        ({"name": "a", "shortest": "soon"}, "shortest", "“soon” is not a duration"),
        ({"name": "a", "shortest": "0s"}, "shortest", "at least 1 ms"),
        ({"name": "a", "longest": "1s"}, "longest", "must not be shorter"),
        ({"name": "a", "longest": "3651d"}, "longest", "can be at most 3650 days"),
        ({"name": "a", "limit": "0"}, "limit", "a number from 1 to 1000000"),
        ({"name": "a", "limit": "-1"}, "limit", "a number from 1 to 1000000"),
        ({"name": "a", "limit": "9999999"}, "limit", "a number from 1 to 1000000"),
        ({"name": "a", "limit": "many"}, "limit", "a number from 1 to 1000000"),
        ({"name": "a", "parking": "a"}, "parking", "must differ from the work queue"),
        ({"name": "a", "parking": "a\nb"}, "parking", "control characters"),
    ),
    beside_quorum,
)
