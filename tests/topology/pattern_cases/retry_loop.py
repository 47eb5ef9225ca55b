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
        ({}, "name", "A name is missing, or one of those that it gives."),
        ({"name": "n" * 250}, "input_exchange", "at most 255 bytes"),
        ({"name": "a\x00b"}, "name", "control characters"),
        ({"name": "  "}, "name", "a character that can be seen"),
        ({"name": "a", "input_queue": "a\x00b"}, "input_queue", "control characters"),
        ({"name": "a", "dead_exchange": "amq.fanout"}, "dead_exchange", "belong to the broker"),
        ({"name": "a", "dead_exchange": "a_inner_exch"}, "dead_exchange", "named like another"),
        ({"name": "a", "dead_queue": "a_input_q"}, "dead_queue", "a queue of its own"),
        ({"name": "a", "return_exchange": "r"}, "return_exchange", "none with these choices"),
        ({"name": "a", "unmatched_exchange": "r"}, "unmatched_exchange", "none with these choices"),
        (BY_KEY | {"timeouts": "k 5s", "unmatched": "lost", "dead_queue": "d"}, "dead_queue", "no"),
        ({"name": "a", "preset": "book"}, "preset", "One of durable, article."),
        ({"name": "a", "split": "size"}, "split", "One of none, key, header."),
        ({"name": "a", "way_back": "none"}, "way_back", "One of input, separate."),
        (BY_KEY | {"timeouts": "k 5s", "unmatched": "?"}, "unmatched", "One of waits, lost."),
        ({"name": "a", "binding_keys": "odd"}, "binding_keys", "One of empty, queue."),
        ({"name": "a", "delay": "0s"}, "delay", "at least 1 ms"),
        ({"name": "a", "delay": "3651d"}, "delay", "no delay over 3650 days"),
        ({"name": "a", "delay": "soon"}, "delay", "“soon” is no duration"),
        ({"name": "a", "timeouts": "k 5s"}, "timeouts", "there are no others"),
        ({"name": "a", "header": "kind"}, "header", "Only timeouts by header have one."),
        (BY_KEY, "timeouts", "Timeouts are missing."),
        (BY_KEY | {"timeouts": ",".join(f"k{n} 5s" for n in range(51))}, "timeouts", "At most 50"),
        (BY_KEY | {"timeouts": "k"}, "timeouts", "a key and a delay, parted by commas"),
        (BY_KEY | {"timeouts": "k soon"}, "timeouts", "“soon” is no duration"),
        (BY_KEY | {"timeouts": "k 0s"}, "timeouts", "at least 1 ms"),
        (BY_KEY | {"timeouts": "[1]"}, "timeouts", "A JSON list of [key, delay]"),
        (BY_KEY | {"timeouts": '[["k"'}, "timeouts", "A JSON list of [key, delay]"),
        (BY_KEY | {"timeouts": "k" * 256 + " 5s"}, "timeouts", "at most 255 bytes"),
        (BY_KEY | {"timeouts": '[["\\ud800", "5s"]]'}, "timeouts", "U+D800, which is no"),
        (BY_KEY | {"timeouts": '[["a", "5s", "\\ud800"]]'}, "timeouts", "U+D800, which is no"),
        (BY_HEADER | {"timeouts": '[["\\ud800", "5s"]]'}, "timeouts", "U+D800, which is no"),
        ({"name": "a", "dead_queue": "  "}, "dead_queue", "a character that can be seen"),
        (BY_KEY | {"timeouts": "#.a.#.b.# 5s"}, "timeouts", "at most 2 words “#”"),
        (BY_KEY | {"timeouts": "a.* 5s, *.b 9s"}, "timeouts", "both “a.*” and “*.b”"),
        (BY_KEY | {"timeouts": "# 5s"}, "timeouts", "nothing is left for the dead queue"),
        (
            BY_KEY | {"timeouts": '[["a","5s","q"],["b","6s","q"]]'},
            "timeouts",
            "“q” would have two times to live",
        ),
        (BY_KEY | {"timeouts": '[["a","5s","a_input_q"]]'}, "timeouts", "one of the others"),
        (BY_KEY | {"timeouts": '[["a","5s","amq.q"]]'}, "timeouts", "belong to the broker"),
        (BY_HEADER | {"header": "", "timeouts": "v 5s"}, "header", "is missing"),
        (BY_HEADER | {"header": "x-v", "timeouts": "v 5s"}, "header", "belong to the broker"),
        (BY_HEADER | {"header": "h" * 256, "timeouts": "v 5s"}, "header", "at most 255 bytes"),
        (BY_HEADER | {"timeouts": "v 5s, v 6s"}, "timeouts", "“v” has two timeouts"),
    ),
)
