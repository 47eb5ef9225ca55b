"""What the forwarder decides, what it leaves of a message, and how it counts."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.topology import strategies
from tests.topology.amqp_entries import table_entries
from topology.broker.properties.field_values import FieldError
from topology.broker.properties.read import _split, build_properties, read_properties
from topology.definitions import MAXIMUM_TTL_MS
from topology.message import DEATH_HEADERS, Forwarder, Message, Properties, content_id
from topology.patterns.busy_wait.params import WAITED_HEADER
from topology.transfer.forwarder import REMEMBERED, Decision, ForwarderCounts, decide

FORWARDER = Forwarder("q-busy-wait", "q", "q-delay", "due-at-ms")
NOW = 1_800_000_000_000


def message(properties: Properties) -> Message:
    return Message("", "q-busy-wait", properties, b"body")


def decided(headers: dict[str, Any]) -> Decision:
    return decide(FORWARDER, message(build_properties(headers)), NOW)


@pytest.mark.parametrize(
    ("due", "queue", "late_ms"),
    [
        (NOW + 1, "q-delay", None),
        (NOW, "q", 0),
        (NOW - 1, "q", 1),
        (NOW - 90_000, "q", 90_000),
        (NOW + MAXIMUM_TTL_MS, "q-delay", None),
        (0, "q", NOW),
        (-5, "q", NOW + 5),
    ],
)
def test_what_is_due_goes_on_and_all_else_round_again(
    due: int, queue: str, late_ms: int | None
) -> None:
    decision = decided({"due-at-ms": due})
    assert (decision.publish.exchange, decision.publish.routing_key) == ("", queue)
    assert decision.fate == ("passed" if queue == "q" else "looped")
    assert decision.late_ms == late_ms
    assert decision.publish.body == b"body"


@pytest.mark.parametrize("due", [None, "soon", str(NOW), True, 1.5, [NOW], NOW * 1000, 2**63 - 1])
def test_one_that_does_not_tell_when_it_is_due_goes_on_and_is_counted_apart(due: Any) -> None:
    decision = decided({} if due is None else {"due-at-ms": due})
    assert (decision.fate, decision.publish.routing_key) == ("without_due_header", "q")
    assert decision.late_ms is None


@pytest.mark.parametrize("width", ["b", "s", "I", "l"])
def test_a_whole_number_of_any_width_is_read(width: str) -> None:
    size = {"b": ">b", "s": ">h", "I": ">i", "l": ">q"}[width]
    value = width.encode() + struct.pack(size, 7)
    inner = bytes([len("due-at-ms")]) + b"due-at-ms" + value
    raw = struct.pack(">HI", 1 << 13, len(inner)) + inner
    assert decide(FORWARDER, message(read_properties(raw)), 8).late_ms == 1


@given(strategies.raw_properties(), st.integers(0, 2**63))
def test_all_but_what_dying_adds_and_its_own_mark_stays_byte_for_byte(raw: bytes, now: int) -> None:
    try:
        before = _split(raw)
    except FieldError:
        return
    decision = decide(FORWARDER, message(read_properties(raw)), now)
    after = _split(decision.publish.properties.raw)
    assert {n: v for n, v in before.items() if n not in ("headers", "user_id")} == {
        n: v for n, v in after.items() if n != "headers"
    }
    kept = [entry for entry in _entries(before) if not _is_taken_off(entry[0])]
    assert [entry for entry in _entries(after) if entry[0] != WAITED_HEADER.encode()] == kept


def _entries(pieces: dict[str, bytes]) -> list[tuple[bytes, bytes]]:
    return [(name, data) for name, _, data in table_entries(pieces.get("headers", bytes(4))[4:])]


def _is_taken_off(name: bytes) -> bool:
    text = name.decode("utf-8", "backslashreplace")
    return text in DEATH_HEADERS | {"CC", "BCC"} or text.startswith("x-opt-")


def test_nothing_of_an_earlier_death_is_left_for_a_cycle_rule_to_count() -> None:
    death = {"queue": "q-delay", "reason": "expired", "count": 3}
    headers = {"x-death": [death], "x-first-death-queue": "q-delay", "due-at-ms": NOW + 5, "a": 1}
    stated = decided(headers).publish.properties.headers
    assert stated == {"due-at-ms": NOW + 5, "a": 1, WAITED_HEADER: NOW + 5}


def test_a_message_keeps_its_content_id_on_every_lap() -> None:
    properties = build_properties({"due-at-ms": NOW + 5, "a": [1, "b"]}, message_id="m")
    first = decide(FORWARDER, message(properties), NOW).publish
    second = decide(FORWARDER, message(first.properties), NOW + 5).publish
    assert content_id(properties, b"") == content_id(second.properties, b"")
    assert second.routing_key == "q"


def test_what_cannot_be_taken_apart_goes_on_as_it_is() -> None:
    broken = read_properties(b"\x20\x00\xff")
    decision = decide(FORWARDER, message(broken), NOW)
    assert (decision.fate, decision.publish.properties.raw) == ("without_due_header", broken.raw)


def test_counters_tell_how_late_the_latest_messages_were() -> None:
    passing = ForwarderCounts()
    assert passing.counters()["late_p50_ms"] is None
    for late in range(1, 101):
        passing.count(Decision("passed", decided({}).publish, late))
    passing.count(Decision("looped", decided({}).publish))
    passing.count(Decision("without_due_header", decided({}).publish))
    assert passing.counters() == {
        "passed": 100,
        "looped": 1,
        "returned": 0,
        "without_due_header": 1,
        "late_p50_ms": 50,
        "late_p99_ms": 99,
        "late_last_ms": 100,
    }
    for _ in range(REMEMBERED):
        passing.count(Decision("passed", decided({}).publish, 0))
    assert passing.counters()["late_p99_ms"] == 0
