"""What tests of changed messages share: delayed messages as rows and in a broker, and workers."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from threading import Event, Thread
from types import ModuleType
from typing import Any

import pytest
from django.db import connection as database
from django.db import transaction
from django.db.models import Sum
from django.db.models.functions import Now

from analytics.models import ScheduledBody, ScheduledMessage
from analytics.recorder.copies import content_of
from delayboard.changes import carry_out, check, intercept, take
from delayboard.changes import request as requesting
from delayboard.models import Interception, InterceptionState, ScheduledChange
from delayboard.worker.tasks import IDLE_SECONDS
from tests.brokers import Vhost
from tests.builders import address_of
from tests.publishing import publisher
from topology import work
from topology.broker.amqp.consumer import Consumer
from topology.broker.amqp.frames import Delivery
from topology.broker.amqp.pipeline import pipeline
from topology.broker.errors import BrokerError
from topology.broker.properties.read import build_properties
from topology.message import DOUBLED_HEADER, Message, Publish
from topology.models import Topology, Work

# Of each delayed message, beside its id.
STATED: Mapping[str, Any] = {
    "delivery_mode": 2,
    "priority": 3,
    "reply_to": "answers",
    "timestamp": 1_700_000_000,
    "type": "order",
}


def times(lead_seconds: float) -> Sequence[tuple[ModuleType, str, object]]:
    """An interception begins so long before the due time, and ends soon after."""
    lead, horizon = timedelta(seconds=lead_seconds), timedelta(seconds=lead_seconds + 1)
    return (
        (check, "LEAD", lead),
        (requesting, "LEAD", lead),
        (check, "SHORTEST_NOTICE", timedelta(seconds=0.5)),
        (take, "GRACE", timedelta(seconds=15)),
        (intercept, "LEAD", lead),
        (intercept, "HORIZON", horizon),
        (carry_out, "HORIZON", horizon),
        (intercept, "REPORT_SECONDS", 1.5),
    )


LEAD_SECONDS = 6.0


@pytest.fixture
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in times(LEAD_SECONDS):
        monkeypatch.setattr(module, name, value)


def intercept_until_killed(owner: str, lead_seconds: float) -> int:
    """As the background tasks of a worker; a process of its own."""
    for module, name, value in times(lead_seconds):
        setattr(module, name, value)
    with working(owner=owner):
        Event().wait()
    return 0


def delay(
    topology: Topology,
    vhost: Vhost,
    delays: Iterable[tuple[str, str, timedelta]],
    *,
    with_id_header: Collection[str] = (),
) -> dict[str, ScheduledMessage]:
    """Publish messages (id, destination, delay), and store what a recorder would have.

    Those for the destinations `with_id_header` have their id in a header too. Tasks of Celery have
    no message id: their rows are by the hash of their content.
    """
    is_task = getattr(topology.parsed, "preset", "") == "celery"
    pattern, params = topology.pattern, topology.parsed
    published = []
    with publisher(address_of(vhost), "test") as channel:
        for name, destination, wait in delays:
            route = pattern.route(params, wait, destination)
            headers = {"NServiceBus.MessageId": name} if destination in with_id_header else {}
            ids = {"message_id": name}
            if is_task:
                headers, ids = {"id": name, "task": "work"}, {"correlation_id": name}
            properties = build_properties(headers, **ids, **STATED)
            body = name.encode()
            channel.publish_by(route, Publish(route.exchange, route.routing_key, properties, body))
            message = Message(route.exchange, route.routing_key, properties, body)
            wait = pattern.achievable(params, wait)
            published.append((message, destination, wait, datetime.now(UTC)))
    with transaction.atomic():
        return {row.key: row for row in (store(topology, *one) for one in published)}


def store(
    topology: Topology,
    message: Message,
    destination: str,
    wait: timedelta,
    at: datetime | None = None,
) -> ScheduledMessage:
    now = at or datetime.now(UTC)
    name = message.properties.message_id or ""
    content = content_of(message)
    row = ScheduledMessage.objects.create(
        broker=topology.broker,
        topology=topology,
        key=name or content,
        message_id=name,
        correlation_id=message.properties.correlation_id or "",
        content_id=content,
        attempt=1,
        requested_delay=wait,
        entered_at=now,
        due_at=now + wait,
        destination=destination,
        exchange=message.exchange,
        routing_key=message.routing_key,
        size=len(message.body),
        headers_json=json.dumps(message.headers),
    )
    kept = {"body": message.body, "properties": message.properties.raw}
    ScheduledBody.objects.create(message=row, **kept)
    return row


def attend_to_all(owner: str, stop: Event) -> None:
    """As a worker does; an error is tried again."""
    while not stop.is_set():
        for row in Interception.objects.exclude(state=InterceptionState.CLOSED):
            claimed = work.claim_this(row.work, owner)
            if claimed is not None:
                try:
                    work.attempt(intercept.attend, claimed, stop=stop)
                except BrokerError:
                    stop.wait(0.2)
        stop.wait(IDLE_SECONDS / 2)


@contextmanager
def working(number: int = 4, *, owner: str = "worker") -> Iterator[None]:
    """So many threads that do what is requested, for the length of the block."""
    stop, failed = Event(), list[BaseException]()

    def run(name: str) -> None:
        try:
            attend_to_all(name, stop)
        except BaseException as error:
            failed.append(error)
        finally:
            database.close()

    threads = [Thread(target=run, args=(f"{owner} {i}",), daemon=True) for i in range(number)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    assert not failed, failed


def expire_leases(owner: str = "") -> None:
    """As if the time of its leases had passed since their holder died."""
    rows = Work.objects.filter(kind=requesting.KIND, owner__startswith=owner)
    rows.update(leased_until_at=Now())


def is_in_order(arrived: Sequence[str], queue: str) -> bool:
    """Whether only messages came after a younger one that the row of their interception counts.

    The ids are in order. A binding is restored in a pause of the messages, which on a busy machine
    is over before the broker has done it.
    """
    newest = list(accumulate(arrived, max))
    late = sum(name < before for name, before in zip(arrived, newest, strict=True))
    counted = Interception.objects.filter(queue=queue).aggregate(Sum("overtaken"))
    return late <= (counted["overtaken__sum"] or 0)


def all_closed() -> bool:
    return not Interception.objects.exclude(state=InterceptionState.CLOSED).exists()


def states() -> dict[str, str]:
    return dict(ScheduledChange.objects.values_list("key", "state"))


@dataclass
class Arrivals:
    """What came into queues, by queue and in order, with the moment it came."""

    by_queue: dict[str, list[tuple[str, datetime]]] = field(default_factory=dict)
    # How often one came that may have come before, by its header.
    marked: Counter[str] = field(default_factory=Counter)
    # The properties of the last with each id, beside its headers.
    stated: dict[str, dict[str, Any]] = field(default_factory=dict)

    def ids(self, queue: str) -> list[str]:
        return [name for name, _ in self.by_queue[queue]]

    def at(self, queue: str, name: str) -> datetime:
        return next(at for one, at in self.by_queue[queue] if one == name)

    def add(self, queue: str, one: Delivery) -> None:
        name = one.message.properties.message_id or one.message.body.decode()
        if "task" in one.message.headers:
            name = content_of(one.message)
        self.marked[name] += DOUBLED_HEADER in one.message.headers
        self.stated[name] = one.message.properties.stated()
        self.by_queue[queue].append((name, one.received_at))

    def doubled(self, queue: str, *, unmarked: int = 0) -> Counter[str]:
        """Which came more than once, and how often more; all copies but the first are marked.

        So many may be `unmarked`, where the broker itself publishes again.
        """
        again = Counter(self.ids(queue)) - Counter(set(self.ids(queue)))
        assert (again - self.marked).total() <= unmarked, again - self.marked
        return again

    @property
    def number(self) -> int:
        return sum(map(len, self.by_queue.values()))


@contextmanager
def consuming(vhost: Vhost, queues: Iterable[str]) -> Iterator[Arrivals]:
    """Consume these queues for the length of the block."""
    stop, found = Event(), Arrivals()
    threads = []
    for queue in queues:
        found.by_queue[queue] = []
        run = _reader(vhost, queue, found, stop)
        threads.append(Thread(target=run, daemon=True))
        threads[-1].start()
    try:
        yield found
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)


def _reader(vhost: Vhost, queue: str, found: Arrivals, stop: Event) -> Callable[[], None]:
    def run() -> None:
        with Consumer(address_of(vhost), queue) as consumer:
            while not stop.is_set():
                for one in consumer.batch(limit=100, limit_bytes=10**7, wait=0.2, linger=0):
                    consumer.ack(through=one.tag)
                    found.add(queue, one)

    return run


@contextmanager
def traffic(
    vhost: Vhost,
    exchange: str,
    keys: Iterable[str],
    *,
    rate: float,
    at: dict[str, datetime] | None = None,
) -> Iterator[dict[str, list[str]]]:
    """Messages that nobody changes, so many a second in all, with a pause of half a second after
    each two seconds; their ids by key, in order. `at` gets the moment of each.
    """
    sent: dict[str, list[str]] = {key: [] for key in keys}
    stop = Event()

    def run() -> None:
        number = 0
        with pipeline(address_of(vhost), "traffic") as channel:

            def collect_until(moment: float, is_over: Callable[[], bool]) -> None:
                while (left := moment - time.monotonic()) > 0 and not is_over():
                    for _, answer in channel.answers(min(left, 0.1)):
                        assert answer.kind == "confirmed", answer

            begun = time.monotonic()
            while not stop.is_set():
                for key, names in sent.items():
                    name = f"t{number:06}"
                    number += 1
                    properties = build_properties({}, message_id=name, delivery_mode=2)
                    if at is not None:
                        at[name] = datetime.now(UTC)
                    channel.publish(Publish(exchange, key, properties, name.encode()), name)
                    names.append(name)
                if number % round(2 * rate) < len(sent):
                    begun += 0.5
                    collect_until(time.monotonic() + 0.5, stop.is_set)
                # Also where it is late, so that the broker gets them.
                moment = max(begun + number / rate, time.monotonic() + 0.001)
                collect_until(moment, stop.is_set)
            collect_until(time.monotonic() + 30, lambda: not channel.in_flight)
            assert not channel.in_flight

    thread = Thread(target=run, daemon=True)
    thread.start()
    try:
        yield sent
    finally:
        stop.set()
        thread.join(60)
