"""What stands under names that no pattern gives: shown by its structure, and never adopted."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.topology.builders import a_queue, a_snapshot
from topology.definitions import Arguments, Binding, BrokerObject, Definitions, Exchange, Queue
from topology.patterns.delay_levels import params as delay_levels_params
from topology.patterns.delay_levels.pattern import delay_levels
from topology.patterns.hold_queues import params as hold_queues_params
from topology.patterns.hold_queues.pattern import hold_queues
from topology.patterns.pattern import Use
from topology.patterns.quorum_retry.pattern import quorum_retry
from topology.patterns.retry_loop.pattern import retry_loop
from topology.patterns.retry_pair import params as retry_pair_params
from topology.patterns.retry_pair.pattern import retry_pair
from topology.provisioning.recognition import departures, recognize
from topology.snapshot import QueueNumbers

LEVELS = delay_levels.definitions(delay_levels_params.Params("own", "NAME", 6))
LOOP = retry_loop.definitions(retry_loop.parse({"name": "a", "delay": "5s"}))


def of(*objects: BrokerObject) -> Definitions:
    return Definitions.of(objects)


def only(found: Definitions) -> Use:
    (one,) = recognize(a_snapshot(found)).found
    return one.use


def through_exchanges(**changes: Any) -> Definitions:
    """A topic exchange into the waiting queue and a direct one back, with keys of their own."""
    work: dict[str, Any] = {"dlx": "failed", "key": "mail.failed"}
    wait: dict[str, Any] = {"ttl": 5000, "dlx": "again", "key": "mail"}
    return of(
        Exchange("failed", "topic"),
        Exchange("again"),
        a_queue("mail", **work | changes.get("work", {})),
        a_queue("mail.waiting", **wait | changes.get("wait", {})),
        Binding("failed", "mail.waiting", changes.get("in_key", "*.failed")),
        Binding("again", "mail", changes.get("back_key", "mail")),
    )


BY_NAME = of(
    a_queue("mail", dlx="", key="mail.waiting"),
    a_queue("mail.waiting", ttl=5000, dlx="", key="mail"),
)
BACK_BY_ITS_OWN_KEY = of(
    Exchange("failed", "fanout"),
    a_queue("mail", dlx="failed"),
    a_queue("mail.waiting", ttl=5000, dlx=""),
    Binding("failed", "mail.waiting", ""),
)
QUORUM = through_exchanges(work={"type": "quorum"}, wait={"type": "quorum"})


@pytest.mark.parametrize("found", [through_exchanges(), BY_NAME, BACK_BY_ITS_OWN_KEY, QUORUM])
def test_a_pair_is_found_by_the_way_that_its_messages_take(found: Definitions) -> None:
    use = only(found)
    assert (use.kind, use.name, use.params, use.missing) == ("retry_pair", "mail", None, ())
    assert use.has_foreign_names
    assert use.claims == {obj.identity for obj in found}


@pytest.mark.parametrize(
    "found",
    [
        through_exchanges(in_key="mail"),
        through_exchanges(back_key="others"),
        through_exchanges(work={"key": "failed"}),
        through_exchanges(wait={"key": "late"}),
        through_exchanges(work={"ttl": 9}),
        through_exchanges(wait={"ttl": 0}),
        through_exchanges(work={"type": "stream"}),
        of(a_queue("mail", dlx="", key="mail")),
    ],
)
def test_what_would_not_come_back_is_no_pair(found: Definitions) -> None:
    assert [one.use for one in recognize(a_snapshot(found)).found] == []


def test_what_waits_in_a_foreign_pair_is_counted_and_an_exchange_of_many_is_not_claimed() -> None:
    others = of(a_queue("audit"), Binding("failed", "audit", "#"))
    numbers = {"mail": QueueNumbers(messages=7), "mail.waiting": QueueNumbers(messages=3)}
    seen = recognize(a_snapshot(through_exchanges() | others, numbers))
    (found,) = seen.found
    assert (found.waiting, found.queues) == (3, ("mail", "mail.waiting"))
    assert ("exchange", "failed") not in found.use.claims
    strangers = [("exchange", "failed"), ("queue", "audit"), next(iter(others.bindings)).identity]
    assert [obj.identity for obj in seen.foreign] == strangers


def test_several_waits_of_one_work_queue_are_one_use() -> None:
    slow = of(
        a_queue("mail.slow", ttl=60_000, dlx="again", key="mail"),
        Binding("failed", "mail.slow", "#"),
    )
    use = only(through_exchanges() | slow)
    assert {identity[1] for identity in use.claims if identity[0] == "queue"} == {
        "mail",
        "mail.slow",
        "mail.waiting",
    }


def test_a_pair_whose_way_back_is_gone_says_so() -> None:
    whole = through_exchanges()
    gone = [("exchange", "again"), *(binding.identity for binding in whole.leaving("again"))]
    left = whole.without(gone)
    use = only(left)
    assert use.missing == (
        "The exchange “again” is missing, so RabbitMQ drops messages after their delay.",
    )
    assert use.claims == {obj.identity for obj in left}


def test_a_pair_of_ours_that_lost_both_exchanges_is_shown_with_what_is_missing() -> None:
    whole = retry_pair.definitions(retry_pair_params.Params("orders", timedelta(seconds=5)))
    use = only(Definitions(queues=whole.queues))
    assert (use.kind, use.name, use.params) == ("retry_pair", "orders", None)
    assert [sentence.split(" is ")[0].split(" and ")[0] for sentence in use.missing] == [
        "The exchange “orders”",
        "The exchange “orders-retry”",
    ]


def test_an_empty_binding_key_is_not_read_as_the_name() -> None:
    whole = retry_pair.definitions(retry_pair_params.Params("orders", timedelta(seconds=5)))
    empty = of(*(replace(binding, routing_key="") for binding in whole.bindings))
    pair = only(Definitions(whole.exchanges, whole.queues) | empty)
    assert (pair.kind, pair.params, len(pair.claims)) == ("retry_pair", None, 6)
    both = only(whole | empty)
    assert both.params == retry_pair_params.Params("orders", timedelta(seconds=5))
    quorum = quorum_retry.definitions(quorum_retry.parse({"name": "q"}))
    empty = of(*(replace(binding, routing_key="") for binding in quorum.bindings))
    assert only(Definitions(quorum.exchanges, quorum.queues) | empty).params is None
    assert only(quorum).params is not None


def test_a_pair_whose_dead_letter_key_no_binding_takes_says_that_messages_are_lost() -> None:
    whole = retry_pair.definitions(retry_pair_params.Params("orders", timedelta(seconds=5)))
    odd = a_queue("orders", dlx="orders-retry", key="failed", type="classic")
    snapshot = a_snapshot(whole.without([odd.identity]) | of(odd))
    (found,) = recognize(snapshot).found
    assert found.use.params == retry_pair_params.Params("orders", timedelta(seconds=5))
    (difference,) = departures(found, snapshot)
    assert (difference.name, difference.declared) == ("x-dead-letter-routing-key", "failed")
    assert found.use.remarks == (
        "“orders” dead-letters with the routing key “failed”, but no binding from the "
        "exchange “orders-retry” to the queue “orders-retry” matches. RabbitMQ drops these "
        "messages.",
    )
    harmless = a_queue("orders", dlx="orders-retry", key="orders", type="classic")
    assert only(whole.without([odd.identity]) | of(harmless)).remarks == ()


def renamed(found: Definitions, names: dict[str, str]) -> Definitions:
    """The same levels under other names."""

    def other(name: str) -> str:
        return names.get(name, name)

    def queue(one: Queue) -> Queue:
        below = other(one.dead_letter_exchange or "")
        return Queue(
            other(one.name),
            arguments=Arguments({**one.arguments, "x-dead-letter-exchange": below}),
        )

    return of(
        *(replace(one, name=other(one.name)) for one in found.exchanges),
        *map(queue, found.queues),
        *(
            replace(one, source=other(one.source), destination=other(one.destination))
            for one in found.bindings
        ),
    )


WORDS = ("one", "two", "three", "four", "five", "six")
FOREIGN = renamed(
    LEVELS,
    {f"NAME.delay-level-{number:02}": f"late.{word}" for number, word in enumerate(WORDS)}
    | {"NAME.delay-delivery": "out"},
)


def test_levels_under_other_names_are_found_with_their_destinations() -> None:
    bound = Binding("out", "sales", "#.sales")
    numbers = {f"late.{word}": QueueNumbers(messages=2) for word in WORDS}
    seen = recognize(a_snapshot(FOREIGN | of(a_queue("sales"), bound), numbers))
    (found,) = seen.found
    use = found.use
    assert (use.kind, use.name, use.params, use.missing) == ("delay_levels", "late", None, ())
    assert use.claims == {obj.identity for obj in FOREIGN} | {bound.identity}
    assert (found.waiting, use.has_foreign_names) == (12, True)
    assert [obj.identity for obj in seen.foreign] == [("queue", "sales")]


@pytest.mark.parametrize(
    ("gone", "said"),
    [
        ([("queue", "late.two")], "The level “late.two” has no queue"),
        ([("exchange", "out")], "The exchange “out” is missing"),
        ([("exchange", "late.six"), ("queue", "late.six")], "One level above “late.five” is"),
    ],
)
def test_what_foreign_levels_lack_is_said(gone: list[Any], said: str) -> None:
    names = {identity[1] for identity in gone}
    ends = [
        binding.identity
        for binding in FOREIGN.bindings
        if (binding.destination_is_queue and ("queue", binding.destination) in gone)
        or (not binding.destination_is_queue and ("exchange", binding.destination) in gone)
        or (("exchange", binding.source) in gone)
    ]
    use = only(FOREIGN.without([*gone, *ends]))
    assert names
    assert use.params is None
    assert any(sentence.startswith(said) for sentence in use.missing)


def test_a_wait_that_does_not_fit_between_the_others_is_said() -> None:
    odd = a_queue("late.two", ttl=7, dlx="late.one", type="quorum")
    use = only(FOREIGN.without([odd.identity]) | of(odd))
    assert use.missing == (
        "The TTL of “late.two” is 7ms, which breaks the doubling of the levels.",
    )


def test_a_hold_queue_under_another_name_is_shown_and_not_taken_for_a_delay_queue() -> None:
    held = a_queue("wait-5s", ttl=5000, dlx="shop", key="new", x_expires=60_000)
    by_name = a_queue("wait-9s", ttl=9000, dlx="", key="work", x_expires=60_000)
    seen = recognize(a_snapshot(of(held, by_name, a_queue("work"))))
    reported = [(one.use.kind, one.use.name, one.use.params) for one in seen.found]
    assert reported == [("hold_queues", "shop", None), ("hold_queues", "wait-9s", None)]
    ours = hold_queues_params.Params("shop", ("new",), (timedelta(seconds=5),))
    both = hold_queues.route(ours, ours.delays[0], "new").declares | of(held)
    names = [one.use.name for one in recognize(a_snapshot(both)).found]
    assert names == ["shop", "wait-5s"]


@pytest.mark.parametrize(
    "left",
    [
        Definitions(queues=LOOP.queues),
        of(a_queue("work", dlx="failed"), a_queue("cellar", ttl=5000, dlx="again")),
    ],
)
def test_queues_of_a_loop_that_lost_both_exchanges_belong_to_no_topology(left: Definitions) -> None:
    seen = recognize(a_snapshot(left))
    assert seen.found == ()
    assert set(seen.foreign) == set(left)


def test_what_two_loops_share_is_counted_once_in_the_total_and_said_to_be_shared() -> None:
    one = retry_loop.parse({"name": "a", "input_exchange": "in", "delay": "5s"})
    other = replace(one, input_queue="b_input_q")
    both = retry_loop.definitions(one) | retry_loop.definitions(other)
    seen = recognize(a_snapshot(both, {one.dead_queue: QueueNumbers(messages=4)}))
    assert [found.waiting for found in seen.found] == [4, 4]
    assert [found.shared for found in seen.found] == [("b_input_q",), ("a_input_q",)]
    assert seen.waiting == 4
    assert recognize(a_snapshot(both)).waiting is None


def test_what_has_our_names_comes_before_what_has_none() -> None:
    """A foreign pair that is whole takes nothing from a pair of ours that is not."""
    ours = retry_pair.definitions(retry_pair_params.Params("orders", timedelta(seconds=5)))
    lost = Binding("orders", "orders", "orders")
    other = of(a_queue("x", dlx="", key="orders-retry"), Binding("orders", "x", "x"))
    seen = recognize(a_snapshot(ours.without([lost.identity]) | other))
    assert [found.use.name for found in seen.found] == ["orders"]
    assert seen.overlapping == ()
