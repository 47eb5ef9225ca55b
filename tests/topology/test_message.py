from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.topology import strategies
from tests.topology.stripping import stripped
from topology.broker.properties.field_values import MAXIMUM_NESTING
from topology.broker.properties.read import build_properties, read_properties
from topology.message import CHANGED_BY_ROUTING, Message, Properties, content_id

in_flight = st.dictionaries(
    st.sampled_from([*sorted(CHANGED_BY_ROUTING), "x-opt-deaths", "x-opt-rabbitmq-sent-time"]),
    strategies.header_values,
)


def reordered(value: Any) -> Any:
    """The same value with every table's entries in the other order."""
    if isinstance(value, dict):
        return {name: reordered(value[name]) for name in reversed(value)}
    return [reordered(item) for item in value] if isinstance(value, list) else value


@given(strategies.headers, in_flight, st.binary(max_size=20))
def test_the_content_stays_the_same_when_a_message_dies_and_is_replayed(
    headers: dict[str, Any], added: dict[str, Any], body: bytes
) -> None:
    before = Properties(headers=headers, message_id="m", expiration="500", user_id="ann")
    after = Properties(headers={**added, **reordered(headers)}, message_id="m")
    assert content_id(before, body) == content_id(after, body)


@given(strategies.raw_properties(), st.binary(max_size=20))
def test_the_content_stays_the_same_through_our_own_replay(raw: bytes, body: bytes) -> None:
    before = read_properties(raw)
    after = stripped(before, {"delayboard-replays": 3})
    assert content_id(before, body) == content_id(after, body)


@given(strategies.headers, strategies.header_names, strategies.header_values)
def test_another_header_value_is_another_content(
    headers: dict[str, Any], name: str, value: Any
) -> None:
    if name not in headers or headers[name] != value:
        one, other = Properties(headers=headers), Properties(headers={**headers, name: value})
        assert content_id(one, b"") != content_id(other, b"")


@pytest.mark.parametrize(
    "change",
    [
        {"message_id": "m2"},
        {"message_id": None},
        {"message_id": None, "correlation_id": "m"},
        {"content_type": "text/plain"},
        {"priority": 0},
        {"timestamp": 1},
        {"headers": {"a": True}},
        {"headers": {"a": 1.0}},
        {"headers": {"a": "1"}},
        {"headers": {"a": [1]}},
        {"headers": {"A": 1}},
        {"headers": {}},
    ],
)
def test_any_other_property_and_type_counts(change: dict[str, Any]) -> None:
    plain = Properties(message_id="m", headers={"a": 1})
    assert content_id(plain, b"") != content_id(replace(plain, **change), b"")


def test_the_body_counts() -> None:
    assert content_id(Properties(), b"a") != content_id(Properties(), b"")
    message = Message("x", "k", Properties(), b"a", redelivered=True)
    assert message.content_id == content_id(Properties(), b"a")
    assert len(message.content_id) == 32


def test_names_and_values_of_headers_do_not_run_together() -> None:
    pairs: list[tuple[Any, Any]] = [
        ({"a": "b", "c": "d"}, {"a": "bc", "d": ""}),
        ({"a": {"b": 1}}, {"a": ["b", 1]}),
    ]
    for one, other in pairs:
        assert content_id(Properties(headers=one), b"") != content_id(
            Properties(headers=other), b""
        )


@pytest.mark.parametrize("kind", ["table", "list"])
def test_the_deepest_header_that_is_read_can_be_hashed(kind: str) -> None:
    value: Any = 1
    for _ in range(MAXIMUM_NESTING):
        value = {"a": value} if kind == "table" else [value]
    properties = read_properties(build_properties({"deep": value}).raw)
    assert properties.headers == {"deep": value}
    assert properties.problems == ()
    assert content_id(properties, b"") != content_id(Properties(headers={"deep": 1}), b"")


def test_a_tag_is_a_text_or_nothing() -> None:
    message = Message("", "", Properties(headers={"a": "text", "b": 1}), b"")
    assert (message.tag("a"), message.tag("b"), message.tag("c")) == ("text", "", "")


def test_only_what_is_set_is_stated_in_the_order_of_the_protocol() -> None:
    properties = Properties(type="t", content_type="text/plain", headers={"a": 1}, priority=0)
    assert list(properties.stated().items()) == [
        ("content_type", "text/plain"),
        ("priority", 0),
        ("type", "t"),
    ]
