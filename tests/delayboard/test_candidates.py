from __future__ import annotations

import string
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from delayboard.dead_letters.queues.candidates import Candidate, candidates
from delayboard.dead_letters.queues.failures import find_failed, note_failures
from delayboard.dead_letters.queues.feeds import feeds
from delayboard.retention.table import FAILURE_QUEUES
from tests.builders import make_broker
from tests.topology.builders import PAIR, a_queue, a_snapshot
from topology import snapshots
from topology.definitions import Arguments, Binding, BrokerObject, Definitions, Exchange, Queue
from topology.patterns.table import PATTERNS
from topology.routing.death_reasons import reasons
from topology.snapshot import QueueNumbers

NEWEST = (4, 3, 6)


def consumed(*names: str) -> dict[str, QueueNumbers]:
    return {name: QueueNumbers(messages=3, consumers=1) for name in names}


def found(*objects: BrokerObject, **numbers: QueueNumbers) -> dict[str, Candidate]:
    snapshot = a_snapshot(Definitions.of(objects), numbers)
    return {one.queue: one for one in candidates(snapshot, ())}


def likely(*objects: BrokerObject, **numbers: QueueNumbers) -> list[str]:
    return [name for name, one in found(*objects, **numbers).items() if one.is_likely]


def test_what_is_fed_by_failures_and_read_by_nobody_is_proposed_the_deepest_first() -> None:
    objects: list[BrokerObject] = [
        *(a_queue(name, dlx="", key=f"{name}.dead") for name in ("a", "b")),
        a_queue("a.dead"),
        a_queue("b.dead"),
        a_queue("lonely"),
    ]
    numbers = {"b.dead": QueueNumbers(messages=9, consumers=0)}
    reported = found(*objects, **numbers)
    assert list(reported)[:2] == ["b.dead", "a.dead"]
    assert [one.is_likely for one in reported.values()] == [True, True, False, False, False]
    assert reported["a.dead"].why == "receives failed messages from “a”, has no consumers"
    assert reported["lonely"].why == "no queue dead-letters into this queue"


@pytest.mark.parametrize(
    ("queue", "numbers", "why"),
    [
        (a_queue("dead", ttl=5000), {}, "delay queue: messages expire"),
        (a_queue("dead", type="stream"), {}, "stream: consumers remove no messages"),
        (a_queue("dead"), consumed("dead"), "work queue: has consumers"),
    ],
)
def test_what_is_fed_by_failures_may_be_something_else(
    queue: Queue, numbers: dict[str, QueueNumbers], why: str
) -> None:
    reported = found(a_queue("work", dlx="", key="dead"), queue, **numbers)
    assert (reported["dead"].is_likely, reported["dead"].why) == (False, why)


def test_where_a_delay_ends_is_a_work_queue_even_while_nobody_consumes_it() -> None:
    reported = found(a_queue("hold", ttl=5000, dlx="", key="work"), a_queue("work"))
    assert not reported["work"].is_likely
    assert reported["work"].why == "end of a delay: receives only expired messages"


def test_neither_side_of_a_retry_pair_is_proposed_managed_or_not() -> None:
    snapshot = a_snapshot(PAIR)
    assert not any(one.is_likely for one in candidates(snapshot, ()))


@pytest.mark.parametrize("kind", PATTERNS)
def test_no_pattern_s_delays_or_targets_are_proposed(kind: str) -> None:
    pattern = PATTERNS[kind]
    definitions = pattern.definitions(pattern.EXAMPLE)
    targets = set(pattern.targets(pattern.EXAMPLE))
    proposed = {one.queue for one in candidates(a_snapshot(definitions), targets) if one.is_likely}
    assert not proposed & targets
    delays = {q.name for q in definitions.queues if q.message_ttl_ms is not None}
    assert not proposed & delays


def test_the_parking_of_a_ladder_is_proposed() -> None:
    pattern = PATTERNS["retry_ladder"]
    definitions = pattern.definitions(pattern.EXAMPLE)
    targets = set(pattern.targets(pattern.EXAMPLE))
    reported = candidates(a_snapshot(definitions), targets)
    assert sum(one.is_likely for one in reported) == 1


def test_own_taps_are_no_candidates_and_feed_nothing() -> None:
    reported = found(a_queue("delayboard.tap.x", dlx="", key="dead"), a_queue("dead"))
    assert list(reported) == ["dead"]
    assert not reported["dead"].is_likely


def test_names_of_error_queues_come_first_among_the_others() -> None:
    names = ["aaa", "orders_error", "error", "EasyNetQ_Default_Error_Queue_1"]
    reported = found(*(a_queue(name) for name in names))
    assert list(reported)[-1] == "aaa"
    assert not any(one.is_likely for one in reported.values())


@pytest.mark.parametrize(
    ("arguments", "consumers", "version", "reported"),
    [
        ({}, 0, NEWEST, ("rejected",)),
        ({"ttl": 5}, 0, NEWEST, ("expired",)),
        ({"ttl": 5}, 1, NEWEST, ("rejected", "expired")),
        ({"x_max_length": 5}, 0, NEWEST, ("rejected", "maxlen")),
        ({"x_max_length_bytes": 5, "x_overflow": "reject-publish"}, 0, NEWEST, ("rejected",)),
        (
            {"x_max_length": 5, "x_overflow": "reject-publish-dlx"},
            0,
            NEWEST,
            ("rejected", "maxlen"),
        ),
        ({"ttl": 5, "x_max_length": 5}, 0, NEWEST, ("expired", "maxlen")),
        ({"type": "quorum"}, 0, NEWEST, ("rejected", "delivery_limit")),
        ({"type": "quorum"}, 0, (3, 10, 8), ("rejected",)),
        ({"type": "quorum", "x_delivery_limit": 5}, 0, (3, 10, 8), ("rejected", "delivery_limit")),
        ({"type": "quorum", "x_delivery_limit": -1}, 0, NEWEST, ("rejected",)),
        ({"type": "quorum", "ttl": 5}, 0, NEWEST, ("expired",)),
        ({"type": "stream"}, 0, NEWEST, ()),
    ],
)
def test_for_which_reasons_messages_can_die(
    arguments: dict[str, Any], consumers: int, version: tuple[int, ...], reported: tuple[str, ...]
) -> None:
    numbers = QueueNumbers(consumers=consumers)
    assert reasons(a_queue("q", dlx="", **arguments), numbers, version) == reported


def sentences(target: str, *objects: BrokerObject, **numbers: QueueNumbers) -> list[str]:
    fed = feeds(a_snapshot(Definitions.of(objects), numbers))
    return [feed.sentence for feed in fed.get(target, ())]


def test_how_a_queue_is_fed_in_words() -> None:
    objects: list[BrokerObject] = [
        Exchange("dlx", "topic"),
        Binding("dlx", "dead", "dead.#"),
        a_queue("dead"),
        a_queue("a", dlx="dlx", key="dead.a", x_max_length=5),
        a_queue("hold", ttl=5, dlx="", key="dead"),
    ]
    assert sentences("dead", *objects) == [
        "From “a” when consumers reject messages (rejected) or the queue is full (maxlen), "
        "through the exchange “dlx” with routing key “dead.a”.",
        "From “hold” when messages expire (expired), through the default exchange.",
    ]


def test_many_queues_are_counted() -> None:
    objects = [a_queue("dead"), *(a_queue(f"q{n:02}", dlx="", key="dead") for n in range(20))]
    (reported,) = sentences("dead", *objects)
    assert reported.startswith("From “q00”, “q01”, “q02” and 17 more queues when")


def own_keys(exchange_type: str, bound: str, work: BrokerObject) -> list[str]:
    return sentences(
        "dead",
        Exchange("orders", "topic"),
        Exchange("dlx", exchange_type),
        Binding("dlx", "dead", bound),
        a_queue("dead"),
        a_queue("work", dlx="dlx"),
        work,
    )


def test_messages_that_keep_their_keys_go_where_these_lead() -> None:
    literal = Binding("orders", "work", "order.placed")
    pattern = Binding("orders", "work", "order.*")
    assert own_keys("direct", "order.placed", literal)
    assert own_keys("direct", "work", literal), "what comes by the queue's name"
    assert not own_keys("direct", "invoice", literal)
    assert own_keys("direct", "order.paid", pattern), "any key may come by a pattern"
    assert own_keys("fanout", "", literal) == [
        "From “work” when consumers reject messages (rejected), through the exchange “dlx”."
    ]
    (reported,) = own_keys("topic", "order.#", literal)
    assert reported.endswith("through the exchange “dlx” with the original routing key.")


def test_a_message_is_followed_through_exchanges_and_alternates() -> None:
    objects: list[BrokerObject] = [
        Exchange("dlx", arguments=Arguments({"alternate-exchange": "rest"})),
        Exchange("rest", "fanout"),
        Exchange("behind", "fanout"),
        Binding("rest", "behind", "", destination_is_queue=False),
        Binding("behind", "dead", ""),
        a_queue("dead"),
        a_queue("work", dlx="dlx", key="anything"),
    ]
    assert sentences("dead", *objects)


def test_a_dead_letter_exchange_that_is_not_there_feeds_nothing() -> None:
    assert sentences("dead", a_queue("work", dlx="gone", key="dead"), a_queue("dead")) == []


NAMES = st.text(string.ascii_letters + "*#. \u202e\x00", min_size=1, max_size=5)
QUEUES = st.builds(
    a_queue,
    NAMES,
    ttl=st.integers(-5, 5),
    dlx=st.sampled_from(["", "a", "b"]),
    type=st.sampled_from(["classic", "quorum", "stream", "other"]),
)
BINDINGS = st.builds(
    Binding,
    st.sampled_from(["a", "b"]),
    NAMES | st.sampled_from(["a", "b"]),
    NAMES,
    st.booleans(),
)


@given(st.lists(QUEUES, max_size=8), st.lists(BINDINGS, max_size=8))
def test_whatever_a_vhost_holds_every_queue_is_told_of_once(
    queues: list[Queue], bindings: list[Binding]
) -> None:
    objects: list[BrokerObject] = [
        Exchange("a", "topic"),
        Exchange("b", "fanout"),
        *queues,
        *bindings,
    ]
    definitions = Definitions.of(objects)
    reported = candidates(a_snapshot(definitions), ())
    assert len(reported) == len(definitions.queues)
    assert all(one.why for one in reported)
    assert all(feed.sentence.endswith(".") for one in reported for feed in one.feeds)


def test_ten_thousand_queues_behind_one_exchange_are_grouped_and_not_multiplied() -> None:
    bound = [f"q{n:05}" for n in range(10_000)]
    objects: list[BrokerObject] = [
        Exchange("dlx", "topic"),
        a_queue("dead"),
        Binding("dlx", "dead", "#"),
    ]
    objects += [a_queue(name, dlx="dlx") for name in bound]
    fed = feeds(a_snapshot(Definitions.of(objects)))
    (feed,) = fed["dead"]
    assert len(feed.queues) == 10_000


def test_a_queue_for_messages_that_consumers_give_up_is_proposed_by_its_name() -> None:
    reported = found(a_queue("orders_parked"), a_queue("orders"), a_queue("fed.dead", ttl=5000))
    assert reported["orders_parked"].is_abandoned
    assert not reported["orders"].is_abandoned
    assert not reported["fed.dead"].is_abandoned
    assert not found(a_queue("a_parked"), **consumed("a_parked"))["a_parked"].is_abandoned


@pytest.mark.django_db
def test_a_name_that_no_queue_can_have_is_not_noted() -> None:
    """A client may write any text into x-death."""
    broker = make_broker()
    note_failures(broker.pk, ["a\x00b", "n" * 256, "amq.gen-1"])
    assert find_failed(broker) == {"amq.gen-1"}


@pytest.mark.django_db
def test_the_name_of_a_deleted_queue_is_forgotten_after_its_retention(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker, now = make_broker(), timezone.now()
    note_failures(broker.pk, ["there", "deleted"])
    later = now + timedelta(days=31)
    assert FAILURE_QUEUES.delete_expired(later, lambda: None) == 0
    seen = snapshots.Latest(a_snapshot(Definitions.of([a_queue("there")])), now)
    monkeypatch.setitem(snapshots._latest, broker.pk, seen)
    assert FAILURE_QUEUES.delete_expired(now + timedelta(days=29), lambda: None) == 0
    assert FAILURE_QUEUES.delete_expired(later, lambda: None) == 1
    assert find_failed(broker) == {"there"}
