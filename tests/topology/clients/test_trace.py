"""The trace of a message, from headers that any client can have sent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topology.clients.forms import LONGEST_STATE, Trace, read_trace

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize(
    "name",
    ["traceparent", "TraceParent", "cloudEvents:traceparent", "MT-Activity-Id", "Diagnostic-Id"],
)
def test_each_library_is_read_as_it_writes(name: str) -> None:
    assert read_trace({name: PARENT}) == Trace(TRACE, SPAN, is_sampled=True)
    assert read_trace({name: PARENT.encode()}) == Trace(TRACE, SPAN, is_sampled=True)


def test_the_state_and_the_flag_are_read() -> None:
    headers = {"traceparent": f"00-{TRACE}-{SPAN}-00", "tracestate": "rojo=00f0,congo=t61"}
    assert read_trace(headers) == Trace(TRACE, SPAN, is_sampled=False, state="rojo=00f0,congo=t61")
    for state in ("a" * (LONGEST_STATE + 1), "a=\n", "a=é", 7, None):
        found = read_trace({"traceparent": PARENT, "tracestate": state})
        assert found == Trace(TRACE, SPAN, is_sampled=True)


def test_a_later_version_may_have_more() -> None:
    assert read_trace({"traceparent": f"cc-{TRACE}-{SPAN}-01-more"}) is not None


@pytest.mark.parametrize(
    "parent",
    [
        "",
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n",
        f"00-{TRACE}-{SPAN}",
        "00-<script>-1-01",
        f"|{TRACE}.{SPAN}.",
        7,
        None,
        [PARENT],
        b"\xff\xfe",
    ],
)
def test_what_is_no_trace_is_none(parent: object) -> None:
    assert read_trace({"traceparent": parent}) is None


@given(st.dictionaries(st.text(), st.one_of(st.text(), st.binary(), st.integers(), st.none())))
def test_nothing_that_a_client_sends_raises(headers: dict[str, object]) -> None:
    read_trace(headers)


@given(st.binary(min_size=16, max_size=16).filter(any), st.binary(min_size=8, max_size=8))
def test_each_valid_trace_is_read(trace: bytes, span: bytes) -> None:
    found = read_trace({"traceparent": f"00-{trace.hex()}-{span.hex()}-01"})
    assert found == (Trace(trace.hex(), span.hex(), is_sampled=True) if any(span) else None)
