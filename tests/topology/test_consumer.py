from __future__ import annotations

import struct

import pytest

from topology.broker.amqp.consumer import take_offset
from topology.broker.errors import Unreachable
from topology.broker.properties.read import build_properties, read_properties
from topology.message import content_id

OFFSET = b"\x0fx-stream-offsetl" + struct.pack(">q", 7_000_000_000)


def test_the_offset_is_taken_out_of_the_headers() -> None:
    whole = build_properties(headers={"a": 1, "x-stream-offset": 3}, message_id="m")
    assert take_offset(whole) == 3
    assert whole.headers == {"a": 1}
    same = build_properties(headers={"a": 1}, message_id="m")
    assert content_id(whole, b"") == content_id(same, b"")


def test_an_offset_is_found_among_headers_that_cannot_be_read() -> None:
    unreadable = b"\x01a?"
    headers = unreadable + OFFSET
    raw = b"\x20\x00" + struct.pack(">I", len(headers)) + headers
    properties = read_properties(raw)
    assert properties.problems
    assert take_offset(properties) == 7_000_000_000


@pytest.mark.parametrize("headers", [{}, {"a": 1}, {"x-stream-offset": "7"}])
def test_a_message_without_an_offset_is_none_of_a_stream(headers: dict[str, object]) -> None:
    with pytest.raises(Unreachable, match="has no offset"):
        take_offset(build_properties(headers=headers))
