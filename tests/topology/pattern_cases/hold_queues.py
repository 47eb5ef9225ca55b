from __future__ import annotations

from datetime import timedelta

from hypothesis import strategies as st

from tests.topology.builders import a_queue
from tests.topology.pattern_cases.case import Case, names
from topology.definitions import MAXIMUM_TTL_MS, Binding, Definitions, Exchange
from topology.patterns.hold_queues import params as hold_queues_params


def hold_params() -> st.SearchStrategy[hold_queues_params.Params]:
    """Short delays only for a double lease: from a minute on the two leases are the same."""
    short, long = st.integers(1, 59_999), st.integers(1, MAXIMUM_TTL_MS // 2)
    texts = st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=40)
    exchanges = st.one_of(st.just(""), names.filter(lambda name: len(name.encode()) <= 160))

    def of(lease: str) -> st.SearchStrategy[hold_queues_params.Params]:
        waits = (short if lease == "double" else long).map(lambda ms: timedelta(milliseconds=ms))
        few = st.lists(waits, min_size=1, max_size=3).map(tuple)
        keys = st.lists(texts, min_size=1, max_size=3).map(tuple)
        return st.builds(hold_queues_params.Params, exchanges, keys, few, st.just(lease))

    return st.one_of(of("generous"), of("double"))


def beside_hold_queues(params: hold_queues_params.Params) -> Definitions:
    """A destination for every key."""
    if not params.exchange:
        return Definitions.of([a_queue(key) for key in params.keys])
    bound = [Binding(params.exchange, f"to {key}", key) for key in params.keys]
    return Definitions.of(
        [Exchange(params.exchange), *bound, *(a_queue(b.destination) for b in bound)]
    )


CASE = Case(
    hold_params(),
    (
        ({"exchange": "x" * 249}, "exchange", "exceed 255 bytes"),
        ({"exchange": "a\x00b"}, "exchange", "control characters"),
        ({"keys": "k" * 249}, "keys", "exceed 255 bytes"),
        ({"keys": "[1]"}, "keys", "a JSON list of texts"),
        ({"keys": '["'}, "keys", "a JSON list of texts"),
        ({"keys": '["\\ud800"]'}, "keys", "U+D800, which is not a valid Unicode character"),
        ({"exchange": " \u3000"}, "exchange", "at least one visible character"),
        ({"exchange": "\u202ex"}, "exchange", "such as U+202E"),
        ({"delays": "5s, soon"}, "delays", "“soon” is not a duration"),
        ({"delays": "0s"}, "delays", "at least 1 ms"),
        ({"delays": "2000d"}, "delays", "no lease over 3650 days"),
        ({"lease": "for ever"}, "lease", "Choose one of generous, double."),
    ),
    beside_hold_queues,
)
