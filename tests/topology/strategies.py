"""Hypothesis strategies: raw AMQP fields of every type, header values, whole vhosts."""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from typing import Any

from hypothesis import strategies as st

from topology.definitions import Arguments, Binding, Definitions, Exchange, Queue
from topology.message import CHANGED_BY_ROUTING


def sized(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def short(data: bytes) -> bytes:
    return bytes([len(data)]) + data


def _fixed(tag: bytes, width: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=width, max_size=width).map(lambda data: tag + data)


def table(entries: list[tuple[bytes, bytes]]) -> bytes:
    """A table's inner bytes from names and tagged values."""
    return b"".join(short(name) + value for name, value in entries)


_widths = {b"t": 1, b"b": 1, b"B": 1, b"s": 2, b"u": 2, b"I": 4, b"i": 4, b"D": 5}
_wide = {b"l": 8, b"L": 8, b"T": 8, b"f": 4, b"d": 8}
_texts = st.one_of(st.binary(max_size=12), st.text(max_size=6).map(str.encode))
_plain = st.one_of(
    *(_fixed(tag, width) for tag, width in (_widths | _wide).items()),
    _texts.map(lambda data: b"S" + sized(data)),
    st.binary(max_size=12).map(lambda data: b"x" + sized(data)),
    st.just(b"V"),
)
_names = st.one_of(
    st.binary(max_size=10),
    st.text(max_size=5).map(str.encode),
    st.sampled_from([name.encode() for name in sorted(CHANGED_BY_ROUTING)] + [b"x-opt-a", b"a"]),
)


def _nested(inner: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    entries = st.lists(st.tuples(_names, inner), max_size=3)
    return st.one_of(
        entries.map(lambda found: b"F" + sized(table(found))),
        st.lists(inner, max_size=3).map(lambda found: b"A" + sized(b"".join(found))),
    )


raw_values = st.recursive(_plain, _nested, max_leaves=8)
raw_entries = st.lists(st.tuples(_names, raw_values), max_size=6)

SHORT_PROPERTIES = {15: "content_type", 14: "content_encoding", 10: "correlation_id"} | {
    9: "reply_to",
    8: "expiration",
    7: "message_id",
    5: "type",
    4: "user_id",
    3: "app_id",
    2: "cluster_id",
}


@st.composite
def raw_properties(draw: st.DrawFn) -> bytes:
    """A content header's property part with any of the fourteen properties, typed as they are."""
    pieces: dict[int, bytes] = {}
    for place in range(15, 1, -1):
        if not draw(st.booleans()):
            continue
        if place == 13:
            pieces[place] = sized(table(draw(raw_entries)))
        elif place in (12, 11):
            pieces[place] = draw(st.binary(min_size=1, max_size=1))
        elif place == 6:
            pieces[place] = draw(st.binary(min_size=8, max_size=8))
        else:
            pieces[place] = short(draw(_texts))
    flags = sum(1 << place for place in pieces)
    return struct.pack(">H", flags) + b"".join(pieces.values())


moments = st.datetimes(datetime(1970, 1, 1), datetime(9999, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001


def _values(texts: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    return st.recursive(
        st.one_of(
            st.none(),
            st.booleans(),
            st.integers(-(2**63), 2**63 - 1),
            st.floats(allow_nan=False),
            texts,
            st.binary(max_size=6),
            moments,
            st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-9, max_value=9),
        ),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)
        ),
        max_leaves=8,
    )


header_values = _values(st.text(st.characters(exclude_categories=()), max_size=6))
header_names = st.text(max_size=6).filter(
    lambda name: name not in CHANGED_BY_ROUTING and not name.startswith("x-opt-")
)
headers = st.dictionaries(header_names, header_values, max_size=4)
writable_values = _values(st.text(max_size=6))
writable_headers = st.dictionaries(header_names, writable_values, max_size=4)

words = st.sampled_from(["a", "b", "", "*", "#"])
patterns = st.lists(words, max_size=5).map(".".join)
keys = st.lists(st.sampled_from(["a", "b", ""]), max_size=5).map(".".join)

EXCHANGES = ("x1", "x2", "x3", "x4")
QUEUES = ("q1", "q2", "q3", "q4", "q5")


@st.composite
def definitions(draw: st.DrawFn) -> Definitions:
    """A small vhost of any structure: rings, missing exchanges, alternates, several types."""
    somewhere = st.sampled_from((*EXCHANGES, "gone", ""))
    exchanges = [
        Exchange(
            name,
            draw(st.sampled_from(["direct", "fanout", "topic", "headers"])),
            arguments=Arguments(
                draw(st.fixed_dictionaries({}, optional={"alternate-exchange": somewhere}))
            ),
        )
        for name in draw(st.sets(st.sampled_from(EXCHANGES)))
    ]
    arguments: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
        {},
        optional={
            "x-message-ttl": st.integers(0, 50),
            "x-dead-letter-exchange": somewhere,
            "x-dead-letter-routing-key": st.one_of(keys, st.sampled_from(QUEUES)),
        },
    )
    queues = [
        Queue(name, arguments=Arguments(draw(arguments)))
        for name in draw(st.sets(st.sampled_from(QUEUES)))
    ]
    bindings = draw(
        st.lists(
            st.one_of(
                st.builds(Binding, st.sampled_from(EXCHANGES), st.sampled_from(QUEUES), patterns),
                st.builds(
                    Binding,
                    st.sampled_from(EXCHANGES),
                    st.sampled_from(EXCHANGES),
                    patterns,
                    st.just(False),
                ),
            ),
            max_size=12,
        )
    )
    return Definitions.of([*exchanges, *queues, *bindings])
