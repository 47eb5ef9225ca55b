from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.topology.builders import a_queue
from topology.definitions import (
    TAP_PREFIX,
    Arguments,
    Binding,
    BrokerObject,
    Definitions,
    Exchange,
    Queue,
)
from topology.patterns.pattern import ParamsError
from topology.patterns.retry_loop import pattern as retry_loop_pattern
from topology.patterns.retry_loop.form import parse
from topology.patterns.retry_loop.params import Params, Timeout
from topology.patterns.retry_loop.pattern import retry_loop
from topology.patterns.retry_pair import params as retry_pair_params
from topology.patterns.retry_pair.pattern import retry_pair
from topology.routing.walk import Consumer, walk
from topology.structure.copies import Copy, Reading
from topology.structure.taps import tap_definitions

PLAIN = parse({"name": "service_a"})
ARTICLE = parse({"name": "service_a", "preset": "article"})
SEPARATE = parse({"name": "service_a", "return_path": "separate"})
BY_KEY = parse({"name": "s", "split": "key", "timeouts": "mail.# 5s, sms.* 30s"})
BY_HEADER = parse({"name": "s", "split": "header", "header": "kind", "timeouts": "slow 30s"})
EVERY_KIND = [PLAIN, ARTICLE, SEPARATE, BY_KEY, BY_HEADER]

A_SEPARATE = parse({"name": "a", "input_exchange": "in", "return_path": "separate", "delay": "5s"})
B_SEPARATE = parse({"name": "b", "input_exchange": "in", "return_path": "separate", "delay": "5s"})


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def as_observed(definitions: Definitions) -> Definitions:
    """As a snapshot has it: the type of each queue stated."""
    queues = frozenset(queue.with_type() for queue in definitions.queues)
    return Definitions(definitions.exchanges, queues, definitions.bindings)


def test_the_article_is_declared_to_the_parked_message() -> None:
    """As pika declares it: the queue's name is the key of a binding that states none."""
    assert retry_loop.definitions(ARTICLE) == Definitions.of(
        [
            Exchange("service_a_inner_exch", "fanout", durable=False),
            Exchange("dead_letter_exchange", "fanout", durable=False),
            Queue(
                "service_a_input_q",
                arguments=Arguments({"x-dead-letter-exchange": "dead_letter_exchange"}),
            ),
            Queue(
                "dead_letter_queue",
                arguments=Arguments(
                    {"x-message-ttl": 60_000, "x-dead-letter-exchange": "service_a_inner_exch"}
                ),
            ),
            Binding("service_a_inner_exch", "service_a_input_q", "service_a_input_q"),
            Binding("dead_letter_exchange", "dead_letter_queue", "dead_letter_queue"),
        ]
    )


def test_by_default_all_is_durable_and_each_queue_states_its_type() -> None:
    found = retry_loop.definitions(PLAIN)
    assert all(exchange.durable for exchange in found.exchanges)
    assert all(queue.durable for queue in found.queues)
    assert {queue.arguments.text("x-queue-type") for queue in found.queues} == {"classic"}
    assert {exchange.name for exchange in found.exchanges} == {
        "service_a_inner_exch",
        "service_a_dead_letter_exchange",
    }


def test_a_separate_return_has_three_exchanges_and_only_the_failing_queue_behind_its_own() -> None:
    found = retry_loop.definitions(SEPARATE)
    (back,) = found.leaving("service_a_dead_inner_exch")
    assert back.destination == "service_a_input_q"
    dead = found.queue("service_a_dead_letter_queue")
    assert dead is not None
    assert dead.dead_letter_exchange == "service_a_dead_inner_exch"
    assert len(found.exchanges) == 3


def test_timeouts_by_header_ask_for_its_value_and_the_rest_takes_the_alternate_exchange() -> None:
    found = retry_loop.definitions(BY_HEADER)
    dead = found.exchange("s_dead_letter_exchange")
    assert dead is not None
    assert (dead.type, dead.arguments) == (
        "headers",
        Arguments({"alternate-exchange": "s_dead_other_exch"}),
    )
    (bound,) = found.leaving("s_dead_letter_exchange")
    assert bound.destination == "s_input_q_dead_30s"
    assert bound.arguments == Arguments({"x-match": "all", "kind": "slow"})
    assert [b.destination for b in found.leaving("s_dead_other_exch")] == ["s_dead_letter_queue"]


FORM = {"name": "s", "split": "key"}


@pytest.mark.parametrize(
    ("text", "timeouts"),
    [
        ("b 30s,  a.# 5s ", [("a.#", 5, "s_input_q_dead_5s"), ("b", 30, "s_input_q_dead_30s")]),
        ('[["a b, c", "5s"]]', [("a b, c", 5, "s_input_q_dead_5s")]),
        ('[["a", "5s", "q"], ["b", "5s", "q"]]', [("a", 5, "q"), ("b", 5, "q")]),
        ('[["", "5s"]]', [("", 5, "s_input_q_dead_5s")]),
    ],
)
def test_timeouts_are_typed_as_words_or_as_json(
    text: str, timeouts: list[tuple[str, int, str]]
) -> None:
    params = parse(FORM | {"timeouts": text})
    assert list(params.timeouts) == [Timeout(m, seconds(s), q) for m, s, q in timeouts]
    assert parse(retry_loop.store(params)) == params


def test_a_form_as_it_is_first_shown_needs_a_name_only() -> None:
    shown = {field.name: field.initial for field in retry_loop.FIELDS}
    assert parse(shown | {"name": "service_a"}) == PLAIN
    assert parse({"name": "service_a"}).delay == seconds(60)


def test_a_form_asks_for_a_name_and_a_delay_and_folds_the_rest() -> None:
    assert [field.name for field in retry_loop.FIELDS if not field.rare] == ["name", "delay"]
    assert parse({"name": "service_a", "delay": "90s"}) == replace(PLAIN, delay=seconds(90))


CHOICES = [(field.name, value) for field in retry_loop.FIELDS for value, _ in field.choices]
NEEDS = {"key": {"timeouts": "k 5s"}, "header": {"timeouts": "k 5s", "header": "kind"}}


@pytest.mark.parametrize(("name", "value"), CHOICES)
def test_every_choice_of_the_form_is_understood(name: str, value: str) -> None:
    shown = {field.name: field.initial for field in retry_loop.FIELDS} | {"name": "a"}
    stored = retry_loop.store(parse(shown | NEEDS.get(value, {}) | {name: value}))
    assert value in ("", "lost", stored[name])


def test_what_is_stored_of_plain_timeouts_can_be_read() -> None:
    assert retry_loop.store(BY_KEY)["timeouts"] == "mail.# 5s, sms.* 30s"


@pytest.mark.parametrize("params", EVERY_KIND)
def test_every_variant_is_recognised_as_a_broker_shows_it_taps_and_all(params: Params) -> None:
    declared = retry_loop.definitions(params)
    tap = tap_definitions(f"{TAP_PREFIX}x", retry_loop.taps(params), "classic")
    (use,) = retry_loop.recognize(as_observed(declared) | tap)
    assert (use.name, use.params, use.missing) == (params.input_queue, params, ())
    assert use.claims == {obj.identity for obj in declared}


def test_two_loops_with_separate_returns_share_their_input_exchange_and_are_both_recognised() -> (
    None
):
    both = retry_loop.definitions(A_SEPARATE) | retry_loop.definitions(B_SEPARATE)
    assert [use.params for use in retry_loop.recognize(both)] == [A_SEPARATE, B_SEPARATE]


def test_a_loop_without_a_separate_return_stays_one_beside_another_queue() -> None:
    other = Definitions.of([a_queue("other"), Binding("service_a_inner_exch", "other", "")])
    (use,) = retry_loop.recognize(retry_loop.definitions(PLAIN) | other)
    assert (use.params, use.missing) == (PLAIN, ())


def test_a_loop_whose_dead_exchange_is_a_topic_without_a_way_for_the_rest_loses_it() -> None:
    lost = parse({"name": "s", "split": "key", "timeouts": "mail.# 5s", "unmatched": "lost"})
    (use,) = retry_loop.recognize(retry_loop.definitions(lost))
    assert use.params == lost
    assert retry_loop.delays(lost) == [seconds(5)]
    assert list(retry_loop.remarks(lost, Definitions())) == [
        "RabbitMQ drops a rejected message whose routing key has no timeout."
    ]
    assert retry_loop.read(lost, Copy("s_dead_letter_exchange", "sms", {})) is None


@pytest.mark.parametrize(
    ("identity", "missing"),
    [
        (
            ("exchange", "service_a_dead_letter_exchange"),
            [
                "The exchange “service_a_dead_letter_exchange” is missing.",
                "The binding from “service_a_dead_letter_exchange” to the queue "
                "“service_a_dead_letter_queue” is missing.",
            ],
        ),
        (
            ("exchange", "service_a_inner_exch"),
            [
                "The exchange “service_a_inner_exch” is missing.",
                "The binding from “service_a_inner_exch” to the queue “service_a_input_q” is "
                "missing.",
            ],
        ),
    ],
)
def test_a_loop_without_one_of_its_exchanges_is_found_by_the_rest(
    identity: tuple[str, str], missing: list[str]
) -> None:
    """A broker drops an exchange's bindings with it, as a restart does with transient ones."""
    whole = retry_loop.definitions(PLAIN)
    bindings = [binding.identity for binding in whole.leaving(identity[1])]
    left = whole.without([identity, *bindings])
    (use,) = retry_loop.recognize(left)
    assert (use.params, list(use.missing)) == (PLAIN, missing)
    assert use.claims == {obj.identity for obj in left}


@pytest.mark.parametrize("binding", list(retry_loop.definitions(PLAIN).bindings))
def test_a_loop_without_one_of_its_bindings_is_found_and_says_which(binding: Binding) -> None:
    (use,) = retry_loop.recognize(retry_loop.definitions(PLAIN).without([binding.identity]))
    assert use.params == PLAIN
    assert list(use.missing) == [
        f"The binding from “{binding.source}” to the queue “{binding.destination}” is missing."
    ]


def test_a_loop_bound_by_names_without_its_return_is_said_to_lack_that_alone() -> None:
    whole = retry_loop.definitions(ARTICLE)
    (back,) = whole.leaving(ARTICLE.input_exchange)
    (use,) = retry_loop.recognize(whole.without([back.identity]))
    assert use.params == ARTICLE
    assert len(use.missing) == 1


def test_a_return_that_leads_nowhere_is_found_beside_the_input_exchange() -> None:
    whole = retry_loop.definitions(A_SEPARATE)
    (back,) = whole.leaving("a_dead_inner_exch")
    (use,) = retry_loop.recognize(whole.without([back.identity]))
    assert use.params == A_SEPARATE
    assert len(use.missing) == 1


def test_a_queue_with_other_arguments_is_told() -> None:
    odd = retry_loop.definitions(PLAIN)
    stated = {"x-queue-type": "quorum", "x-dead-letter-exchange": PLAIN.dead_exchange}
    work = Queue("service_a_input_q", arguments=Arguments(stated))
    (use,) = retry_loop.recognize(odd.without([work.identity]) | Definitions.of([work]))
    assert list(use.missing) == ["The queue “service_a_input_q” differs from the pattern."]


def test_a_loop_of_which_one_exchange_alone_is_transient_is_told() -> None:
    found = retry_loop.definitions(PLAIN)
    dead = Exchange(PLAIN.dead_exchange, "fanout", durable=False)
    (use,) = retry_loop.recognize(found.without([dead.identity]) | Definitions.of([dead]))
    assert replace(use.params, preset="durable") == replace(PLAIN, binding_keys="empty")
    assert list(use.missing) == ["The exchange “service_a_inner_exch” differs from the pattern."]


def test_a_loop_bound_by_other_clients_than_pika_is_recognised_whole() -> None:
    for keys in ("empty", "queue"):
        for params in (PLAIN, ARTICLE):
            bound = replace(params, binding_keys=keys)
            (use,) = retry_loop.recognize(retry_loop.definitions(bound))
            assert (use.params, use.missing) == (bound, ())


@pytest.mark.parametrize("ttl", [0, -5, 10**30, True, "500", 2.5])
def test_a_hostile_ttl_is_no_loop_and_no_error(ttl: Any) -> None:
    objects: list[BrokerObject] = [
        Exchange("i", "fanout"),
        Exchange("d", "fanout"),
        a_queue("work", dlx="d"),
        a_queue("dead", dlx="i", ttl=ttl),
        Binding("i", "work", ""),
        Binding("d", "dead", ""),
    ]
    assert list(retry_loop.recognize(Definitions.of(objects))) == []


def test_a_retry_pair_is_no_retry_loop_and_the_other_way_round() -> None:
    pair = retry_pair.definitions(retry_pair_params.Params("orders"))
    assert list(retry_loop.recognize(pair)) == []
    for params in EVERY_KIND:
        assert list(retry_pair.recognize(retry_loop.definitions(params))) == []


def died(*deaths: tuple[str, str, int]) -> dict[str, Any]:
    """Headers after these deaths (queue, reason, count), the newest first."""
    queue, reason, _ = deaths[0]
    return {
        "x-death": [{"queue": q, "reason": r, "count": n} for q, r, n in deaths],
        "x-last-death-queue": queue,
        "x-last-death-reason": reason,
    }


WORK, FIVE, THIRTY, REST = "s_input_q", "s_input_q_dead_5s", "s_input_q_dead_30s", "rest"
S = parse(
    {
        "name": "s",
        "split": "key",
        "timeouts": "mail.# 5s, sms.* 30s",
        "dead_queue": "rest",
        "return_path": "separate",
        "input_exchange": "in",
        "dead_exchange": "dead",
        "return_exchange": "back",
    }
)
REJECTED_TWICE = died((WORK, "rejected", 2), (FIVE, "expired", 1))


@pytest.mark.parametrize(
    ("copy", "reading"),
    [
        (Copy("dead", "mail.x", {}), Reading("entry", WORK, FIVE, seconds(5), 1)),
        (Copy("dead", "sms.x", {}), Reading("entry", WORK, THIRTY, seconds(30), 1)),
        (Copy("dead", "push", {}), Reading("entry", WORK, REST, seconds(60), 1)),
        (
            Copy("dead", "mail", REJECTED_TWICE),
            Reading("entry", WORK, FIVE, seconds(5), 2, WORK, "rejected"),
        ),
        (
            Copy("back", "mail", died((FIVE, "expired", 2), (WORK, "rejected", 2))),
            Reading("exit", WORK, WORK, seconds(5), 2, FIVE, "expired"),
        ),
        (
            Copy("back", "sms.x", died((THIRTY, "expired", 1), (FIVE, "expired", 1))),
            Reading("exit", WORK, WORK, seconds(30), 2, THIRTY, "expired"),
        ),
        (Copy("in", "mail", {}), Reading("publish", WORK, WORK, timedelta(0), 0)),
        (
            Copy("in", "mail", died(("foreign", "expired", 1))),
            Reading("publish", WORK, WORK, timedelta(0), 0),
        ),
        (Copy("other", "mail", {}), None),
    ],
)
def test_a_copy_is_read_by_where_it_passed_its_key_and_how_it_died(
    copy: Copy, reading: Reading | None
) -> None:
    assert retry_loop.read(S, copy) == reading


def test_a_copy_of_a_loop_by_header_is_read_by_its_header() -> None:
    slow = retry_loop.read(BY_HEADER, Copy("s_dead_letter_exchange", "", {"kind": "slow"}))
    other = retry_loop.read(BY_HEADER, Copy("s_dead_letter_exchange", "", {"kind": 5}))
    assert slow is not None
    assert other is not None
    assert (slow.queue, slow.delay) == ("s_input_q_dead_30s", seconds(30))
    assert (other.queue, other.delay) == ("s_dead_letter_queue", seconds(60))


@pytest.mark.parametrize(
    ("params", "asked", "given", "key", "headers"),
    [
        (BY_KEY, 5, 5, "mail", {}),
        (BY_KEY, 6, 30, "sms.x", {}),
        (BY_KEY, 31, 60, "", {}),
        (BY_HEADER, 30, 30, "", {"kind": "slow"}),
        (BY_HEADER, 31, 60, "", {}),
    ],
)
def test_a_delay_is_rounded_up_to_a_timeout_and_goes_by_its_key_or_header(
    params: Params, asked: int, given: int, key: str, headers: dict[str, str]
) -> None:
    route = retry_loop.route(params, seconds(asked), "s_input_q")
    assert retry_loop.achievable(params, seconds(asked)) == seconds(given)
    assert (route.exchange, route.routing_key) == ("s_dead_letter_exchange", key)
    assert route.headers == headers


def test_a_delay_over_the_longest_is_refused() -> None:
    with pytest.raises(ParamsError, match=r"The longest delay of this loop is 1m\."):
        retry_loop.route(PLAIN, seconds(61), "service_a_input_q")


def test_a_tap_takes_nothing_from_the_alternate_exchange() -> None:
    """A binding that takes all there would leave the unmatched in the tap alone."""
    for params in (BY_KEY, BY_HEADER):
        tap = tap_definitions(f"{TAP_PREFIX}x", retry_loop.taps(params), "classic")
        found = retry_loop.definitions(params) | tap
        walked = walk(found, params.dead_exchange, "unmatched")
        arrived = {o.queue: o.after for o in walked.delivered if not o.queue.startswith(TAP_PREFIX)}
        assert arrived == {"s_input_q": seconds(60)}


@pytest.mark.parametrize("version", [(3, 10), (4, 0), (4, 3)])
@pytest.mark.parametrize("params", EVERY_KIND)
def test_a_message_that_is_rejected_twice_is_foreseen_to_come_three_times(
    params: Params, version: tuple[int, ...]
) -> None:
    consumers = {params.input_queue: Consumer("rejects", retry_loop_pattern.RETRY_COUNT)}
    found = retry_loop.definitions(params)
    walked = walk(found, params.input_exchange, "", version=version, consumers=consumers)
    (outcome,) = walked.outcomes
    assert outcome.after == 2 * params.delay
    assert [hop.queue for hop in outcome.hops].count(params.input_queue) == 3


@pytest.mark.parametrize("version", [(3, 10), (4, 0), (4, 3)])
def test_a_message_that_expires_in_the_input_queue_is_foreseen_to_be_lost_on_its_way_back(
    version: tuple[int, ...],
) -> None:
    """Every version cuts a ring in which nobody rejected anything."""
    found = retry_loop.definitions(PLAIN)
    walked = walk(found, PLAIN.input_exchange, "", version=version, expiration="5")
    (outcome,) = walked.outcomes
    assert outcome.ending == "dropped"
    assert any("own expiration" in hazard for hazard in retry_loop.EXPLANATION.hazards)


def test_what_one_queue_rejects_comes_back_to_both_without_a_separate_return() -> None:
    a = parse({"name": "a", "input_exchange": "in", "delay": "5s"})
    found = retry_loop.definitions(a) | Definitions.of([a_queue("b"), Binding("in", "b", "")])
    said = list(retry_loop.remarks(a, found))
    assert said == [
        "Messages that “a_input_q” rejects also return to “b”, which is bound to “in”. Use "
        "a separate return to avoid this."
    ]


def test_failures_of_others_and_dead_queues_of_others_are_told() -> None:
    shared = replace(B_SEPARATE, dead_exchange=A_SEPARATE.dead_exchange)
    found = retry_loop.definitions(A_SEPARATE) | retry_loop.definitions(shared)
    assert list(retry_loop.remarks(A_SEPARATE, found)) == [
        "Messages that “b_input_q” rejects also go to “a_dead_letter_exchange” and return "
        "to “a_input_q”.",
        "“b_dead_letter_queue” is bound to “a_dead_letter_exchange” and also receives "
        "messages that “a_input_q” rejects.",
    ]
    walked = walk(found, "a_dead_letter_exchange", "")
    assert {outcome.queue for outcome in walked.delivered} == {"a_input_q", "b_input_q"}


def test_two_separate_returns_on_one_input_exchange_have_nothing_to_remark() -> None:
    found = retry_loop.definitions(A_SEPARATE) | retry_loop.definitions(B_SEPARATE)
    assert list(retry_loop.remarks(A_SEPARATE, found)) == []
    assert retry_loop.remarks(ARTICLE, retry_loop.definitions(ARTICLE))[0].startswith(
        "The exchanges are transient"
    )


def test_messages_for_other_queues_are_refused() -> None:
    assert retry_loop.target_problem(PLAIN, "service_a_input_q", Definitions()) == ""
    assert "always go to" in retry_loop.target_problem(PLAIN, "b", Definitions())


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (None, True),
        (died(("service_a_dead_letter_queue", "expired", 1), (WORK, "rejected", 9)), True),
        (died(("d", "expired", 1), ("service_a_input_q", "rejected", 1)), True),
        (died(("d", "expired", 2), ("service_a_input_q", "rejected", 2)), False),
        (died(("service_a_input_q", "expired", 7)), True),
    ],
)
def test_the_example_retries_until_the_input_queue_rejected_it_so_often(
    headers: dict[str, Any] | None, expected: bool
) -> None:
    """The newest entry would count a delay before the first attempt as a failure."""
    head, _, _ = retry_loop.consumer_example(PLAIN).partition("for method")
    names: dict[str, Any] = {}
    exec(head, names)
    reported = type("Properties", (), {"headers": headers})
    assert names["can_retry"](reported) is expected
