from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given

from tests.topology.test_observe import tables
from topology.broker.errors import Unreachable
from topology.broker.management.schema import read_object, read_objects


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"name": "", "arguments": []}, {"name": "", "arguments": {}}),
        ({"messages": None, "consumers": ""}, {"messages": None, "consumers": None}),
        ({"messages": -1, "consumers": 2**63}, {"messages": None, "consumers": None}),
        ({"message_stats": {"publish": 2**64 - 1}}, {"message_stats": {"publish": None}}),
        ({"name": "n" * 300, "apply-to": "all"}, {"name": "n" * 300, "apply-to": "all"}),
        ({"name": "a\x00b", "unknown": [1]}, {"name": "a\x00b", "unknown": [1]}),
    ],
)
def test_what_a_broker_may_say_is_read(row: dict[str, Any], expected: dict[str, Any]) -> None:
    assert read_objects([row]) == [expected]


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"name": None}, "“name” is not text"),
        ({"destination": {}}, "“destination” is not text"),
        ({"routing_key": "ü" * 128}, "“routing_key” has more than 255 bytes"),
        ({"consumers": True}, "“consumers” is not a number"),
        ({"messages": "12"}, "“messages” is not a number"),
        ({"message_stats": [1]}, "“message_stats” is not an object"),
        ([], "an unexpected answer"),
    ],
)
def test_what_no_broker_says_is_refused(row: Any, sentence: str) -> None:
    with pytest.raises(Unreachable, match=sentence):
        read_object(row)


@given(tables)
def test_nothing_is_read_that_has_another_form(row: dict[str, Any]) -> None:
    with suppress(Unreachable):
        read = read_object(row)
        assert all(isinstance(read.get(name, ""), str) for name in ("name", "routing_key"))
        assert isinstance(read.get("arguments", {}), dict)
        count = read.get("messages")
        assert count is None or (isinstance(count, int) and 0 <= count < 2**63)
