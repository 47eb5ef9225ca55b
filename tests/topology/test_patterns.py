"""The laws that every pattern keeps, over the whole table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.topology import strategies
from tests.topology.builders import a_queue
from topology.definitions import MAXIMUM_TTL_MS, Binding, Definitions, Exchange
from topology.patterns import PATTERNS, delay_levels, hold_queues, retry_pair
from topology.patterns.level_params import LONGEST_PREFIX_BYTES, QUEUE_TYPES
from topology.patterns.pattern import Copy, ParamsError, Pattern
from topology.provisioning.taps import tap_definitions
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


def levels_params() -> st.SearchStrategy[delay_levels.Params]:
    own = st.builds(
        delay_levels.Params,
        st.just("own"),
        names.filter(lambda name: len(name.encode()) <= LONGEST_PREFIX_BYTES),
        st.integers(1, 28),
        st.integers(50, 1170).map(lambda ms: timedelta(milliseconds=ms)),
        st.sampled_from(list(QUEUE_TYPES)),
    )
    fixed = [
        delay_levels.Params("nsb-v1"),
        delay_levels.Params("nsb-v2"),
        delay_levels.Params("celery"),
        delay_levels.Params("celery", "shop", queue_type="classic"),
    ]
    return st.one_of(own, st.sampled_from(fixed))


def hold_params() -> st.SearchStrategy[hold_queues.Params]:
    """Short delays only for a double lease: from a minute on the two leases are the same."""
    short, long = st.integers(1, 59_999), st.integers(1, MAXIMUM_TTL_MS // 2)
    texts = st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=40)

    def of(lease: str) -> st.SearchStrategy[hold_queues.Params]:
        waits = (short if lease == "double" else long).map(lambda ms: timedelta(milliseconds=ms))
        few = st.lists(waits, min_size=1, max_size=3).map(tuple)
        keys = st.lists(texts, min_size=1, max_size=3).map(tuple)
        return st.builds(hold_queues.Params, texts, keys, few, st.just(lease))

    return st.one_of(of("generous"), of("double"))


def beside_levels(params: Any) -> Definitions:
    return Definitions.of([a_queue("work"), a_queue("some.where")])


def beside_hold_queues(params: hold_queues.Params) -> Definitions:
    """A destination for every key."""
    if not params.exchange:
        return Definitions.of([a_queue(key) for key in params.keys])
    bound = [Binding(params.exchange, f"to {key}", key) for key in params.keys]
    return Definitions.of(
        [Exchange(params.exchange), *bound, *(a_queue(b.destination) for b in bound)]
    )


def any_delay(params: delay_levels.Params) -> list[timedelta]:
    odd = params.unit * 2 - timedelta(milliseconds=1)
    return [params.unit, min(odd, params.maximum), params.maximum]


@dataclass(frozen=True)
class Case:
    """What a pattern needs for the laws.

    Its parameters, texts that it refuses, what stands beside it and is none of it, and delays
    and targets to try where it leaves them open.
    """

    params: st.SearchStrategy[Any]
    refused: tuple[tuple[dict[str, str], str, str], ...]
    beside: Callable[[Any], Definitions] = lambda params: Definitions()
    delays: Callable[[Any], list[timedelta]] = lambda params: []
    targets: tuple[str, ...] = ()


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
    delay_levels.KIND: Case(
        levels_params(),
        (
            ({"preset": "nsb-v3"}, "preset", "One of nsb-v2, nsb-v1, celery, own."),
            ({"preset": "own"}, "prefix", "needs a prefix"),
            ({"preset": "own", "prefix": "p" * 201}, "prefix", "at most 200 bytes"),
            ({"preset": "own", "prefix": "amq.x"}, "prefix", "belong to the broker"),
            ({"prefix": "p"}, "prefix", "has no prefix"),
            ({"preset": "own", "prefix": "p", "levels": "0"}, "levels", "Between 1 and 28"),
            ({"preset": "own", "prefix": "p", "levels": "29"}, "levels", "Between 1 and 28"),
            ({"preset": "own", "prefix": "p", "levels": "many"}, "levels", "Between 1 and 28"),
            ({"levels": "27"}, "levels", "This preset has 28 levels."),
            ({"unit": "2s"}, "unit", "steps of 1s"),
            ({"preset": "own", "prefix": "p", "unit": "49ms"}, "unit", "at least 50ms"),
            ({"preset": "own", "prefix": "p", "unit": "3s"}, "unit", "no TTL over 3650 days"),
            ({"unit": "soon"}, "unit", "“soon” is no duration"),
            ({"queue_type": "stream"}, "", ""),
            ({"preset": "celery", "queue_type": "stream"}, "queue_type", "One of quorum"),
            ({"destinations": "people"}, "destinations", "One of queues, exchanges."),
        ),
        beside_levels,
        any_delay,
        ("work", "some.where"),
    ),
    hold_queues.KIND: Case(
        hold_params(),
        (
            ({"exchange": "x" * 249}, "exchange", "more than 255 bytes"),
            ({"exchange": "a\x00b"}, "exchange", "control characters"),
            ({"keys": "k" * 249}, "keys", "more than 255 bytes"),
            ({"keys": "[1]"}, "keys", "a JSON list of texts"),
            ({"keys": '["'}, "keys", "a JSON list of texts"),
            ({"delays": "5s, soon"}, "delays", "“soon” is no duration"),
            ({"delays": "0s"}, "delays", "at least 1 ms"),
            ({"delays": "2000d"}, "delays", "no lease over 3650 days"),
            ({"lease": "for ever"}, "lease", "One of generous, double."),
        ),
        beside_hold_queues,
    ),
}
# What a preset fixes is not asked for, so that it cannot be wrong.
CASES[delay_levels.KIND] = replace(
    CASES[delay_levels.KIND],
    refused=tuple(case for case in CASES[delay_levels.KIND].refused if case[2]),
)


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


def test_a_use_is_recognised_by_what_was_declared_and_claims_exactly_that(kind: str) -> None:
    def law(pattern: Pattern, params: Any) -> None:
        declared = built(pattern, params)
        (use,) = pattern.recognize(standing(pattern, params))
        assert (use.kind, use.params) == (kind, params)
        assert use.claims == {thing.identity for thing in declared}

    for_all(law, kind)


def test_a_route_leads_into_what_is_declared_and_arrives_after_the_achievable(kind: str) -> None:
    def law(pattern: Pattern, params: Any) -> None:
        found = standing(pattern, params)
        for delay, target in routes(pattern, params):
            route = pattern.route(params, delay, target)
            is_there = (
                found.exchange(route.exchange) if route.exchange else found.queue(route.routing_key)
            )
            assert is_there is not None
            walked = walk(
                found, route.exchange, route.routing_key, expiration_ms=route.expiration_ms
            )
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
        probes = pattern.probes(params, found)
        assert probes
        for delay, target, queue in probes:
            route = pattern.route(params, delay, target)
            walked = walk(found | route.declares, route.exchange, route.routing_key)
            assert [outcome.ending for outcome in walked.outcomes] == ["delivered"]
            assert walked.delivered[0].after == pattern.achievable(params, delay)
            assert queue in ("", walked.delivered[0].queue)

    for_all(law, kind)


def test_what_enters_a_delay_reads_as_that_delay_to_that_target(kind: str) -> None:
    def law(pattern: Pattern, params: Any) -> None:
        for delay, target in routes(pattern, params):
            route = pattern.route(params, delay, target)
            reading = pattern.read(params, Copy(route.exchange, route.routing_key, {}))
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
        taps = pattern.taps(params)
        found = standing(pattern, params)
        for delay, target in routes(pattern, params):
            if not delay:
                continue
            route = pattern.route(params, delay, target)
            for phase in ("entry", "exit"):
                chosen = [tap for tap in taps if tap.phase == phase]
                tapped = found | tap_definitions("tap", chosen, "stream")
                walked = walk(tapped, route.exchange, route.routing_key)
                copies = [o.after for o in walked.delivered if o.queue == "tap"]
                expected = timedelta(0) if phase == "entry" else pattern.achievable(params, delay)
                assert copies == ([expected] if chosen else [])

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
