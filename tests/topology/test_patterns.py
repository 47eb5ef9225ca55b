"""The laws that every pattern keeps, over the whole table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.topology import strategies
from tests.topology.builders import a_queue
from topology.definitions import MAXIMUM_TTL_MS, Binding, Definitions, Exchange
from topology.patterns import PATTERNS, retry_pair
from topology.patterns.pattern import Copy, ParamsError, Pattern
from topology.routing.walk import walk

names = st.text(
    st.characters(exclude_categories=["Cc", "Cs"]),
    min_size=1,
    max_size=retry_pair.MAXIMUM_NAME_BYTES,
).filter(
    lambda name: len(name.encode()) <= retry_pair.MAXIMUM_NAME_BYTES and not name.startswith("amq.")
)

routing_keys = st.text(st.characters(exclude_categories=["Cs"]), max_size=255).filter(
    lambda key: len(key.encode()) <= 255
)

delays = st.integers(1, MAXIMUM_TTL_MS).map(lambda ms: timedelta(milliseconds=ms))


@dataclass(frozen=True)
class Case:
    """What a pattern needs for the laws: its parameters, and texts that it refuses."""

    params: st.SearchStrategy[Any]
    refused: tuple[tuple[dict[str, str], str, str], ...]


CASES: dict[str, Case] = {
    retry_pair.KIND: Case(
        st.builds(retry_pair.Params, names, delays, routing_keys),
        (
            ({}, "name", "A name is missing."),
            ({"name": "n" * 250}, "name", "A name has at most 249 bytes"),
            ({"name": "é" * 125}, "name", "A name has at most 249 bytes"),
            ({"name": "amq.direct"}, "name", "belong to the broker"),
            ({"name": "a\x00b"}, "name", "control characters"),
            ({"name": "a", "routing_key": "k" * 256}, "routing_key", "at most 255 bytes"),
            ({"name": "a", "delay": "0s"}, "delay", "at least 1 ms"),
            ({"name": "a", "delay": "3651d"}, "delay", "no delay over 3650 days"),
            ({"name": "a", "delay": "soon"}, "delay", "“soon” is no duration"),
        ),
    ),
}


def test_every_pattern_of_the_table_is_put_to_the_laws() -> None:
    assert set(CASES) == set(PATTERNS)
    assert {pattern.KIND for pattern in PATTERNS.values()} == set(PATTERNS)


@pytest.fixture(params=sorted(PATTERNS))
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def for_all(check: Callable[[Pattern, Any], None], kind: str) -> None:
    """Run a law over generated parameters of one pattern."""

    @given(CASES[kind].params)
    def run(params: Any) -> None:
        check(PATTERNS[kind], params)

    run()


def routes(pattern: Pattern, params: Any) -> list[tuple[timedelta, str]]:
    return [
        (delay, target)
        for delay in (timedelta(0), *pattern.delays(params))
        for target in pattern.targets(params)
    ]


def test_a_use_is_recognised_by_what_was_declared_and_claims_exactly_that(kind: str) -> None:
    def law(pattern: Pattern, params: Any) -> None:
        declared = pattern.definitions(params)
        for delay, target in routes(pattern, params):
            found = declared | pattern.route(params, delay, target).declares
            (use,) = pattern.recognize(found)
            assert (use.kind, use.params) == (kind, params)
            assert use.claims == {thing.identity for thing in found}

    for_all(law, kind)


def test_a_route_leads_into_what_is_declared_and_arrives_after_the_achievable(kind: str) -> None:
    def law(pattern: Pattern, params: Any) -> None:
        for delay, target in routes(pattern, params):
            route = pattern.route(params, delay, target)
            found = pattern.definitions(params) | route.declares
            is_there = (
                found.exchange(route.exchange) if route.exchange else found.queue(route.routing_key)
            )
            assert is_there is not None
            walked = walk(
                found, route.exchange, route.routing_key, expiration_ms=route.expiration_ms
            )
            (outcome,) = walked.outcomes
            promised = pattern.achievable(params, delay)
            assert (outcome.ending, outcome.queue) == ("delivered", target)
            assert outcome.after == promised >= delay

    for_all(law, kind)


def test_a_copy_at_the_tap_of_a_route_gives_its_delay_and_target_back(kind: str) -> None:
    def law(pattern: Pattern, params: Any) -> None:
        for delay, target in routes(pattern, params):
            route = pattern.route(params, delay, target)
            tapped = {(tap.exchange, tap.routing_key) for tap in pattern.taps(params)}
            assert (route.exchange, route.routing_key) in tapped
            reading = pattern.read(params, Copy(route.exchange, route.routing_key, {}))
            assert reading is not None
            assert (reading.destination, reading.delay) == (target, delay)
            assert reading.phase == ("entry" if delay else "publish")
            assert reading.attempt == (1 if delay else 0)

    for_all(law, kind)


def test_parameters_are_read_back_as_they_were_stored(kind: str) -> None:
    def law(pattern: Pattern, params: Any) -> None:
        stored = pattern.store(params)
        assert all(isinstance(text, str) for text in stored.values())
        assert pattern.parse(stored) == params

    for_all(law, kind)


def test_taps_are_at_exchanges_of_the_topology_and_the_example_is_python(kind: str) -> None:
    def law(pattern: Pattern, params: Any) -> None:
        declared = {exchange.name for exchange in pattern.definitions(params).exchanges}
        assert {tap.exchange for tap in pattern.taps(params)} <= declared
        assert all(tap.sees for tap in pattern.taps(params))
        compile(pattern.consumer_example(params), "example", "exec")

    for_all(law, kind)


def test_every_pattern_explains_itself(kind: str) -> None:
    told = PATTERNS[kind].EXPLANATION
    texts = (told.title, told.summary, told.mechanism, told.guarantee, told.cost, told.source)
    assert all(texts)
    assert told.hazards


@pytest.mark.parametrize(
    ("kind", "values", "name", "sentence"),
    [(kind, *refusal) for kind, case in CASES.items() for refusal in case.refused],
)
def test_parameters_that_make_no_sound_topology_are_refused_with_a_sentence(
    kind: str, values: dict[str, str], name: str, sentence: str
) -> None:
    with pytest.raises(ParamsError) as raised:
        PATTERNS[kind].parse(values)
    assert sentence in raised.value.problems[name]
    assert sentence in str(raised.value)


@given(strategies.definitions())
def test_nothing_is_recognised_twice_in_any_vhost_and_claims_exist(found: Definitions) -> None:
    there = {thing.identity for thing in found}
    for pattern in PATTERNS.values():
        uses = pattern.recognize(found)
        assert all(use.claims <= there for use in uses)
        assert len({use.name for use in uses}) == len(uses)


UNRELATED = [
    [],
    [a_queue("work"), a_queue("hold", ttl=5, dlx="", key="work")],
    [Exchange("x"), a_queue("a"), Binding("x", "a", "k")],
    [a_queue("a", dlx="x"), a_queue("b", dlx="x"), Exchange("x"), Binding("x", "a", "k")],
    [a_queue("a-retry", ttl=5, dlx="a"), a_queue("a", dlx="gone"), Exchange("a")],
]


@pytest.mark.parametrize("things", UNRELATED)
def test_nothing_is_recognised_where_there_is_none(things: list[Any]) -> None:
    for pattern in PATTERNS.values():
        assert list(pattern.recognize(Definitions.of(things))) == []
