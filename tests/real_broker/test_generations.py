"""Where the generations of RabbitMQ differ, and Delayboard depends on how."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import pytest

from delayboard.dead_letters.parked.consume import limits_of, make_store
from delayboard.dead_letters.queues import peek
from tests.brokers import Vhost, every_generation
from tests.builders import address_of, eventually, make_broker
from tests.publishing import publisher
from topology.broker.amqp.consumer import Consumer, getter
from topology.broker.amqp.frames import Delivery
from topology.broker.errors import Conflict, Unsupported
from topology.broker.management.client import Management
from topology.broker.management.observe import observe
from topology.broker.properties.read import build_properties
from topology.deaths import newest_death, read_history
from topology.definitions import Arguments, Binding, Exchange, Queue
from topology.message import Message, Publish
from topology.routing.context import delivery_limit
from topology.snapshot import QueueNumbers, Snapshot

pytestmark = every_generation

# x-death's time is in whole seconds.
SECOND_APART_MS = 1100
# The 21st look at a message destroys it where a look counts as a failed delivery.
LOOKS = 25


@pytest.fixture
def management(vhost: Vhost) -> Iterator[Management]:
    with Management(address_of(vhost)) as session:
        yield session


def send(vhost: Vhost, queue: str, *message_ids: str) -> None:
    with publisher(address_of(vhost), "test") as channel:
        for message_id in message_ids:
            properties = build_properties(
                {"tenant": 42}, message_id=message_id, content_type="text/plain", delivery_mode=2
            )
            channel.publish(Publish("", queue, properties, b"body of " + message_id.encode()))


def next_message(consumer: Consumer) -> Delivery:
    (delivery,) = consumer.batch(limit=1, limit_bytes=10_000, wait=60, linger=0)
    return delivery


def make_ladder(management: Management, rungs: Sequence[str], ttl_ms: int) -> None:
    """A queue `work` whose rejected messages go to the exchange `retry`; rungs lead back."""
    management.declare_exchange(Exchange("retry"))
    dies = Arguments({"x-dead-letter-exchange": "retry"})
    management.declare_queue(Queue("work", arguments=dies))
    back = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "work"}
    for rung in rungs:
        waits = Arguments({"x-message-ttl": ttl_ms, **back})
        management.declare_queue(Queue(rung, arguments=waits))


def climb(vhost: Vhost, management: Management, rungs: Sequence[str]) -> Message:
    """Reject the message of `work` into one rung after the other; return how it came back."""
    with Consumer(address_of(vhost), "work", prefetch=1) as consumer:
        came = next_message(consumer)
        for rung in rungs:
            leads = Binding("retry", rung, "work")
            management.bind(leads)
            consumer.reject(came)
            came = next_message(consumer)
            management.unbind(leads)
        consumer.ack(through=came.tag)
    return came.message


def quorum_parked_messages(vhost: Vhost, management: Management) -> tuple[Queue, Snapshot]:
    """A quorum queue with three messages, as a fresh snapshot shows it."""
    arguments = Arguments({"x-queue-type": "quorum"})
    management.declare_queue(Queue("parked_messages", arguments=arguments))
    send(vhost, "parked_messages", "m0", "m1", "m2")
    snapshot = observe(management)
    found = snapshot.definitions.queue("parked_messages")
    assert found is not None
    return found, snapshot


def as_it_is(look: peek.Peek, count: str = "x-acquired-count") -> list[tuple[object, ...]]:
    """What was seen, in order, without the broker's own count of looks."""
    return [
        (
            parked_message.handle,
            parked_message.message.body,
            parked_message.message.properties.stated(),
            {k: v for k, v in parked_message.message.headers.items() if k != count},
        )
        for parked_message in look.peeked_messages
    ]


def ids_in(vhost: Vhost, queue: str) -> list[str | None]:
    """Take everything from the queue; return the message ids in order."""
    ids = []
    with getter(address_of(vhost), queue) as source:
        while delivery := source.get():
            ids.append(delivery.message.properties.message_id)
            source.ack([delivery.tag])
    return ids


def version_of(management: Management) -> tuple[int, ...]:
    return observe(management).version_tuple


def test_the_order_of_x_death_differs_and_the_history_does_not(
    vhost: Vhost, management: Management
) -> None:
    rungs = ("rung-1", "rung-2")
    make_ladder(management, rungs, ttl_ms=SECOND_APART_MS)
    send(vhost, "work", "m1")
    message = climb(vhost, management, rungs)
    older = ["rung-1", "work"] if version_of(management) < (4, 0) else ["work", "rung-1"]
    assert [entry["queue"] for entry in message.headers["x-death"]] == ["rung-2", *older]
    history = read_history(message.headers)
    assert [(d.queue, d.count) for d in history.deaths] == [
        ("work", 2),
        ("rung-1", 1),
        ("rung-2", 1),
    ]
    assert history.problems == ()


def test_the_newest_death_is_known_with_and_without_the_headers_that_name_it(
    vhost: Vhost, management: Management
) -> None:
    make_ladder(management, ["rung"], ttl_ms=50)
    send(vhost, "work", "m1")
    message = climb(vhost, management, ["rung"])
    assert ("x-last-death-queue" in message.headers) == (version_of(management) >= (4, 0))
    assert newest_death(message.headers) == ("rung", "expired")


def test_a_rejected_parked_message_that_lay_in_a_queue_bears_the_redelivered_mark_from_4_3_on(
    vhost: Vhost, management: Management
) -> None:
    """The mark is no sign there that somebody read the message before."""
    make_ladder(management, [], ttl_ms=0)
    management.declare_queue(Queue("dead"))
    management.bind(Binding("retry", "dead", "work"))
    send(vhost, "work", "m1")
    with Consumer(address_of(vhost), "work") as consumer:
        consumer.reject(next_message(consumer))

    def got() -> Delivery | None:
        with getter(address_of(vhost), "dead") as source:
            return source.get()

    parked_message = eventually(got, "the rejected message is in the queue dead")
    assert parked_message.message.redelivered == (version_of(management) >= (4, 3))


def test_a_look_into_a_quorum_queue_harms_nothing_or_is_refused(
    db: None, vhost: Vhost, management: Management
) -> None:
    queue, snapshot = quorum_parked_messages(vhost, management)
    broker = make_broker(vhost)
    version = snapshot.version_tuple
    if version < (4, 0):
        with pytest.raises(Unsupported, match="to the end of the queue"):
            peek.peek_queue(broker, queue, snapshot)
    else:
        store = make_store(broker, queue.name, None)
        first = peek.peek_queue(broker, queue, snapshot, store=store)
        for _ in range(LOOKS):
            try:
                again = peek.peek_queue(broker, queue, snapshot, store=store)
            except Unsupported as refused:
                assert version < (4, 3)
                assert "for consumers" in str(refused)  # noqa: PT017
            else:
                count = "x-acquired-count" if version >= (4, 3) else "x-delivery-count"
                assert as_it_is(again, count) == as_it_is(first, count)
    assert ids_in(vhost, "parked_messages") == ["m0", "m1", "m2"]


def test_what_a_refused_look_would_have_done(vhost: Vhost, management: Management) -> None:
    """Why a quorum queue is not looked into before 4.3: order on 3.x, the messages on 4.0."""
    quorum_parked_messages(vhost, management)
    version = version_of(management)
    for _ in range(LOOKS):
        with getter(address_of(vhost), "parked_messages") as source:
            source.get()
    left = ids_in(vhost, "parked_messages")
    if version < (4, 0):
        assert left == ["m1", "m2", "m0"]
    elif version < (4, 3):
        assert left == ["m1", "m2"]
    else:
        assert left == ["m0", "m1", "m2"]


def test_the_numbers_that_the_pages_show_are_in_every_versions_answer(
    vhost: Vhost, management: Management
) -> None:
    """From 4.0 on GET /api/queues has fewer fields than before."""
    management.declare_queue(Queue("counted", arguments=Arguments({"x-message-ttl": 3_600_000})))
    stamped = build_properties(timestamp=1_700_000_000, delivery_mode=2)

    def counted() -> QueueNumbers | None:
        numbers = observe(management).numbers["counted"]
        is_whole = numbers.messages and numbers.head_at and numbers.publish_rate is not None
        return numbers if is_whole else None

    with publisher(address_of(vhost), "test") as channel:
        channel.publish(Publish("", "counted", stamped, b""))
        # A channel that is closed before it told its statistics may take the rate along.
        numbers = eventually(counted, "the statistics show the message, its timestamp and rate")
    assert (numbers.messages, numbers.ready, numbers.unacked, numbers.consumers) == (1, 1, 0, 0)
    assert numbers.publish_rate is not None
    assert numbers.head_at == datetime.fromtimestamp(1_700_000_000, UTC)
    assert numbers.state == "running"


def test_a_quorum_queue_cannot_be_deleted_on_condition(
    vhost: Vhost, management: Management
) -> None:
    quorum_parked_messages(vhost, management)
    with pytest.raises(Conflict, match="if-empty flag set are not supported"):
        management.delete_queue("parked_messages", only_if_empty=True)
    assert ids_in(vhost, "parked_messages") == ["m0", "m1", "m2"]


def test_a_negative_delivery_limit_drops_what_is_put_back_before_4_0(
    vhost: Vhost, management: Management, db: None
) -> None:
    arguments = Arguments({"x-queue-type": "quorum", "x-delivery-limit": -1})
    management.declare_queue(Queue("work", arguments=arguments))
    send(vhost, "work", "m1")
    with getter(address_of(vhost), "work") as channel:
        assert channel.get() is not None
    version = management.version()
    with getter(address_of(vhost), "work") as channel:
        is_left = channel.get() is not None
    assert is_left == (version >= (4, 0))
    assert delivery_limit(Queue("work", arguments=arguments), version) == (None if is_left else 0)
    if version < (4, 0):
        with pytest.raises(Conflict, match="delivery limit 0"):
            limits_of(make_broker(vhost), "work")
    else:
        assert limits_of(make_broker(vhost), "work").deliveries is None
