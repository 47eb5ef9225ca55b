"""Names that we give, names that others gave, and text that no broker can hold."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.topology.builders import a_snapshot
from tests.topology.pattern_cases import CASES
from topology.definitions import TAP_PREFIX, Binding, BrokerObject, Definitions, Exchange, Queue
from topology.models import Topology
from topology.patterns.busy_wait.pattern import busy_wait
from topology.patterns.delay_queues.pattern import delay_queues
from topology.patterns.names import (
    byte_length,
    control_problem,
    header_problem,
    key_problem,
    name_problem,
    unicode_problem,
    visibility_problem,
)
from topology.patterns.pattern import ParamsError
from topology.patterns.table import PATTERNS
from topology.provisioning.recognition import recognize


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "is missing"),
        ("é" * 128, "at most 255 bytes"),
        ("amq.x", "RabbitMQ reserves"),
        ("delayboard.tap.orders", "for its taps"),
        ("delayboard-probe", "for its probes"),
        ("delayboard-probe-orders", "for its probes"),
        ("a\tb", "control characters"),
        ("a\x85b", "such as U+0085"),
        ("a\u202eb", "such as U+202E"),
        ("a\u2028b", "such as U+2028"),
        ("\u200b", "such as U+200B"),
        ("a\ud800", "U+D800, which is not a valid Unicode character"),
        ("  ", "at least one visible character"),
        ("\u3000\u00a0", "at least one visible character"),
        ("\u2800", "at least one visible character"),
        ("\ufe0f", "at least one visible character"),
    ],
)
def test_a_name_that_we_would_not_give_is_refused_with_the_reason(name: str, problem: str) -> None:
    assert problem in name_problem(name, 255)


@pytest.mark.parametrize("name", ["a", " a ", "-", "名前", "שלום", "é" * 127, "e\u0301", "🐇", "#"])
def test_a_name_with_something_to_see_is_taken(name: str) -> None:
    assert name_problem(name, 255) == ""


@given(st.text(st.characters(exclude_categories=()), max_size=6))
def test_no_text_makes_a_check_fail_and_what_passes_can_be_written_and_shown(text: str) -> None:
    for check in (
        unicode_problem,
        control_problem,
        visibility_problem,
        key_problem,
        header_problem,
    ):
        problem = check(text)
        problem.encode()
        if not problem:
            assert len(text.encode()) == byte_length(text)
    name_problem(text, 255).encode()


def of(*objects: BrokerObject) -> Definitions:
    return Definitions.of(objects)


ODD = ["  ", "a\u202eb", "a\x00b"]


def renamed(kind: str, name: str) -> tuple[Definitions, str]:
    """What others built with this name in the place of one that we would give."""
    values: dict[str, dict[str, str]] = {
        "retry_pair": {"name": "NAME"},
        "delay_queues": {"queue": "NAME", "delays": "10s, 1m"},
        "busy_wait": {"queue": "NAME", "delays": "1m"},
        "delay_levels": {"preset": "own", "prefix": "NAME", "levels": "5"},
        "hold_queues": {"exchange": "NAME", "keys": "k", "delays": "1m"},
        "retry_ladder": {"name": "NAME"},
        "retry_loop": {"name": "n", "input_queue": "NAME"},
        "quorum_retry": {"name": "NAME"},
        "delayed_exchange": {"name": "NAME", "queues": "q"},
    }
    pattern = PATTERNS[kind]
    params = pattern.parse(values[kind])
    built = pattern.definitions(params)
    if kind == "hold_queues":
        built |= pattern.route(params, params.delays[0], "k").declares
    return Definitions.of(_renamed(obj, name) for obj in built), pattern.title(params)


def _renamed(value: Any, name: str) -> Any:
    """The same with another name wherever it stands."""
    match value:
        case str():
            return value.replace("NAME", name)
        case Exchange():
            return Exchange(_renamed(value.name, name), value.type, arguments=_texts(value, name))
        case Queue():
            return Queue(_renamed(value.name, name), arguments=_texts(value, name))
        case Binding():
            return Binding(
                _renamed(value.source, name),
                _renamed(value.destination, name),
                _renamed(value.routing_key, name),
                value.destination_is_queue,
                _texts(value, name),
            )
    return value


def _texts(obj: BrokerObject, name: str) -> Any:
    stated = {key: _renamed(value, name) for key, value in obj.arguments.items()}
    return type(obj.arguments)(stated)


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("kind", sorted(CASES))
def test_what_others_named_oddly_is_found_whole_and_cannot_be_managed(kind: str, name: str) -> None:
    found, _ = renamed(kind, name)
    (one,) = recognize(a_snapshot(found)).found
    assert one.use.kind not in CASES or one.use.params is None
    is_odd = any(visibility_problem(queue.name) for queue in found.queues)
    assert (one.plan is None) == is_odd or one.use.kind == "delayed_exchange"
    waiting = {queue.name for queue in found.queues if queue.message_ttl_ms is not None}
    assert waiting <= set(one.queues)


@pytest.mark.parametrize("pattern", [busy_wait, delay_queues])
def test_a_tap_is_no_target(pattern: Any) -> None:
    problem = pattern.target_problem(pattern.EXAMPLE, "delayboard.tap.orders", of())
    assert "as a tap" in problem


@pytest.mark.parametrize("name", ["  ", "a\u202eb", f"{TAP_PREFIX}a"])
def test_a_row_of_before_is_read_as_it_was_accepted(name: str) -> None:
    row = Topology(kind="retry_pair", params={"name": name, "delay": "5s"})
    assert row.parsed.name == name
    with pytest.raises(ParamsError):
        PATTERNS["retry_pair"].parse(row.params)
