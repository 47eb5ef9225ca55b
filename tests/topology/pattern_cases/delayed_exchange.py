from __future__ import annotations

from datetime import timedelta

from hypothesis import strategies as st

from tests.topology.builders import a_queue
from tests.topology.pattern_cases.case import Case, parked_messages
from topology.definitions import Definitions
from topology.patterns.delayed_exchange import params as delayed_exchange_params
from topology.patterns.delayed_exchange import pattern as delayed_exchange_pattern
from topology.patterns.names import name_problem

LONGEST_QUEUE = 255 - len("to ")

names = st.text(parked_messages, min_size=1, max_size=255).filter(
    lambda name: not name_problem(name, 255)
)

# A pattern would take the messages of other keys too.
keys = st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=LONGEST_QUEUE).filter(
    lambda key: len(key.encode()) <= LONGEST_QUEUE and {"*", "#"}.isdisjoint(key.split("."))
)


def delayed_params() -> st.SearchStrategy[delayed_exchange_params.Params]:
    """A queue for each key; at a fanout exchange one only, since all get everything."""
    pairs = keys.flatmap(lambda key: st.sampled_from([(key, f"to {key}"), (key, key or "to ")]))

    def of(kind: str, most: int) -> st.SearchStrategy[delayed_exchange_params.Params]:
        bound = st.lists(pairs, min_size=1, max_size=most, unique_by=lambda pair: pair[0])
        return st.builds(delayed_exchange_params.Params, names, st.just(kind), bound.map(tuple))

    return st.one_of(of("direct", 3), of("topic", 3), of("fanout", 1))


def beside_delayed(params: delayed_exchange_params.Params) -> Definitions:
    return Definitions.of(a_queue(queue) for _, queue in params.bound)


def any_delay(params: delayed_exchange_params.Params) -> list[timedelta]:
    return [
        timedelta(milliseconds=1),
        timedelta(microseconds=1500),
        delayed_exchange_pattern.LONGEST,
    ]


CASE = Case(
    delayed_params(),
    (
        ({"queues": "a"}, "name", "The name is missing."),
        ({"name": "amq.later", "queues": "a"}, "name", "RabbitMQ reserves"),
        ({"name": "n" * 256, "queues": "a"}, "name", "at most 255 bytes"),
        (
            {"name": "n", "type": "headers", "queues": "a"},
            "type",
            "Choose one of direct, topic, fanout.",
        ),
        ({"name": "n"}, "queues", "at least one queue"),
        ({"name": "n", "queues": "key="}, "queues", "“” is not a valid queue name"),
        ({"name": "n", "queues": "q" * 256}, "queues", "at most 255 bytes"),
        ({"name": "n", "queues": "k=" + "q" * 256}, "queues", "is not a valid queue name"),
        ({"name": "n", "queues": '["a", "b"]'}, "queues", "a JSON list of [key, queue]"),
        ({"name": "n", "queues": '[["a"]]'}, "queues", "a JSON list of [key, queue]"),
        ({"name": "n", "queues": "[["}, "queues", "a JSON list of [key, queue]"),
        ({"name": "n", "queues": '[["k", "a\\u0000"]]'}, "queues", "is not a valid queue name"),
        (
            {"name": "n", "queues": '[["\\ud800", "q"]]'},
            "queues",
            "U+D800, which is not a valid Unicode character",
        ),
        (
            {"name": "n", "queues": '[["k", "\\udfff"]]'},
            "queues",
            "U+DFFF, which is not a valid Unicode character",
        ),
        ({"name": " ", "queues": "a"}, "name", "at least one visible character"),
        ({"name": "\u2028a", "queues": "a"}, "name", "such as U+2028"),
    ),
    beside_delayed,
    any_delay,
)
