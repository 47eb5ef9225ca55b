"""Intercepting a queue on real brokers: no message is lost, doubled or overtaken by a switch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from threading import Event, Thread

import pytest

from tests.brokers import Vhost, every_generation
from tests.builders import address_of, eventually
from topology.broker.amqp.consumer import Consumer
from topology.broker.amqp.pipeline import pipeline
from topology.broker.errors import NotFound
from topology.broker.management.client import Management
from topology.broker.management.observe import observe
from topology.broker.properties.read import build_properties
from topology.definitions import Arguments, Binding, Definitions, Exchange, Queue
from topology.message import Publish
from topology.transfer import interception as objects
from topology.transfer.interception import Interception

# As kombu binds a queue: the key `work` matches both.
OLD = (Binding("delivery", "work", "#.work"), Binding("delivery", "work", "work"))
KEYS = ("0.work", "work")


@pytest.fixture(params=["classic", "quorum"])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def management(vhost: Vhost, kind: str) -> Iterator[Management]:
    with Management(address_of(vhost)) as session:
        session.declare_exchange(Exchange("delivery", "topic"))
        for name in ("work", "other"):
            session.declare_queue(Queue(name, arguments=Arguments({"x-queue-type": kind})))
            session.bind(Binding("delivery", name, f"#.{name}"))
        session.bind(OLD[1])
        yield session


def interception(kind: str, limit: timedelta = timedelta(minutes=1)) -> Interception:
    return Interception("delayboard.intercept.test", OLD, kind, limit)


def definitions(management: Management) -> Definitions:
    return observe(management).declared


@contextmanager
def publishing(vhost: Vhost) -> Iterator[list[int]]:
    """Numbers published for the queue without a pause, for the length of the block."""
    stop, numbers, failed = Event(), list[int](), list[BaseException]()

    def run() -> None:
        try:
            with pipeline(address_of(vhost), "test") as channel:
                while not stop.is_set():
                    number = len(numbers)
                    body = str(number).encode()
                    properties = build_properties({}, delivery_mode=2)
                    key = KEYS[number % 2]
                    channel.publish(Publish("delivery", key, properties, body), number)
                    numbers.append(number)
                    while channel.in_flight > 5:
                        assert all(answer.kind == "confirmed" for _, answer in channel.answers(5))
                while channel.in_flight:
                    channel.answers(5)
        except BaseException as error:
            failed.append(error)

    thread = Thread(target=run, daemon=True)
    thread.start()
    try:
        yield numbers
    finally:
        stop.set()
        thread.join(60)
    assert not failed, failed


def read(vhost: Vhost, queue: str, number: int) -> list[int]:
    """The numbers in the queue, of which there are so many."""
    got: list[int] = []
    with Consumer(address_of(vhost), queue) as consumer:
        until = time.monotonic() + 30
        while len(got) < number and time.monotonic() < until:
            for delivery in consumer.batch(limit=500, limit_bytes=10**7, wait=0.5, linger=0):
                consumer.ack(through=delivery.tag)
                got.append(int(delivery.message.body))
        got += [
            int(one.message.body)
            for one in consumer.batch(limit=500, limit_bytes=10**7, wait=0.3, linger=0)
        ]
    return got


@every_generation
def test_an_ordered_intake_gives_back_in_order_what_has_no_ack(
    vhost: Vhost, management: Management, kind: str
) -> None:
    """Also what is on its way to it when it ends: a nack puts that before all others."""
    one = interception(kind)
    objects.begin(one, management, [one.taking_all])
    got: list[int] = []
    with publishing(vhost) as sent:
        for _ in range(20):
            with Consumer(
                address_of(vhost), one.name, prefetch=100, is_ordered=True, in_thread=False
            ) as taking:
                arrived = taking.batch(limit=50, wait=10.0, linger=0)
                taking.ack([], through=arrived[0].tag)
                got += [int(arrival.body) for arrival in arrived[:1]]
                for _ in range(5):
                    taking.attend()
        assert sent
    assert got == sorted(set(got))


@every_generation
def test_switching_to_and_fro_under_traffic_sends_each_message_one_way(
    vhost: Vhost, management: Management, kind: str
) -> None:
    before = definitions(management)
    one = interception(kind)
    with publishing(vhost) as sent:
        for _ in range(5):
            known = len(sent)
            objects.begin(one, management, [one.taking_all])
            eventually(lambda known=known: len(sent) > known + 20, "traffic")  # type: ignore[misc]
            objects.release(one, management)
            objects.restore(one, management)
    ready = depths(management, len(sent))
    passed = read(vhost, "work", ready["work"])
    held = read(vhost, one.name, ready[one.name])
    assert sorted(passed + held) == sent
    assert (passed, held) == (sorted(passed), sorted(held))
    assert held
    objects.remove(one, management)
    assert definitions(management) == before


def depths(management: Management, total: int) -> dict[str, int]:
    """How many are in each queue, once the broker reports them all."""

    def look() -> dict[str, int]:
        found = {str(queue["name"]): int(queue.get("messages", 0)) for queue in management.queues()}
        return found if sum(found.values()) == total else {}

    return eventually(look, "the broker reports all messages")


class Died(Exception):
    """In place of a kill."""


def test_each_step_may_be_the_last_one_of_a_process(
    vhost: Vhost, management: Management, kind: str
) -> None:
    """Whatever was left undone, the next one who begins again comes to the same end."""
    before = definitions(management)
    one = interception(kind)

    def dying_after(steps: int) -> Callable[[], None]:
        left = steps

        def step() -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Died

        return step

    def end() -> None:
        objects.release(one, management)
        objects.restore(one, management)

    number = 0
    with pipeline(address_of(vhost), "test") as channel:

        def publish() -> None:
            nonlocal number
            body, key = str(number).encode(), KEYS[number % 2]
            properties = build_properties({}, delivery_mode=2)
            channel.publish(Publish("delivery", key, properties, body), number)
            number += 1
            assert [answer.kind for _, answer in channel.answers(5)] == ["confirmed"]

        for steps in range(14):
            # One that begins where others ended has fewer steps.
            management.before_change = dying_after(steps)
            with suppress(Died):
                objects.begin(one, management, [one.taking_all])
            publish()
        management.before_change = lambda: None
        objects.begin(one, management, [one.taking_all])
        publish()
        for steps in range(10):
            management.before_change = dying_after(steps)
            with pytest.raises(Died):
                end()
            publish()
        management.before_change = lambda: None
        end()
        ready = depths(management, number)
        got = read(vhost, one.name, ready[one.name])
        for steps in range(4):
            management.before_change = dying_after(steps)
            with pytest.raises(Died):
                objects.remove(one, management)
            publish()
        management.before_change = lambda: None
        objects.remove(one, management)
    got += read(vhost, "work", number - len(got))
    assert sorted(got) == list(range(number))
    assert definitions(management) == before


@every_generation
def test_only_messages_with_a_certain_header_or_key_are_intercepted_and_all_stay_in_order(
    vhost: Vhost, management: Management, kind: str
) -> None:
    """Its value may be a text or bytes."""
    before = definitions(management)
    one = interception(kind)
    with_ids = [one.taking_headers({"id": f"m{n}"}) for n in range(0, 60, 6)]
    objects.begin(one, management, [*with_ids, one.taking_key("3.work")])
    with pipeline(address_of(vhost), "test") as channel:
        for number in range(60):
            name = f"m{number}"
            properties = build_properties({"id": name if number % 12 else name.encode()})
            body = str(number).encode()
            key = f"{number % 20}.work"
            channel.publish(Publish("delivery", key, properties, body), number)
        while channel.in_flight:
            assert all(answer.kind == "confirmed" for _, answer in channel.answers(5))
    taken = [number for number in range(60) if number % 6 == 0 or number % 20 == 3]
    assert read(vhost, one.name, 13) == taken
    assert read(vhost, "work", 47) == [number for number in range(60) if number not in taken]
    objects.release(one, management)
    objects.restore(one, management)
    objects.remove(one, management)
    assert definitions(management) == before


def test_what_nobody_forwards_goes_on_by_itself(
    vhost: Vhost, management: Management, kind: str
) -> None:
    one = interception(kind, timedelta(milliseconds=300))
    objects.begin(one, management, [one.taking_all])
    with pipeline(address_of(vhost), "test") as channel:
        for number in range(100):
            properties = build_properties({}, delivery_mode=2)
            channel.publish(Publish("delivery", "0.work", properties, str(number).encode()), number)
        while channel.in_flight:
            channel.answers(5)
    assert read(vhost, "work", 100) == list(range(100))


def test_a_queue_that_nothing_leads_to_is_not_intercepted(
    vhost: Vhost, management: Management, kind: str
) -> None:
    for binding in OLD:
        management.unbind(binding)
    before = definitions(management)
    with pytest.raises(NotFound, match="has no binding to “delivery” any more"):
        objects.begin(interception(kind), management)
    assert definitions(management) == before
