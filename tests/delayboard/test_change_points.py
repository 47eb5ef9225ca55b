"""Where the messages of a destination can be intercepted, and why those of others cannot."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from delayboard.changes.check import (
    Point,
    Unchangeable,
    exit_of,
    find_point,
    known_point,
    unreadable,
)
from tests.builders import make_broker
from tests.topology.builders import a_snapshot
from topology.definitions import (
    INTERCEPTION_PREFIX,
    Arguments,
    Binding,
    BrokerObject,
    Definitions,
    Exchange,
    Queue,
)
from topology.patterns.delay_levels.params import Params as Levels
from topology.patterns.delay_levels.params import delivery_name
from topology.patterns.hold_queues.params import Params as Holds
from topology.patterns.pattern import Pattern
from topology.patterns.table import PATTERNS
from topology.transfer.interception import Interception

DELIVERY = Exchange("delivery", "topic")
WORK = Queue("work")
TO_WORK = Binding("delivery", "work", "#.work")
KEY = "0.1.work"
# Of another installation.
OPEN = Interception(f"{INTERCEPTION_PREFIX}1", (TO_WORK,), "classic", timedelta(minutes=10))


def found(*more: BrokerObject) -> Definitions:
    return Definitions.of([DELIVERY, WORK, *more])


def test_the_binding_of_a_queue_is_the_point_whatever_taps_there_are() -> None:
    tap = Queue("delayboard.tap.x")
    vhost = found(TO_WORK, tap, Binding("delivery", tap.name, "#"))
    assert find_point(vhost, "delivery", KEY) == Point((TO_WORK,), "classic")


def test_all_bindings_from_one_exchange_to_one_queue_are_one_path() -> None:
    """As kombu binds a queue of a Celery worker: what comes without a delay matches both."""
    orders = Exchange("orders", "topic")
    own = (Binding("orders", "work", "#.work"), Binding("orders", "work", "work"))
    to_orders = Binding("delivery", "orders", "#.work", destination_is_queue=False)
    vhost = found(orders, to_orders, *own)
    assert find_point(vhost, "delivery", KEY) == Point(own, "classic")


@pytest.mark.parametrize(("overflow", "rejects"), [("reject-publish", True), ("drop-head", False)])
def test_whether_the_queue_rejects_messages_belongs_to_the_point(
    overflow: str, rejects: bool
) -> None:
    full = Queue("work", arguments=Arguments({"x-max-length": 1, "x-overflow": overflow}))
    point = find_point(Definitions.of([DELIVERY, full, TO_WORK]), "delivery", KEY)
    assert point == Point((TO_WORK,), "classic", rejects)


def test_behind_a_destination_that_is_an_exchange_the_queue_s_binding_is_the_point() -> None:
    last = Binding("endpoint", "work", "")
    vhost = found(
        Exchange("endpoint", "fanout"),
        Binding("delivery", "endpoint", "#.endpoint", destination_is_queue=False),
        last,
    )
    assert find_point(vhost, "delivery", "0.endpoint").bindings == (last,)


@pytest.mark.parametrize("of", ["work", "level"])
def test_a_quorum_queue_before_or_behind_it_makes_the_intercept_queue_one(of: str) -> None:
    quorum = Arguments({"x-queue-type": "quorum", "x-dead-letter-exchange": "delivery"})
    plain = [Queue("work")] if of == "level" else []
    vhost = Definitions.of([DELIVERY, TO_WORK, Queue(of, arguments=quorum), *plain])
    assert find_point(vhost, "delivery", KEY).queue_type == "quorum"


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ((), "No queue receives"),
        ((TO_WORK, Queue("b"), Binding("delivery", "b", "0.#")), "Several queues receive"),
        (
            (
                TO_WORK,
                Exchange("b", "fanout"),
                Binding("delivery", "b", "#", destination_is_queue=False),
                Binding("b", "work", ""),
            ),
            "from several exchanges: “b”, “delivery”",
        ),
        (
            (
                Exchange("h", "headers"),
                Binding("delivery", "h", "#", destination_is_queue=False),
                TO_WORK,
            ),
            "does not route by the routing key alone",
        ),
    ],
)
def test_what_has_not_one_path_to_one_queue_cannot_be_changed(
    more: tuple[BrokerObject, ...], why: str
) -> None:
    with pytest.raises(Unchangeable, match=why):
        find_point(found(*more), "delivery", KEY)


@pytest.mark.django_db
def test_what_another_installation_intercepts_cannot_be_changed() -> None:
    vhost = found(*OPEN.objects, *OPEN.entrances, OPEN.taking_headers({"id": "m"}))
    snapshot = a_snapshot(vhost).without_interceptions()
    with pytest.raises(Unchangeable, match="Another installation of Delayboard intercepts"):
        known_point(make_broker(), snapshot, "delivery", KEY)


def leave(kind: str, params: object, destination: str) -> tuple[str, str]:
    return exit_of(PATTERNS[kind], params, destination)


def test_messages_leave_levels_by_the_delivery_exchange_and_hold_queues_by_theirs() -> None:
    assert leave("delay_levels", Levels("own", "a", 3), "work") == (
        "a.delay-delivery",
        "0.0.0.work",
    )
    assert leave("hold_queues", Holds("orders"), "created") == ("orders", "created")


@pytest.mark.parametrize("kind", ["quorum_retry", "delayed_exchange", "busy_wait"])
def test_a_pattern_whose_messages_cannot_be_changed_has_a_sentence_why_not(kind: str) -> None:
    with pytest.raises(Unchangeable) as refused:
        leave(kind, PATTERNS[kind].EXAMPLE, "work")
    assert str(refused.value) == PATTERNS[kind].CHANGE_OBSTACLE != Pattern.CHANGE_OBSTACLE


@pytest.mark.parametrize(
    ("params", "when"),
    [
        (Levels("own", "a"), ""),
        (Levels("celery", destinations="exchanges"), "a Celery worker starts"),
        (
            Levels("nsb-v1"),
            "an NServiceBus endpoint starts or sends a delayed message to this queue",
        ),
        (Levels("nsb-v2", destinations="exchanges"), "an NServiceBus endpoint starts"),
    ],
)
def test_when_a_program_binds_a_destination_again_is_known(params: Levels, when: str) -> None:
    assert PATTERNS["delay_levels"].binds_again(params) == when
    assert leave("delay_levels", params, "work")[0] == delivery_name(params)


def test_messages_that_leave_through_the_default_exchange_are_changed_in_their_queue() -> None:
    assert leave("hold_queues", Holds(), "work") == ("", "work")
    assert leave("delay_queues", PATTERNS["delay_queues"].EXAMPLE, "orders") == ("", "orders")


QUEUE: dict[str, Any] = {
    "name": "delay",
    "arguments": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "work"},
    "messages": 20_000,
}


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({}, ""),
        ({"type": "quorum"}, "is a quorum queue"),
        ({"arguments": {"x-queue-type": "quorum"}}, "is a quorum queue"),
        ({"arguments": {}}, "does not dead-letter to the queue “work” alone"),
        ({"arguments": QUEUE["arguments"] | {"x-max-length": 5}}, "has a length limit"),
        ({"effective_policy_definition": {"max-length-bytes": 5}}, "has a length limit"),
        (
            {"arguments": QUEUE["arguments"] | {"x-single-active-consumer": True}},
            "x-single-active-consumer",
        ),
        ({"consumers": 1}, "has consumers"),
        ({"consumers": 1, "consumer_details": []}, ""),
        ({"messages": 20_001}, "more than 20\u202f000 messages"),
        ({"message_bytes": 10**9}, "or 256 MB"),
    ],
)
def test_a_queue_whose_messages_could_not_be_put_back_is_not_read(
    more: dict[str, Any], why: str
) -> None:
    found = unreadable(QUEUE | more, "work")
    assert why in found if why else not found
