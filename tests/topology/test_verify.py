from __future__ import annotations

from datetime import timedelta

import pytest

from delayboard.dead_letters.retrying import count_queued
from tests.topology.builders import (
    EVERYTHING,
    PAIR,
    PARAMS,
    a_queue,
    a_snapshot,
)
from topology.definitions import Binding, BrokerObject, Definitions, Exchange, Queue
from topology.models import Broker, Topology
from topology.patterns.busy_wait import params as busy_wait_params
from topology.patterns.busy_wait.pattern import busy_wait
from topology.patterns.chain.params import claim
from topology.patterns.chain.pattern import delay_chain, retry_chain
from topology.patterns.delay_levels import params as delay_levels_params
from topology.patterns.delay_levels.pattern import delay_levels
from topology.patterns.retry_pair.pattern import retry_pair
from topology.patterns.table import PATTERNS
from topology.provisioning.verify import Verification, verify
from topology.snapshot import QueueNumbers
from topology.structure.find_chains import find_chains, make_chain


def verdict(there: Definitions, numbers: dict[str, QueueNumbers] | None = None) -> Verification:
    counted = {queue.name: QueueNumbers(consumers=0) for queue in there.queues}
    snapshot = a_snapshot(there, counted | (numbers or {}))
    return verify(PATTERNS[retry_pair.KIND], PARAMS, EVERYTHING, snapshot)


def test_what_stands_as_it_should_holds() -> None:
    reported = verdict(EVERYTHING)
    assert reported.holds
    assert [check.sentence for check in reported.checks] == [
        "A probe would arrive in orders after 5s.",
        "The delay queue orders-retry has no consumers.",
    ]


def test_a_tap_that_is_missing_does_not_hold_though_the_probe_arrives() -> None:
    reported = verdict(PAIR)
    assert not reported.holds
    assert all(check.holds for check in reported.checks)


@pytest.mark.parametrize(
    ("missing", "sentence"),
    [
        (
            ("exchange", "orders-retry"),
            ("A probe would not arrive in orders: the exchange “orders-retry” does not exist."),
        ),
        (
            ("queue", "orders"),
            "A probe would not arrive in orders: "
            "the exchange “orders” has no queue for the key “orders”.",
        ),
        (("queue", "orders-retry"), "The delay queue orders-retry does not exist."),
    ],
)
def test_what_is_missing_is_told_by_what_becomes_of_a_probe(
    missing: tuple[str, str], sentence: str
) -> None:
    reported = verdict(EVERYTHING.without([missing]))
    assert sentence in [check.sentence for check in reported.checks if not check.holds]
    assert not reported.holds


def test_a_policy_that_shortens_the_delay_is_seen_by_the_probe() -> None:
    shorter = a_queue("orders-retry", ttl=2000, dlx="orders")
    reported = verdict(EVERYTHING.without([("queue", "orders-retry")]) | Definitions.of([shorter]))
    assert reported.checks[0].sentence == "A probe would arrive in orders after 2s, not 5s."


def test_a_consumer_of_a_delay_queue_takes_messages_before_their_time() -> None:
    reported = verdict(EVERYTHING, {"orders-retry": QueueNumbers(consumers=2)})
    assert reported.checks[1].sentence == (
        "2 consumers read the delay queue orders-retry. Messages leave it before they are due."
    )
    assert not reported.holds


def verdict_of_others(consumers: int, *missing: tuple[str, str]) -> Verification:
    """Of a busy wait that others built, with so many consumers of its busy-waiting queue."""
    params = busy_wait_params.Params("hooks", (timedelta(minutes=1),))
    wanted = busy_wait.definitions(params)
    there = (wanted | Definitions.of([a_queue("hooks")])).without(missing)
    numbers = {queue.name: QueueNumbers(consumers=0) for queue in there.queues}
    if "hooks-busy-wait" in numbers:
        numbers["hooks-busy-wait"] = QueueNumbers(consumers=consumers)
    snapshot = a_snapshot(there, numbers)
    return verify(PATTERNS[busy_wait.KIND], params, wanted, snapshot, is_read_by_others=True)


def test_what_a_forwarder_of_others_does_is_not_checked_and_said_so() -> None:
    reported = verdict_of_others(consumers=1)
    assert reported.holds
    assert [check.sentence for check in reported.checks] == [
        (
            "A probe would arrive in hooks-busy-wait after 1m. An external consumer reads this "
            "queue."
        ),
        "The delay queue hooks-delay has no consumers.",
        "An external forwarder consumes hooks-busy-wait. Delayboard cannot check what it "
        "forwards and when.",
    ]


def test_a_forwarder_of_others_that_is_not_at_work_is_not_replaced_by_ours() -> None:
    reported = verdict_of_others(consumers=0)
    assert [check.sentence for check in reported.checks if not check.holds] == [
        "hooks-busy-wait has no consumer, so no message leaves the delay. Start an external "
        "consumer."
    ]


def test_a_queue_that_others_should_read_and_that_is_missing_does_not_hold() -> None:
    reported = verdict_of_others(0, ("queue", "hooks-busy-wait"))
    first, *_, last = [check.sentence for check in reported.checks if not check.holds]
    assert first.startswith("A probe would not arrive in hooks-busy-wait: ")
    assert last == "The forwarder's queue hooks-busy-wait does not exist."


def test_a_destination_without_a_binding_and_stuck_messages_do_not_hold() -> None:
    params = delay_levels_params.Params("own", "shop", 3)
    wanted = delay_levels.definitions(params)
    lowest = QueueNumbers(messages=3, ready=0, unacked=0, consumers=0)
    numbers = {queue.name: QueueNumbers(0, 0, 0, 0) for queue in wanted.queues}
    numbers["shop.delay-level-00"] = lowest
    snapshot = a_snapshot(wanted, numbers)
    pattern = PATTERNS[delay_levels.KIND]

    def failed(problems: dict[str, str]) -> list[str]:
        reported = verify(pattern, params, wanted, snapshot, problems=problems)
        assert not any(
            "would arrive in a destination" in c.sentence for c in reported.checks if problems
        )
        return [check.sentence for check in reported.checks if not check.holds]

    assert failed({"sales": "Destination “sales” has no binding."}) == [
        "Destination “sales” has no binding."
    ]
    assert failed({}) == [
        "3 messages are stuck in shop.delay-level-00. RabbitMQ cannot route them."
    ]


def test_a_destination_that_is_bound_again_holds() -> None:
    params = delay_levels_params.Params("own", "shop", 3)
    wanted = delay_levels.definitions(params)
    bound = Definitions.of([Queue("sales"), Binding("shop.delay-delivery", "sales", "#.sales")])
    numbers = {queue.name: QueueNumbers(0, 0, 0, 0) for queue in wanted.queues}
    snapshot = a_snapshot(wanted | bound, numbers)
    reported = verify(
        PATTERNS[delay_levels.KIND], params, wanted, snapshot, problems={"sales": "No binding."}
    )
    assert reported.holds
    assert "A route to destination “sales” exists again." in [c.sentence for c in reported.checks]


def test_a_work_queue_with_a_ttl_is_no_delay_queue_of_a_chain_and_one_without_is() -> None:
    work = a_queue("mail", ttl=60_000, dlx="", key="mail.dead")
    found = Definitions.of([a_queue("mail.delay", dlx="", key="mail"), work])
    numbers = {
        "mail": QueueNumbers(messages=7, consumers=1),
        "mail.delay": QueueNumbers(messages=3, consumers=0),
    }
    snapshot = a_snapshot(found, numbers)
    params = claim(make_chain("mail", ["mail.delay"], found), found)
    checks = verify(delay_chain, params, found, snapshot).checks
    assert [(one.holds, one.sentence) for one in checks] == [
        (True, "The delay queue mail.delay has no consumers.")
    ]
    row = Topology(broker=Broker(), kind="delay_chain", params=delay_chain.store(params))
    row.tap_type = "none"
    assert count_queued(row, snapshot) == 3


@pytest.mark.parametrize("consumers", [0, 1])
def test_a_queue_whose_workers_hold_its_messages_needs_a_worker(consumers: int) -> None:
    there = Definitions.of(a_queue(n, dlx="", key="orders.XQ") for n in ("orders", "orders.DQ"))
    (chain,) = find_chains(there)
    numbers = {queue.name: QueueNumbers(consumers=consumers) for queue in there.queues}
    found = verify(retry_chain, claim(chain, there), there, a_snapshot(there, numbers))
    assert found.holds == bool(consumers)


def verify_chain(*objects: BrokerObject) -> Verification:
    found = Definitions.of(objects)
    (chain,) = find_chains(found)
    numbers = {queue.name: QueueNumbers(consumers=0) for queue in found.queues}
    return verify(delay_chain, claim(chain, found), found, a_snapshot(found, numbers))


def test_what_was_not_tried_of_a_chain_of_others_names_the_queue_and_the_argument() -> None:
    reported = verify_chain(a_queue("mail.delay", dlx="", key="mail"), a_queue("mail"))
    assert reported.holds
    assert reported.untried == (
        "No route was traced, because the queue “mail.delay” has no x-message-ttl, so each message "
        "states its own delay. A queue with a TTL for each delay would have a route.",
    )


def test_a_chain_whose_messages_bring_their_keys_is_not_tried() -> None:
    """As rascal does with CC."""
    reported = verify_chain(
        Exchange("delay", "topic"),
        Exchange("retry", "topic"),
        a_queue("delay:1m", ttl=60_000, dlx="retry"),
        a_queue("save"),
        Binding("delay", "delay:1m", "delay.1m"),
        Binding("retry", "save", "save.#"),
    )
    assert reported.untried == (
        "No route was traced, because the exchange “retry” has no queue for the key “delay.1m”. "
        "Messages of “delay:1m” keep their own routing keys (or CC header), because the queue has "
        "no x-dead-letter-routing-key.",
    )


def test_a_chain_whose_messages_reach_several_queues_is_not_tried_by_its_entry() -> None:
    reported = verify_chain(
        Exchange("delay"),
        Exchange("work", "topic"),
        a_queue("later", ttl=5000, dlx="work"),
        a_queue("mail"),
        a_queue("audit"),
        Binding("delay", "later", "mail"),
        Binding("work", "mail", "mail"),
        Binding("work", "audit", "#"),
    )
    (sentence,) = reported.untried
    assert "because messages of “later” arrive in 2 queues. A direct exchange with a" in sentence


def test_the_delays_of_a_chain_whose_queues_are_linked_are_tried_by_each_entry() -> None:
    reported = verify_chain(
        Exchange("long"),
        Exchange("short"),
        a_queue("wait-1h", ttl=3_600_000, dlx="short", key="k"),
        a_queue("wait-1m", ttl=60_000, dlx="", key="work"),
        a_queue("work"),
        Binding("long", "wait-1h", "k"),
        Binding("short", "wait-1m", "k"),
    )
    assert reported.untried == ()
    assert [one.sentence for one in reported.checks if one.holds][:2] == [
        "A probe would arrive in work after 1m.",
        "A probe would arrive in work after 1h 1m.",
    ]
