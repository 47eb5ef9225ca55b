"""What has names that no pattern gives: found by its structure, and adoptable."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.topology.builders import a_queue, a_snapshot
from topology.definitions import Arguments, Binding, BrokerObject, Definitions, Exchange, Queue
from topology.patterns.chain.params import chain_of
from topology.patterns.delay_levels import params as delay_levels_params
from topology.patterns.delay_levels.pattern import delay_levels
from topology.patterns.hold_queues import params as hold_queues_params
from topology.patterns.hold_queues.pattern import hold_queues
from topology.patterns.pattern import Use
from topology.patterns.quorum_retry.pattern import quorum_retry
from topology.patterns.retry_loop.pattern import retry_loop
from topology.patterns.retry_pair import params as retry_pair_params
from topology.patterns.retry_pair.pattern import retry_pair
from topology.patterns.table import KINDS
from topology.provisioning.recognition import departures, recognize
from topology.snapshot import QueueNumbers
from topology.structure.copies import Copy
from topology.structure.reading import Reader

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
def test_retries_are_found_by_the_route_that_messages_take_and_are_adoptable(
    found: Definitions,
) -> None:
    (one,) = recognize(a_snapshot(found)).found
    assert (one.use.kind, one.use.name, one.use.missing) == ("retry_chain", "mail", ())
    assert one.plan is not None
    assert one.plan.is_empty
    work = next(queue for queue in found.queues if queue.name == "mail")
    inner = {obj.identity for obj in found} - {work.identity}
    assert inner - {("exchange", "failed"), *(b.identity for b in found.leaving("failed"))} <= (
        one.use.claims
    )
    assert chain_of(one.use.params).phrase == (
        "Failed messages of mail wait 5s in mail.waiting, then return."
    )


@pytest.mark.parametrize(
    ("found", "phrase"),
    [
        (
            through_exchanges(in_key="mail"),
            "Messages wait 5s in mail.waiting, then arrive in mail.",
        ),
        (
            through_exchanges(back_key="others"),
            "Dead letters of mail wait 5s in mail.waiting, then go to no queue.",
        ),
        (
            through_exchanges(work={"key": "failed"}),
            "Messages wait 5s in mail.waiting, then arrive in mail.",
        ),
        (
            through_exchanges(wait={"key": "late"}),
            "Dead letters of mail wait 5s in mail.waiting, then go to no queue.",
        ),
        (
            through_exchanges(work={"ttl": 9}),
            "Failed messages of mail wait 5s in mail.waiting, then return.",
        ),
        (
            through_exchanges(work={"type": "stream"}),
            "Messages wait 5s in mail.waiting, then arrive in mail.",
        ),
    ],
)
def test_what_does_not_come_back_is_a_delay(found: Definitions, phrase: str) -> None:
    assert chain_of(only(found).params).phrase == phrase


@pytest.mark.parametrize(
    "found", [through_exchanges(wait={"ttl": 0}), of(a_queue("mail", dlx="", key="mail"))]
)
def test_a_queue_in_which_nothing_waits_is_no_delay(found: Definitions) -> None:
    assert [one.use for one in recognize(a_snapshot(found)).found] == []


def test_what_waits_in_a_chain_is_counted_and_an_exchange_of_many_is_not_claimed() -> None:
    others = of(a_queue("audit"), Binding("failed", "audit", "#"))
    numbers = {"mail": QueueNumbers(messages=7), "mail.waiting": QueueNumbers(messages=3)}
    seen = recognize(a_snapshot(through_exchanges() | others, numbers))
    (found,) = seen.found
    assert (found.waiting, found.queues) == (3, ("mail.waiting",))
    assert [served.queue.name for served in seen.served] == ["mail"]
    strangers = [("exchange", "failed"), ("queue", "audit"), next(iter(others.bindings)).identity]
    assert [obj.identity for obj in seen.foreign] == strangers


def test_several_waits_of_one_work_queue_are_one_chain() -> None:
    slow = of(
        a_queue("mail.slow", ttl=60_000, dlx="again", key="mail"),
        Binding("failed", "mail.slow", "#"),
    )
    use = only(through_exchanges() | slow)
    assert use.params.queues == ("mail.waiting", "mail.slow")


def test_a_chain_whose_way_out_is_gone_says_so() -> None:
    whole = through_exchanges()
    gone = [("exchange", "again"), *(binding.identity for binding in whole.leaving("again"))]
    assert only(whole.without(gone)).missing == (
        "The exchange “again” is missing, so RabbitMQ drops messages after their delay.",
    )


def test_an_empty_binding_key_is_not_read_as_the_name() -> None:
    whole = retry_pair.definitions(retry_pair_params.Params("orders", timedelta(seconds=5)))
    empty = of(*(replace(binding, routing_key="") for binding in whole.bindings))
    chain = only(Definitions(whole.exchanges, whole.queues) | empty)
    assert (chain.kind, chain.name) == ("retry_chain", "orders")
    both = only(whole | empty)
    assert both.params == retry_pair_params.Params("orders", timedelta(seconds=5))
    quorum = quorum_retry.definitions(quorum_retry.parse({"name": "q"}))
    empty = of(*(replace(binding, routing_key="") for binding in quorum.bindings))
    native = only(Definitions(quorum.exchanges, quorum.queues) | empty)
    assert (native.kind, chain_of(native.params).is_native) == ("retry_chain", True)
    published = Copy("", native.params.queues[0], {})
    assert KINDS[native.kind].read(native.params, published) is None
    assert only(quorum).kind == "quorum_retry"


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


def test_levels_under_other_names_are_one_chain_with_their_destinations() -> None:
    bound = Binding("out", "sales", "#.sales")
    numbers = {f"late.{word}": QueueNumbers(messages=2) for word in WORDS}
    seen = recognize(a_snapshot(FOREIGN | of(a_queue("sales"), bound), numbers))
    (found,) = seen.found
    use = found.use
    assert (use.kind, use.name, use.missing) == ("delay_chain", "sales", ())
    assert use.claims == {obj.identity for obj in FOREIGN} | {bound.identity}
    assert found.waiting == 12
    assert [one.queue.name for one in seen.served] == ["sales"]
    chain = chain_of(use.params)
    entered = Copy("late.six", "0.0.0.1.0.1.sales", {})
    reading = Reader(chain).read(entered)
    assert reading is not None
    unit = min(chain.delays)
    assert (reading.delay, reading.destination) == (5 * unit, "sales")


def test_hold_queues_under_other_names_are_chains_of_their_destinations() -> None:
    held = a_queue("wait-5s", ttl=5000, dlx="shop", key="new", x_expires=60_000)
    by_name = a_queue("wait-9s", ttl=9000, dlx="", key="work", x_expires=60_000)
    seen = recognize(a_snapshot(of(held, by_name, a_queue("work"))))
    reported = [(one.use.kind, one.use.name) for one in seen.found]
    assert reported == [("delay_chain", "shop"), ("delay_chain", "work")]
    ours = hold_queues_params.Params("shop", ("new",), (timedelta(seconds=5),))
    both = hold_queues.route(ours, ours.delays[0], "new").declares | of(held)
    kinds = [(one.use.kind, one.use.name) for one in recognize(a_snapshot(both)).found]
    assert kinds == [("hold_queues", "shop"), ("delay_chain", "shop")]


def test_queues_of_a_loop_that_lost_both_exchanges_are_a_chain_that_loses_messages() -> None:
    use = only(Definitions(queues=LOOP.queues))
    assert use.params.queues == ("a_dead_letter_queue",)
    assert [sentence.split(",")[0] for sentence in use.missing] == [
        "The exchange “a_inner_exch” is missing"
    ]


def test_what_two_loops_share_is_counted_once_in_the_total_and_said_to_be_shared() -> None:
    one = retry_loop.parse({"name": "a", "input_exchange": "in", "delay": "5s"})
    other = replace(one, input_queue="b_input_q")
    both = retry_loop.definitions(one) | retry_loop.definitions(other)
    seen = recognize(a_snapshot(both, {one.dead_queue: QueueNumbers(messages=4)}))
    assert [found.waiting for found in seen.found] == [4, 4]
    assert [found.shared for found in seen.found] == [("b_input_q",), ("a_input_q",)]
    assert seen.waiting == 4
    assert recognize(a_snapshot(both)).waiting is None


def test_bindings_of_an_exchange_that_every_vhost_has_belong_to_the_chain_that_uses_them() -> None:
    found = of(
        Exchange("amq.direct"),
        Exchange("amq.topic", "topic"),
        a_queue("later", ttl=5000, dlx="amq.direct", key="mail"),
        a_queue("mail"),
        Binding("amq.topic", "later", "later.#"),
        back := Binding("amq.direct", "mail", "mail"),
        others := Binding("amq.direct", "bills", "bill"),
        a_queue("bills"),
    )
    recognition = recognize(a_snapshot(found))
    assert back not in recognition.foreign
    assert others in recognition.foreign
