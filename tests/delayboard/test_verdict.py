from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delayboard.dead_letters.replay import verdicts
from delayboard.dead_letters.replay.options import DEFAULTS
from delayboard.dead_letters.replay.targets import Target, Targets
from delayboard.dead_letters.replay.verdicts import RouteChecker, Verdict, make_verdict
from tests.delayboard.builders import a_death, a_message, shop
from tests.topology import strategies
from tests.topology.builders import a_queue
from topology.clients.describe import Description, describe
from topology.deaths import Death, History
from topology.definitions import (
    DELAYED_TYPE,
    Arguments,
    Binding,
    Definitions,
    Exchange,
)
from topology.message import REPLAYS_HEADER, Message, Properties
from topology.patterns.busy_wait import params as busy_wait_params
from topology.patterns.busy_wait.pattern import busy_wait
from topology.routing.forwarder import without_due_header
from topology.routing.matching.index import Index
from topology.routing.walk import walk

WAITS = {"hold"}
REJECTED = a_death()
IN_HOLD = a_death("hold", "expired", exchange="", routing_keys=("hold",))


def check_target(
    target: Target,
    source: str,
    found: Definitions,
    consumed: Collection[str],
    message: Message | None = None,
    **more: Any,
) -> Verdict:
    properties = message.properties if message else Properties()
    return RouteChecker(found, consumed, **more).check(target, source, properties)


def default_target(
    *deaths: Death, there: Definitions | None = None, read: Description | None = None
) -> Target | None:
    targets = Targets(DEFAULTS, Index(there or shop()), waits=WAITS)
    return targets.choose_by(History(deaths), read).target


def target(*deaths: Death, there: Definitions | None = None) -> tuple[str, str] | None:
    found = default_target(*deaths, there=there)
    return (found.exchange, found.routing_key) if found else None


@pytest.mark.parametrize(
    ("deaths", "expected"),
    [
        ([], None),
        ([REJECTED], ("orders", "orders")),
        ([IN_HOLD, REJECTED], ("orders", "orders")),
        (
            [REJECTED, a_death("audit", "maxlen", exchange="", routing_keys=("audit",))],
            ("orders", "orders"),
        ),
        ([a_death(reason="delivery_limit")], ("orders", "orders")),
        ([a_death(routing_keys=("orders", "cc"))], ("orders", "orders")),
        ([IN_HOLD], None),
        ([IN_HOLD, a_death(reason="expired")], ("orders", "orders")),
        ([a_death(exchange="news", routing_keys=("any",))], ("", "orders")),
        ([a_death(exchange="gone")], ("", "orders")),
        ([a_death(routing_keys=("unbound",))], ("", "orders")),
        ([a_death(routing_keys=())], ("", "orders")),
        ([a_death("gone", exchange="gone")], None),
        ([a_death("orders", exchange="", routing_keys=("orders",))], ("", "orders")),
        ([a_death("", "", exchange="", routing_keys=())], None),
    ],
)
def test_a_parked_message_goes_back_to_where_it_was_before_its_earliest_failure(
    deaths: list[Death], expected: tuple[str, str] | None
) -> None:
    assert target(*deaths) == expected


def test_a_key_that_reaches_another_queue_too_sends_it_straight_to_the_one_it_died_in() -> None:
    shared = shop(Binding("orders", "audit", "orders"))
    assert target(REJECTED, there=shared) == ("", "orders")


@pytest.mark.parametrize(
    ("headers", "body", "expected"),
    [
        ({"MT-Fault-InputAddress": "rabbitmq://host/shop/orders"}, {}, ("", "orders")),
        ({"MT-Fault-InputAddress": "rabbitmq://host/shop/gone"}, {}, None),
        (
            {"x-original-exchange": "orders", "x-original-routingKey": "orders"},
            {},
            ("orders", "orders"),
        ),
        # Which of two queues it failed in, nobody knows.
        ({"x-original-exchange": "news", "x-original-routingKey": "x"}, {}, None),
        ({"rascal": {"originalQueue": "orders", "originalExchange": "news"}}, {}, ("", "orders")),
        (
            {},
            {
                "RoutingKey": "x",
                "Exchange": "news",
                "Queue": "orders",
                "Exception": "E",
                "Message": "",
            },
            ("", "orders"),
        ),
        ({"x-exception-message": "boom"}, {}, None),
    ],
)
def test_the_target_of_what_a_consumer_republished_is_what_its_library_wrote(
    headers: dict[str, Any], body: dict[str, Any], expected: tuple[str, str] | None
) -> None:
    read = describe(headers, json.dumps(body).encode(), "dead")
    for deaths in ((), (IN_HOLD,), (a_death("unknown delay", "expired"),)):
        found = default_target(*deaths, read=read)
        assert (found and (found.exchange, found.routing_key)) == expected
    # What RabbitMQ says of a failure counts before it.
    found = default_target(REJECTED, read=read)
    assert found is not None
    assert found.routing_key == "orders"


def test_the_reason_of_the_choice_is_told() -> None:
    straight = default_target(a_death(exchange="news"))
    back = default_target(REJECTED)
    assert straight is not None
    assert back is not None
    assert straight.why == "straight to orders, where it was first dead-lettered"
    assert back.why == "where it was published before it was first dead-lettered in orders"


@pytest.mark.parametrize(
    ("exchange", "key", "is_good", "sentence"),
    [
        ("orders", "orders", True, "The message arrives in orders at once."),
        ("", "hold", True, "The message arrives in orders after 5s."),
        (
            "news",
            "",
            True,
            "The message arrives in audit at once. The message arrives in orders at once.",
        ),
        (
            "",
            "dead",
            False,
            "The message would return to dead. The message arrives in dead at once.",
        ),
        ("gone", "k", False, "No route: the exchange “gone” does not exist."),
        (
            "orders",
            "other",
            False,
            "No route: the exchange “orders” has no queue for the key “other”.",
        ),
        (
            "",
            "lost",
            False,
            (
                "The message is lost after 1s: the message expires in “lost” after 1s, and this "
                "queue has no dead-letter exchange."
            ),
        ),
        (
            "",
            "round",
            False,
            "The message would return to dead. The message arrives in dead after 1s.",
        ),
    ],
)
def test_the_verdict_says_where_every_copy_ends(
    exchange: str, key: str, is_good: bool, sentence: str
) -> None:
    there = shop(a_queue("lost", ttl=1000), a_queue("round", ttl=1000, dlx="", key="dead"))
    verdict = check_target(Target(exchange, key, "typed"), "dead", there, [])
    assert (verdict.is_good, verdict.sentence) == (is_good, sentence)


def test_a_queue_that_is_consumed_ends_the_way() -> None:
    verdict = check_target(Target("", "hold", ""), "dead", shop(), ["hold"])
    assert verdict == Verdict(True, "The message arrives in hold at once.")


def test_a_copy_that_is_lost_beside_one_that_arrives_is_no_good_verdict() -> None:
    there = shop(a_queue("lost", ttl=1), Binding("news", "lost", ""))
    verdict = check_target(Target("news", "", ""), "dead", there, [])
    assert not verdict.is_good
    assert "The message arrives in orders at once." in verdict.sentence
    assert "The message is lost after 1ms" in verdict.sentence


def test_the_message_s_own_headers_and_expiration_count() -> None:
    there = shop(
        Exchange("sorter", "headers"),
        Binding("sorter", "orders", "", arguments=Arguments({"kind": "pdf"})),
    )
    parked_message = a_message(headers={"kind": "pdf"}, expiration="700")
    sorted_in = check_target(Target("sorter", "", ""), "dead", there, ["orders"], parked_message)
    assert sorted_in == Verdict(True, "The message arrives in orders at once.")
    other = check_target(Target("sorter", "", ""), "dead", there, ["orders"], a_message(headers={}))
    assert other.sentence.startswith("No route")
    expires = check_target(Target("", "audit", ""), "dead", there, [], parked_message)
    assert expires.sentence.startswith(
        "The message is lost after 700ms: the message expires in “audit”"
    )


@pytest.mark.parametrize("expiration", ["soon", "-5", "1.5"])
def test_an_expiration_that_no_broker_takes_is_told_before_it_is_refused(expiration: str) -> None:
    parked_message = a_message(expiration=expiration)
    verdict = check_target(Target("", "audit", ""), "dead", shop(), [], parked_message)
    assert not verdict.is_good
    assert f"the expiration “{expiration}” is not a whole number" in verdict.sentence


def test_the_deaths_that_a_replay_leaves_out_do_not_count() -> None:
    """Before 4.0 a broker believes a published x-death, and would drop it as a cycle."""
    there = shop(a_queue("wait", ttl=5, dlx="", key="audit"))
    died = {"x-death": [{"queue": "audit", "reason": "expired", "count": 1}]}
    verdict = check_target(
        Target("", "wait", ""), "dead", there, [], a_message(headers=died), version=(3, 10, 8)
    )
    assert verdict == Verdict(True, "The message arrives in audit after 5ms.", after_ms=5)


HOOKS = busy_wait_params.Params("hooks", (timedelta(minutes=1), timedelta(minutes=5)))
(FORWARDER,) = busy_wait.forwarders(HOOKS)
WAITING = busy_wait.definitions(HOOKS) | shop(a_queue("hooks"))


def test_a_replay_into_a_busy_wait_of_ours_is_followed_to_where_its_forwarder_brings_it() -> None:
    parked_message = a_message(headers={FORWARDER.due_header: 1_790_000_180_000})
    verdict = check_target(
        Target("", FORWARDER.queue, ""),
        "dead",
        WAITING,
        [],
        parked_message,
        forwarders=[FORWARDER],
        now_ms=1_790_000_000_000,
    )
    assert verdict == Verdict(True, "The message arrives in hooks after 3m.", after_ms=180_000)


def test_a_replay_into_a_busy_wait_of_others_says_who_brings_it_on() -> None:
    verdict = check_target(
        Target("", FORWARDER.queue, ""),
        "dead",
        WAITING,
        [],
        forwarders=[without_due_header(FORWARDER)],
    )
    assert verdict.is_good
    assert verdict.sentence == (
        f"The message arrives in {FORWARDER.queue} at once: an external consumer forwards due "
        "messages to “hooks”; RabbitMQ does not show its due header."
    )


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (
            "orders",
            "The message is stored by the exchange “later” for 40ms, then arrives in orders after "
            "40ms. RabbitMQ returns",
        ),
        ("odd", "No route: stored by the exchange “later” for 40ms, then the exchange “later” has"),
    ],
)
def test_a_delayed_exchange_keeps_a_replay_and_gives_it_back_all_the_same(
    key: str, said: str
) -> None:
    """As the plugin's source says; none of the tests' brokers can have it."""
    later = Exchange("later", DELAYED_TYPE, arguments=Arguments({"x-delayed-type": "direct"}))
    there = shop(later, Binding("later", "orders", "orders"))
    walked = walk(there, "later", key, headers={"x-delay": 40})
    verdict = make_verdict(walked, "dead")
    assert not verdict.is_good
    assert verdict.sentence.startswith(said)
    turned = a_message(headers={"x-delay": -40})
    again = check_target(Target("later", "orders", ""), "dead", there, [], turned)
    assert again == Verdict(True, "The message arrives in orders at once.")


deaths = st.builds(
    Death,
    st.sampled_from((*strategies.QUEUES, "gone", "")),
    st.sampled_from(["rejected", "expired", "maxlen", "odd"]),
    st.just(1),
    st.none(),
    st.sampled_from((*strategies.EXCHANGES, "gone", "")),
    st.lists(strategies.keys, max_size=2).map(tuple),
)


@given(strategies.definitions(), st.lists(deaths, max_size=3))
def test_a_default_target_is_a_route_into_the_queue_of_the_death_and_no_other(
    there: Definitions, died: list[Death]
) -> None:
    found = Targets(DEFAULTS, Index(there), waits={"q5"}).choose_by(History(tuple(died))).target
    if found is None:
        return
    verdict = check_target(found, "elsewhere", there, [])
    assert not verdict.sentence.startswith("No route")
    assert any(death.queue in {queue.name for queue in there.queues} for death in died)


def test_an_exchange_of_an_unknown_type_is_never_trusted() -> None:
    there = shop(Exchange("odd", "x-random"), Binding("odd", "orders", ""))
    assert target(replace(REJECTED, exchange="odd"), there=there) == ("", "orders")


NOW_MS = 1_790_000_000_000
judged_values = st.sampled_from(["pdf", "doc", 1, 1.0, True])
judged_headers = st.fixed_dictionaries(
    {},
    optional={
        "kind": judged_values,
        "other": judged_values,
        "CC": st.lists(strategies.keys, max_size=2),
        "x-death": st.just([{"queue": "q1", "reason": "expired", "count": 1}]),
        "x-opt-seen": judged_values,
    },
)
by_headers = st.lists(
    st.builds(
        Binding,
        st.sampled_from(strategies.EXCHANGES),
        st.sampled_from(strategies.QUEUES),
        st.just(""),
        st.just(True),
        st.builds(
            Arguments,
            st.dictionaries(st.sampled_from(["kind", "x-opt-seen", "x-match"]), judged_values),
        ),
    ),
    max_size=3,
)
judged_parked_messages = st.tuples(
    st.sampled_from((*strategies.EXCHANGES, "", "gone")),
    strategies.keys | st.sampled_from(strategies.QUEUES),
    st.sampled_from(strategies.QUEUES),
    judged_headers,
    st.sampled_from([None, "7", "soon"]),
)


@settings(deadline=None)
@given(
    strategies.definitions(),
    by_headers,
    st.lists(judged_parked_messages, min_size=1, max_size=6),
    st.sampled_from([(3, 10, 8), (4, 0, 5), (4, 3, 6)]),
    st.sets(st.sampled_from(strategies.QUEUES)),
)
def test_judging_many_says_of_each_what_judging_one_says(
    found: Definitions,
    more: list[Binding],
    parked_messages: list[tuple[str, str, str, dict[str, Any], str | None]],
    version: tuple[int, ...],
    consumed: set[str],
) -> None:
    there = found | Definitions.of(more)
    many = RouteChecker(there, consumed, version=version, now_ms=NOW_MS)
    for exchange, key, source, headers, expiration in [*parked_messages, *parked_messages]:
        parked_message = a_message(headers=headers, expiration=expiration)
        target = Target(exchange, key, "typed")
        plain = check_target(
            target, source, there, consumed, parked_message, version=version, now_ms=NOW_MS
        )
        assert many.check(target, source, parked_message.properties) == plain


def test_many_that_go_one_way_are_walked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    walks: list[str] = []

    def counted(*args: Any, **named: Any) -> Any:
        walks.append(args[1])
        return walk(*args, **named)

    monkeypatch.setattr(verdicts, "walk", counted)
    many = RouteChecker(shop())
    for number in range(50):
        parked_message = a_message(headers={"order": number})
        assert many.check(Target("orders", "orders", ""), "dead", parked_message.properties).is_good
    assert walks == ["orders"]


@pytest.mark.parametrize(
    ("replays", "sentence"),
    [
        (2, "The message arrives in orders at once."),
        (
            3,
            "It was replayed 3 times already and dead-lettered again each time. "
            "The message arrives in orders at once.",
        ),
        (True, "The message arrives in orders at once."),
        ("9", "The message arrives in orders at once."),
    ],
)
def test_what_was_replayed_too_often_is_guarded(replays: object, sentence: str) -> None:
    many = RouteChecker(shop(), most_replays=3)
    parked_message = a_message(headers={REPLAYS_HEADER: replays})
    verdict = many.check(Target("orders", "orders", ""), "dead", parked_message.properties)
    assert verdict.sentence == sentence
    assert verdict.ending == ("delivered" if verdict.is_good else "guarded")


def test_a_guard_of_one_says_once() -> None:
    parked_message = a_message(headers={REPLAYS_HEADER: 1})
    verdict = RouteChecker(shop(), most_replays=1).check(
        Target("", "audit", ""), "", parked_message.properties
    )
    assert verdict.sentence.startswith(
        "It was replayed once already and dead-lettered again. The m"
    )


@pytest.mark.parametrize(
    ("exchange", "key", "ending", "after_ms"),
    [
        ("orders", "orders", "delivered", 0),
        ("", "hold", "delivered", 5000),
        ("", "dead", "loops", 0),
        ("", "round", "loops", 1000),
        ("", "lost", "lost", 1000),
        ("mixed", "", "lost", 5000),
        ("gone", "k", "unroutable", 0),
        ("", "ring", "stuck", 1),
        ("odd", "", "uncertain", 0),
    ],
)
def test_the_ending_is_the_worst_and_the_time_the_longest(
    exchange: str, key: str, ending: str, after_ms: int
) -> None:
    there = shop(
        a_queue("lost", ttl=1000),
        a_queue("round", ttl=1000, dlx="", key="dead"),
        Exchange("mixed", "fanout"),
        Binding("mixed", "lost", ""),
        Binding("mixed", "hold", ""),
        Binding("mixed", "audit", ""),
        Exchange("odd", "x-random"),
        Binding("odd", "audit", ""),
        a_queue(
            "ring",
            type="quorum",
            ttl=1,
            dlx="nowhere",
            x_dead_letter_strategy="at-least-once",
            x_overflow="reject-publish",
        ),
    )
    verdict = check_target(Target(exchange, key, ""), "dead", there, [])
    assert (verdict.ending, verdict.is_good) == (ending, ending == "delivered"), verdict.sentence
    if ending != "stuck":
        assert verdict.after_ms == after_ms


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"a": [-float("inf")]}])
def test_a_number_that_is_none_is_refused_unless_it_is_left_out(value: Any) -> None:
    many = RouteChecker(shop())
    goal = Target("orders", "orders", "")
    parked_message = a_message(headers={"ratio": value})
    assert many.check(goal, "dead", parked_message.properties).ending == "refused"
    assert "connection" in many.check(goal, "dead", parked_message.properties).sentence
    dropped = a_message(headers={"x-opt-ratio": value})
    assert many.check(goal, "dead", dropped.properties).is_good


def test_what_a_delayed_exchange_keeps_is_refused() -> None:
    later = Exchange("later", DELAYED_TYPE, arguments=Arguments({"x-delayed-type": "direct"}))
    many = RouteChecker(shop(later, Binding("later", "orders", "orders")))
    parked_message = a_message(headers={"x-delay": 40})
    assert (
        many.check(Target("later", "orders", ""), "", parked_message.properties).ending == "refused"
    )


def test_each_parked_message_is_due_by_its_own_header() -> None:
    many = RouteChecker(WAITING, forwarders=[FORWARDER], now_ms=NOW_MS)
    reported = [
        many.check(
            Target("", FORWARDER.queue, ""),
            "dead",
            a_message(headers={FORWARDER.due_header: NOW_MS + minutes * 60_000}).properties,
        ).after_ms
        for minutes in (3, 1, 3, -5)
    ]
    assert reported == [180_000, 60_000, 180_000, 0]
