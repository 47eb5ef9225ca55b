"""The laws that every pattern keeps, over the whole table."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given

from tests.topology import strategies
from tests.topology.builders import a_queue
from tests.topology.pattern_cases import CASES
from topology.definitions import Binding, Definitions, Exchange
from topology.message import Route
from topology.patterns.pattern import ParamsError, Pattern
from topology.patterns.table import PATTERNS
from topology.routing.walk import Index, Walk, walk
from topology.structure.copies import Copy
from topology.structure.taps import tap_definitions


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
    case = CASES[pattern.KIND]
    return [
        (delay, target)
        for delay in (timedelta(0), *pattern.delays(params), *case.delays(params))
        for target in (*pattern.targets(params), *case.targets)
    ]


def built(pattern: Pattern, params: Any) -> Definitions:
    """The topology with everything that all routes declare."""
    declared = pattern.definitions(params)
    for delay, target in routes(pattern, params):
        declared |= pattern.route(params, delay, target).declares
    return declared


def standing(pattern: Pattern, params: Any) -> Definitions:
    """The same with what is none of it: destinations."""
    return built(pattern, params) | CASES[pattern.KIND].beside(params)


def walked_by(pattern: Pattern, params: Any, route: Route, found: Definitions | Index) -> Walk:
    return walk(
        found,
        route.exchange,
        route.routing_key,
        headers=route.make_headers(0),
        forwarders=pattern.forwarders(params),
    )


def copy_of(route: Route) -> Copy:
    return Copy(route.exchange, route.routing_key, route.make_headers(0))


def test_a_use_is_recognised_by_what_was_declared_and_claims_exactly_that(kind: str) -> None:
    def law(pattern: Pattern, params: Any) -> None:
        declared = built(pattern, params)
        (use,) = pattern.recognize(standing(pattern, params))
        assert (use.kind, use.params) == (kind, params)
        assert use.claims == {obj.identity for obj in declared}

    for_all(law, kind)


def test_a_route_leads_into_what_is_declared_and_arrives_after_the_achievable(kind: str) -> None:
    def law(pattern: Pattern, params: Any) -> None:
        found = standing(pattern, params)
        index = Index(found)
        for delay, target in routes(pattern, params):
            route = pattern.route(params, delay, target)
            is_there = (
                found.exchange(route.exchange) if route.exchange else found.queue(route.routing_key)
            )
            assert is_there is not None
            walked = walked_by(pattern, params, route, index)
            (outcome,) = walked.outcomes
            promised = pattern.achievable(params, delay)
            assert outcome.ending == "delivered"
            assert outcome.queue in (target, f"to {target}")
            assert outcome.after == promised >= delay
            assert sum(pattern.waits(params, delay), timedelta(0)) == promised

    for_all(law, kind)


def test_every_probe_arrives_as_it_says(kind: str) -> None:
    def law(pattern: Pattern, params: Any) -> None:
        found = standing(pattern, params)
        probes = pattern.trials(params, found)
        assert probes
        for delay, target, queue in probes:
            route = pattern.route(params, delay, target)
            walked = walked_by(pattern, params, route, found | route.declares)
            assert [outcome.ending for outcome in walked.outcomes] == ["delivered"]
            assert walked.delivered[0].after == pattern.achievable(params, delay)
            assert queue in ("", walked.delivered[0].queue)

    for_all(law, kind)


def test_what_enters_a_delay_reads_as_that_delay_to_that_target(kind: str) -> None:
    def law(pattern: Pattern, params: Any) -> None:
        for delay, target in routes(pattern, params):
            route = pattern.route(params, delay, target)
            reading = pattern.read(params, copy_of(route))
            if not delay and reading is None:
                continue
            assert reading is not None
            assert reading.destination == target
            assert reading.delay == pattern.achievable(params, delay)
            assert reading.phase == ("entry" if delay else "publish")
            assert reading.attempt == (1 if delay else 0)

    for_all(law, kind)


def test_an_entry_tap_copies_a_delayed_message_once_and_an_exit_tap_when_it_arrives(
    kind: str,
) -> None:
    def law(pattern: Pattern, params: Any) -> None:
        found = standing(pattern, params)
        tapped = {}
        for phase in ("entry", "exit"):
            chosen = [tap for tap in pattern.taps(params) if tap.phase == phase]
            index = Index(found | tap_definitions("tap", chosen, "classic"))
            tapped[phase] = (bool(chosen), index)
        for delay, target in routes(pattern, params):
            if not delay:
                continue
            route = pattern.route(params, delay, target)
            for phase, (is_tapped, index) in tapped.items():
                walked = walked_by(pattern, params, route, index)
                copies = [o.after for o in walked.delivered if o.queue == "tap"]
                expected = timedelta(0) if phase == "entry" else pattern.achievable(params, delay)
                assert copies == ([expected] if is_tapped else [])

    for_all(law, kind)


def test_parameters_are_read_back_as_they_were_stored(kind: str) -> None:
    def law(pattern: Pattern, params: Any) -> None:
        stored = pattern.store(params)
        assert all(isinstance(text, str) for text in stored.values())
        assert pattern.parse(stored) == params

    for_all(law, kind)


def test_taps_are_at_exchanges_of_the_topology_and_the_example_is_python(kind: str) -> None:
    def law(pattern: Pattern, params: Any) -> None:
        declared = {exchange.name for exchange in standing(pattern, params).exchanges}
        assert {tap.exchange for tap in pattern.taps(params)} <= declared
        compile(pattern.consumer_example(params), "example", "exec")

    for_all(law, kind)


def test_every_pattern_explains_itself(kind: str) -> None:
    reported = PATTERNS[kind].EXPLANATION
    texts = (
        reported.title,
        reported.summary,
        reported.mechanism,
        reported.guarantee,
        reported.cost,
        reported.source,
    )
    assert all(texts)
    assert reported.hazards


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
    there = {obj.identity for obj in found}
    for pattern in PATTERNS.values():
        uses = pattern.recognize(found)
        assert all(use.claims <= there for use in uses)
        assert len({use.name for use in uses}) == len(uses)


UNRELATED = [
    [],
    [a_queue("hold", ttl=5, dlx="", key="work")],
    [a_queue("work"), a_queue("hold", ttl=5, dlx="", key="hold")],
    [Exchange("x"), a_queue("a"), Binding("x", "a", "k")],
    [a_queue("a", dlx="x"), a_queue("b", dlx="x"), Exchange("x"), Binding("x", "a", "k")],
    [a_queue("a-retry", ttl=5, dlx="a"), a_queue("a", dlx="gone"), Exchange("a")],
]


@pytest.mark.parametrize("objects", UNRELATED)
def test_nothing_is_recognised_where_there_is_none(objects: list[Any]) -> None:
    for pattern in PATTERNS.values():
        assert list(pattern.recognize(Definitions.of(objects))) == []


@pytest.mark.parametrize("ring", ["retry_pair", "retry_ladder", "busy_wait", "retry_loop"])
def test_a_ring_with_quorum_queues_is_refused_where_a_limit_cannot_be_switched_off(
    ring: str,
) -> None:
    values = {"name": "a", "queue": "a", "delays": "1s", "delay": "1s"}
    quorum = {"preset": "quorum"} if ring == "retry_loop" else {"queue_type": "quorum"}
    pattern = PATTERNS[ring]
    params = pattern.parse(values | quorum)
    assert "without a delivery limit (4.0 and later)" in pattern.obstacle((3, 10, 8), params)
    assert pattern.obstacle((4, 0, 5), params) == pattern.obstacle((), params) == ""
    assert pattern.obstacle((3, 10, 8), pattern.parse(values)) == ""
    assert pattern.obstacle((3, 10, 8)) == ""
