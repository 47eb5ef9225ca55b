from __future__ import annotations

from hypothesis import assume
from hypothesis import strategies as st

from tests.topology.pattern_cases.case import Case, delays, names
from topology.patterns.pattern import ParamsError
from topology.patterns.retry_loop import params as retry_loop_params
from topology.patterns.retry_loop.params import BINDING_KEYS, PRESETS, Timeout

_words = st.sampled_from(["mail", "*", "#", "", "x", "é/“"])
_keys = st.lists(_words, max_size=4).map(".".join)
_values = st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=20)


@st.composite
def loop_params(draw: st.DrawFn) -> retry_loop_params.Params:
    """Names of any text, all different; timeouts that exclude each other."""
    some = draw(st.lists(names, min_size=9, max_size=9, unique=True))
    split = draw(st.sampled_from(["none", "key", "header"]))
    keeps = split == "none" or draw(st.booleans())
    matches = draw(st.lists(_keys if split == "key" else _values, min_size=1, max_size=3))
    queues = draw(st.sampled_from([some[6:], ["", "", ""]]))
    waits = draw(st.lists(delays, min_size=3, max_size=3, unique=True))
    try:
        return retry_loop_params.Params(
            input_exchange=some[0],
            input_queue=some[1],
            dead_exchange=some[2],
            dead_queue=some[3] if keeps else "",
            delay=draw(delays),
            preset=draw(st.sampled_from(list(PRESETS))),
            return_exchange=draw(st.sampled_from(["", some[4]])),
            split=split,
            header=draw(_values.filter(bool)) if split == "header" else "",
            timeouts=() if split == "none" else tuple(map(Timeout, matches, waits, queues)),
            unmatched_exchange=some[5] if keeps and split != "none" else "",
            binding_keys=draw(st.sampled_from(list(BINDING_KEYS))),
        )
    except ParamsError:
        assume(False)
        raise


BY_KEY = {"name": "a", "split": "key"}
BY_HEADER = {"name": "a", "split": "header", "header": "kind"}

CASE = Case(
    loop_params(),
    (
        ({}, "name", "A name is missing. Enter the name, or all object names below."),
        ({"name": "n" * 250}, "input_exchange", "at most 255 bytes"),
        ({"name": "a\x00b"}, "name", "control characters"),
        ({"name": "  "}, "name", "at least one visible character"),
        ({"name": "a", "input_queue": "a\x00b"}, "input_queue", "control characters"),
        ({"name": "a", "dead_exchange": "amq.fanout"}, "dead_exchange", "RabbitMQ reserves"),
        (
            {"name": "a", "dead_exchange": "a_inner_exch"},
            "dead_exchange",
            "Another object has this name",
        ),
        (
            {"name": "a", "dead_queue": "a_input_q"},
            "dead_queue",
            "the name of a queue that no other",
        ),
        (
            {"name": "a", "return_exchange": "r"},
            "return_exchange",
            "does not exist with these choices",
        ),
        (
            {"name": "a", "unmatched_exchange": "r"},
            "unmatched_exchange",
            "does not exist with these choices",
        ),
        (BY_KEY | {"timeouts": "k 5s", "unmatched": "lost", "dead_queue": "d"}, "dead_queue", "no"),
        ({"name": "a", "preset": "book"}, "preset", "Choose one of durable, quorum, article."),
        ({"name": "a", "split": "size"}, "split", "Choose one of none, key, header."),
        ({"name": "a", "return_path": "none"}, "return_path", "Choose one of input, separate."),
        (
            BY_KEY | {"timeouts": "k 5s", "unmatched": "?"},
            "unmatched",
            "Choose one of waits, lost.",
        ),
        ({"name": "a", "binding_keys": "odd"}, "binding_keys", "Choose one of empty, queue."),
        ({"name": "a", "delay": "0s"}, "delay", "at least 1 ms"),
        ({"name": "a", "delay": "3651d"}, "delay", "no delay over 3650 days"),
        ({"name": "a", "delay": "soon"}, "delay", "“soon” is not a duration"),
        ({"name": "a", "timeouts": "k 5s"}, "timeouts", "Remove the other timeouts"),
        ({"name": "a", "header": "kind"}, "header", "Only timeouts by header use a header name."),
        (BY_KEY, "timeouts", "The timeouts are missing. Enter at least one."),
        (BY_KEY | {"timeouts": ",".join(f"k{n} 5s" for n in range(51))}, "timeouts", "At most 50"),
        (BY_KEY | {"timeouts": "k"}, "timeouts", "a key and a delay, separated by commas"),
        (BY_KEY | {"timeouts": "k soon"}, "timeouts", "“soon” is not a duration"),
        (BY_KEY | {"timeouts": "k 0s"}, "timeouts", "at least 1 ms"),
        (BY_KEY | {"timeouts": "[1]"}, "timeouts", "A JSON list of [key, delay]"),
        (BY_KEY | {"timeouts": '[["k"'}, "timeouts", "A JSON list of [key, delay]"),
        (BY_KEY | {"timeouts": "k" * 256 + " 5s"}, "timeouts", "at most 255 bytes"),
        (BY_KEY | {"timeouts": '[["\\ud800", "5s"]]'}, "timeouts", "U+D800, which is no"),
        (BY_KEY | {"timeouts": '[["a", "5s", "\\ud800"]]'}, "timeouts", "U+D800, which is no"),
        (BY_HEADER | {"timeouts": '[["\\ud800", "5s"]]'}, "timeouts", "U+D800, which is no"),
        ({"name": "a", "dead_queue": "  "}, "dead_queue", "at least one visible character"),
        (BY_KEY | {"timeouts": "#.a.#.b.# 5s"}, "timeouts", "“#” at most 2 times"),
        (BY_KEY | {"timeouts": "a.* 5s, *.b 9s"}, "timeouts", "both “a.*” and “*.b”"),
        (
            BY_KEY | {"timeouts": "# 5s"},
            "timeouts",
            "the dead queue for unmatched messages would stay empty",
        ),
        (
            BY_KEY | {"timeouts": '[["a","5s","q"],["b","6s","q"]]'},
            "timeouts",
            "“q” has two different TTLs",
        ),
        (
            BY_KEY | {"timeouts": '[["a","5s","a_input_q"]]'},
            "timeouts",
            "another queue of this loop",
        ),
        (BY_KEY | {"timeouts": '[["a","5s","amq.q"]]'}, "timeouts", "RabbitMQ reserves"),
        (BY_HEADER | {"header": "", "timeouts": "v 5s"}, "header", "is missing"),
        (BY_HEADER | {"header": "x-v", "timeouts": "v 5s"}, "header", "RabbitMQ reserves"),
        (BY_HEADER | {"header": "h" * 256, "timeouts": "v 5s"}, "header", "at most 255 bytes"),
        (BY_HEADER | {"timeouts": "v 5s, v 6s"}, "timeouts", "“v” has two timeouts"),
    ),
)
