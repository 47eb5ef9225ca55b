from __future__ import annotations

import string
from datetime import timedelta

import pytest
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from delayboard.dead_letters.queues.candidates import Candidate, candidates
from delayboard.dead_letters.queues.failures import find_failed, note_failures
from delayboard.retention.table import FAILURE_QUEUES
from tests.builders import make_broker
from tests.topology.builders import PAIR, a_queue, a_snapshot
from topology import snapshots
from topology.definitions import Binding, BrokerObject, Definitions, Exchange, Queue
from topology.patterns.table import PATTERNS
from topology.snapshot import QueueNumbers


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
        (
            a_queue("dead", ttl=5000, dlx="", key="work"),
            {},
            "delay queue: messages wait here and then move on",
        ),
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


def test_a_queue_for_messages_that_consumers_give_up_is_proposed_by_its_name() -> None:
    reported = found(
        a_queue("orders_parked"), a_queue("orders"), a_queue("fed.dead", type="stream")
    )
    assert reported["orders_parked"].is_possible
    assert not reported["orders"].is_possible
    assert not reported["fed.dead"].is_possible
    assert not found(a_queue("a_parked"), **consumed("a_parked"))["a_parked"].is_possible


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
