from __future__ import annotations

import sys
from dataclasses import replace
from datetime import timedelta
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given

from tests.topology import strategies
from tests.topology.builders import TAP, a_queue, a_snapshot, is_complete
from tests.topology.pattern_cases import CASES
from tests.topology.test_patterns import standing
from topology.definitions import Arguments, Binding, BrokerObject, Definitions, Exchange, Queue
from topology.patterns.busy_wait import params as busy_wait_params
from topology.patterns.busy_wait.pattern import busy_wait
from topology.patterns.delay_levels import params as delay_levels_params
from topology.patterns.delay_levels.pattern import delay_levels
from topology.patterns.delay_queues import params as delay_queues_params
from topology.patterns.delay_queues.pattern import delay_queues
from topology.patterns.hold_queues import params as hold_queues_params
from topology.patterns.hold_queues.pattern import hold_queues
from topology.patterns.pattern import Use
from topology.patterns.retry_loop import params as retry_loop_params
from topology.patterns.retry_loop.pattern import retry_loop
from topology.patterns.retry_pair import params as retry_pair_params
from topology.patterns.retry_pair.pattern import retry_pair
from topology.patterns.table import PATTERNS
from topology.provisioning import recognition
from topology.provisioning.recognition import Found, departures, recognize
from topology.snapshot import QueueNumbers, Snapshot

PAIR = retry_pair_params.Params("orders", timedelta(seconds=5))
LEVELS = delay_levels_params.Params("nsb-v2")
HOLDS = hold_queues_params.Params("shop", ("created",), (timedelta(seconds=30),))


def held(params: hold_queues_params.Params = HOLDS) -> Definitions:
    (delay,), (key,) = params.delays, params.keys
    return hold_queues.route(params, delay, key).declares


def only_found(snapshot: Snapshot) -> Found:
    (found,) = recognize(snapshot).found
    return found


def with_policy(declared: Definitions, queue: str, **arguments: Any) -> Snapshot:
    """A snapshot in which a policy named “ttls” has its say on one queue."""
    (before,) = (q for q in declared.queues if q.name == queue)
    after = replace(before, arguments=Arguments({**before.arguments, **arguments}))
    in_force = declared.without([before.identity]) | Definitions.of([after])
    return replace(a_snapshot(declared), definitions=in_force, policies={queue: "ttls"})


def test_each_kind_is_found_with_its_parameters_and_is_complete() -> None:
    everything = (
        retry_pair.definitions(PAIR) | delay_levels.definitions(LEVELS) | held() | TAP
    ) | Definitions.of([Exchange("shop"), Exchange("amq.topic", "topic")])
    seen = recognize(a_snapshot(everything))
    assert [(one.use.kind, one.use.params) for one in seen.found] == [
        ("delay_levels", LEVELS),
        ("hold_queues", HOLDS),
        ("retry_pair", PAIR),
    ]
    assert all(is_complete(one) for one in seen.found)
    assert [obj.identity for obj in seen.foreign] == [("exchange", "shop")]


@pytest.mark.parametrize("kind", sorted(PATTERNS))
def test_no_kind_is_taken_for_another(kind: str) -> None:
    def law(params: Any) -> None:
        snapshot = a_snapshot(standing(PATTERNS[kind], params))
        every = recognize(snapshot).found
        (found,) = [one for one in every if one.use.kind in PATTERNS]
        assert (found.use.kind, found.use.params) == (kind, params)
        assert is_complete(found)

    given(CASES[kind].params)(law)()


def test_an_empty_vhost_has_nothing() -> None:
    seen = recognize(a_snapshot(Definitions()))
    assert (seen.found, seen.foreign, seen.overlapping) == ((), (), ())


@pytest.mark.parametrize("lost", list(retry_pair.definitions(PAIR)), ids=str)
def test_a_pair_without_one_thing_is_found_while_its_time_and_its_names_are_left(
    lost: BrokerObject,
) -> None:
    whole = retry_pair.definitions(PAIR)
    if isinstance(lost, Exchange | Queue):
        ends = [b for b in whole.bindings if lost.name in (b.source, b.destination)]
        gone = [lost, *ends]
    else:
        gone = [lost]
    left = whole.without([obj.identity for obj in gone])
    uses = [one.use for one in recognize(a_snapshot(left)).found]
    if lost.identity == ("queue", "orders-retry"):
        assert uses == []
        return
    (use,) = uses
    assert use.params == PAIR
    assert use.claims == {obj.identity for obj in left}
    assert len(use.missing) == len(gone)


@pytest.mark.parametrize(
    "objects",
    [
        [a_queue("a-retry", ttl=5, dlx="a", key="a"), Exchange("a"), a_queue("a", dlx="a-retry")],
        [
            a_queue("a-retry", ttl=5, dlx="a"),
            a_queue("a", dlx="dead"),
            Exchange("a"),
            Exchange("a-retry"),
            Binding("a", "a", "k"),
            Binding("a-retry", "a-retry", "k"),
        ],
        [
            a_queue("a-retry", ttl=5, dlx="a"),
            a_queue("a.work"),
            Exchange("a", "topic"),
            Binding("a", "a.work", "#"),
        ],
    ],
)
def test_what_only_has_the_names_of_a_pair_is_none(objects: list[BrokerObject]) -> None:
    assert list(retry_pair.recognize(Definitions.of(objects))) == []


def test_what_is_missing_and_what_differs_is_told_thing_by_thing() -> None:
    name = "nsb.v2.delay-level-05"
    odd = a_queue(name, ttl=1, dlx="nsb.v2.delay-level-04", type="classic")
    lost = Binding("nsb.v2.delay-level-00", "nsb.v2.delay-level-00", "*." * 27 + "1.#")
    whole = delay_levels.definitions(LEVELS)
    snapshot = a_snapshot(whole.without([("queue", name), lost.identity]) | Definitions.of([odd]))
    found = only_found(snapshot)
    assert found.plan is not None
    assert [change.object for change in found.plan.select("create")] == [lost]
    reported = [(one.name, one.wanted, one.declared) for one in departures(found, snapshot)]
    assert reported == [
        ("x-dead-letter-strategy", "at-least-once", "not set"),
        ("x-message-ttl", "32000", "1"),
        ("x-overflow", "reject-publish", "not set"),
        ("x-queue-type", "quorum", "classic"),
    ]


def test_hold_queues_of_which_one_is_odd_are_found_with_it() -> None:
    both = replace(HOLDS, keys=("created", "paid"))
    queues = [hold_queues.route(both, HOLDS.delays[0], key).declares for key in both.keys]
    (paid,) = queues[1].queues
    odd = replace(paid, arguments=Arguments({**paid.arguments, "x-expires": 1_000_000}))
    found = only_found(a_snapshot(queues[0] | Definitions.of([odd])))
    assert found.use.params == both
    assert found.use.missing == (f"The arguments of “{paid.name}” differ from the others.",)
    assert not is_complete(found)


def test_a_ttl_given_by_a_policy_is_found_and_named() -> None:
    whole = retry_pair.definitions(PAIR)
    bare = a_queue("orders-retry", type="classic", dlx="orders")
    declared = whole.without([("queue", "orders-retry")]) | Definitions.of([bare])
    snapshot = with_policy(declared, "orders-retry", **{"x-message-ttl": 5000})
    found = only_found(snapshot)
    assert found.use.params == PAIR
    (reported,) = departures(found, snapshot)
    assert (reported.name, reported.wanted, reported.declared) == (
        "x-message-ttl",
        "5000",
        "not set",
    )
    assert (reported.in_force, reported.policy, reported.is_made_up_for) == ("5000", "ttls", True)


def test_a_set_that_a_policy_breaks_is_found_by_what_was_declared() -> None:
    snapshot = with_policy(retry_pair.definitions(PAIR), "orders", **{"x-message-ttl": 100})
    found = only_found(snapshot)
    assert found.use.params == PAIR
    assert found.plan is not None
    assert found.plan.is_empty


def test_a_ttl_that_a_policy_cuts_short_is_told_though_the_declaration_is_right() -> None:
    name = "nsb.v2.delay-level-20"
    whole = delay_levels.definitions(LEVELS)
    snapshot = with_policy(whole, name, **{"x-message-ttl": 60_000})
    (reported,) = departures(only_found(snapshot), snapshot)
    assert (reported.name, reported.in_force, reported.policy) == ("x-message-ttl", "60000", "ttls")
    assert reported.wanted == reported.declared == str(2**20 * 1000)
    assert not reported.is_made_up_for


def test_a_policy_without_a_name_is_an_operators() -> None:
    whole = delay_levels.definitions(LEVELS)
    snapshot = with_policy(whole, "nsb.v2.delay-level-20", **{"x-message-ttl": 60_000})
    (reported,) = departures(only_found(snapshot), replace(snapshot, policies={}))
    assert reported.policy == "an operator policy"


def test_what_waits_is_counted_in_the_delays_only() -> None:
    numbers = {"orders": QueueNumbers(messages=7), "orders-retry": QueueNumbers(messages=3)}
    whole = retry_pair.definitions(PAIR)
    found = only_found(a_snapshot(whole, numbers))
    assert (found.waiting, found.queues) == (3, ("orders", "orders-retry"))
    unknown = a_snapshot(whole, {"orders-retry": QueueNumbers()})
    assert only_found(unknown).waiting is None


def a_use(kind: str, name: str, *claims: str, missing: tuple[str, ...] = ()) -> Use:
    return Use(kind, name, None, frozenset(("queue", name) for name in claims), missing)


class Seeing:
    """A pattern that sees what it is told to."""

    def __init__(self, *uses: Use) -> None:
        self._uses = uses

    def recognize(self, found: Definitions) -> tuple[Use, ...]:
        return self._uses


@pytest.mark.parametrize(
    ("kept", "excluded"),
    [
        (a_use("retry_pair", "p", "a", "b"), a_use("retry_loop", "l", "b")),
        (a_use("retry_loop", "l", "a"), a_use("unheard of", "u", "a")),
        (a_use("delay_queues", "q", "a"), a_use("delay_levels", "d", "a", missing=("x",))),
    ],
)
def test_a_thing_is_claimed_once_by_the_whole_and_the_more_particular(
    monkeypatch: pytest.MonkeyPatch, kept: Use, excluded: Use
) -> None:
    snapshot = a_snapshot(Definitions.of([a_queue("a"), a_queue("b")]))
    for uses in ((kept, excluded), (excluded, kept)):
        seeing = {str(number): Seeing(use) for number, use in enumerate(uses)}
        monkeypatch.setattr(recognition, "PATTERNS", seeing)
        recognition._structure.cache_clear()
        seen = recognize(snapshot)
        assert [one.use for one in seen.found] == [kept]
        assert list(seen.overlapping) == [excluded]
        foreign = {obj.identity for obj in seen.foreign}
        assert foreign == {("queue", "a"), ("queue", "b")} - kept.claims
    recognition._structure.cache_clear()


def seen_among(monkeypatch: pytest.MonkeyPatch, *uses: Use) -> recognition.Recognition:
    monkeypatch.setattr(recognition, "PATTERNS", {"one": Seeing(*uses)})
    recognition._structure.cache_clear()
    names = sorted({identity[1] for use in uses for identity in use.claims})
    return recognize(a_snapshot(Definitions.of(map(a_queue, names))))


@pytest.mark.parametrize(
    ("uses", "kept"),
    [
        ([("k", "a", "x", "1"), ("k", "b", "x", "2"), ("k", "c", "x", "3")], "abc"),
        ([("k", "a", "x", "1"), ("m", "b", "x", "2")], "a"),
        ([("k", "a", "x", "1"), ("k", "b", "x")], "a"),
        ([("k", "a", "x"), ("k", "b", "x", "2")], "a"),
        ([("k", "a", "1", "2"), ("k", "b", "1", "3"), ("k", "c", "2", "4")], "ab"),
    ],
)
def test_uses_of_one_kind_share_things_while_each_keeps_a_queue_of_its_own(
    monkeypatch: pytest.MonkeyPatch, uses: list[tuple[str, ...]], kept: str
) -> None:
    seen = seen_among(monkeypatch, *(a_use(*use) for use in uses))
    recognition._structure.cache_clear()
    assert "".join(one.use.name for one in seen.found) == kept
    assert len(seen.overlapping) == len(uses) - len(kept)
    assert seen.foreign == ()


@given(strategies.definitions())
def test_everything_is_claimed_served_or_foreign_and_no_two_of_them(found: Definitions) -> None:
    seen = recognize(a_snapshot(found))
    foreign = {obj.identity for obj in seen.foreign}
    served = {one.queue.identity for one in seen.served}
    uses = [one.use for one in seen.found]
    claims = {identity for use in (*uses, *seen.overlapping) for identity in use.claims}
    assert not foreign & claims | foreign & served | served & claims
    brokers = {x.identity for x in found.exchanges if x.name.startswith("amq.")}
    everything = {obj.identity for obj in found.without_taps()}
    assert everything - brokers == (foreign | served | claims) - brokers


@given(strategies.definitions())
def test_kinds_share_nothing_and_uses_of_one_kind_keep_a_queue_each(found: Definitions) -> None:
    uses = [one.use for one in recognize(a_snapshot(found)).found]
    for use, other in permutations(uses, 2):
        assert use.kind == other.kind or use.claims.isdisjoint(other.claims)
    for use in uses:
        others = {identity for other in uses if other is not use for identity in other.claims}
        shared = use.claims & others
        assert not shared or any(kind == "queue" for kind, *_ in use.claims - others)


LOOP = retry_loop.parse({"name": "a", "input_exchange": "in", "delay": "5s"})
ON_THE_SAME_INPUT = replace(LOOP, input_queue="b_input_q")
WITH_THE_SAME_INPUT = retry_loop.parse({"name": "b", "input_exchange": "in", "delay": "9s"})
SEPARATE = {"input_exchange": "in", "return_path": "separate"}
WITH_THE_SAME_DEAD_SIDE = replace(
    retry_loop.parse({"name": "b", "delay": "5s", **SEPARATE}), dead_exchange=LOOP.dead_exchange
)


@pytest.mark.parametrize("other", [ON_THE_SAME_INPUT, WITH_THE_SAME_INPUT, WITH_THE_SAME_DEAD_SIDE])
def test_loops_that_share_an_exchange_or_the_dead_side_are_each_found(
    other: retry_loop_params.Params,
) -> None:
    both = retry_loop.definitions(LOOP) | retry_loop.definitions(other)
    seen = recognize(a_snapshot(both))
    assert [one.use.params for one in seen.found] == [LOOP, other]
    assert all(is_complete(one) for one in seen.found)
    assert (seen.foreign, seen.overlapping) == ((), ())


def test_work_queues_that_nobody_claims_are_told_and_are_no_strangers() -> None:
    seconds = (timedelta(seconds=10), timedelta(seconds=60))
    waiting = busy_wait_params.Params("paid", seconds)
    whole = (
        delay_queues.definitions(delay_queues_params.Params("mails", seconds))
        | busy_wait.definitions(waiting)
        | Definitions.of([Queue("mails"), Queue("paid"), Queue("other")])
    )
    seen = recognize(a_snapshot(whole))
    reported = [(one.queue.name, one.use.kind, one.use.name) for one in seen.served]
    assert reported == [("mails", "delay_queues", "mails"), ("paid", "busy_wait", "paid")]
    assert [obj.identity for obj in seen.foreign] == [("queue", "other")]


def crowd(part: float = 1) -> Definitions:
    """10,000 queues, 10,000 exchanges and about 30,000 bindings, of pairs, levels and others, or
    such a part of them."""
    many, several, few = (round(number * part) for number in (3440, 2000, 20))
    objects: list[BrokerObject] = []
    for number in range(several):
        objects += retry_pair.definitions(retry_pair_params.Params(f"team.job-{number}"))
        hold = hold_queues_params.Params(f"in.{number}", ("k",), (timedelta(seconds=5),))
        objects += [*held(hold), Exchange(f"in.{number}", "topic")]
    for number in range(few):
        objects += delay_levels.definitions(delay_levels_params.Params("own", f"shop{number}"))
    for number in range(many):
        objects += [Exchange(f"event.{number}", "fanout"), a_queue(f"work.{number}", dlx="dead")]
        objects += [
            Binding(f"event.{number}", f"work.{n % many}", "") for n in (number, number + 1)
        ]
        objects += [
            Binding("hub", f"work.{number}", key) for key in ("a.#", "b", "*.c", "d", "e.e")
        ]
    return Definitions.of([*objects, Exchange("hub", "topic"), Exchange("dead", "fanout")])


def test_a_vhost_of_ten_thousand_queues_is_recognised_whole() -> None:
    found = crowd()
    assert len(found.queues) >= 9_990
    assert len(found.exchanges) >= 9_990
    assert len(found.bindings) >= 29_000
    seen = recognize(a_snapshot(found))
    assert len(seen.found) == 2000 + 2000 + 20
    assert all(is_complete(one) for one in seen.found)


def steps_of(found: Definitions) -> int:
    """How many functions are called, Python's and C's, to recognize what is there."""
    snapshot, steps = a_snapshot(found), 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal steps
        steps += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        recognize(snapshot)
    finally:
        sys.setprofile(before)
    return steps


def foreign_crowd(number: int) -> Definitions:
    """Work queues and queues that wait, all of which die into the same two exchanges."""
    works = [a_queue(f"w{n}", dlx="failed", key=f"k{n}") for n in range(number)]
    waits = [a_queue(f"r{n}", ttl=9, dlx="again", key=f"b{n}") for n in range(number)]
    into = [Binding("failed", f"r{n}", f"k{n}") for n in range(number)]
    back = [Binding("again", f"w{n}", f"b{n}") for n in range(number)]
    return Definitions.of([Exchange("failed"), Exchange("again"), *works, *waits, *into, *back])


@pytest.mark.parametrize(
    ("made", "number"), [(lambda n: crowd(n / 2000), 100), (foreign_crowd, 300)]
)
def test_twice_as_many_things_take_about_twice_as_many_steps(made: Any, number: int) -> None:
    steps_of(made(10))
    once, twice = steps_of(made(number)), steps_of(made(2 * number))
    assert twice < 2.5 * once
