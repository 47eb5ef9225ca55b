"""Where failed messages end, in what real clients declare and in plain shapes."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

from tests.topology.builders import a_queue, a_snapshot
from topology.broker.management.definitions_file import read_export
from topology.definitions import Binding, BrokerObject, Definitions, Exchange
from topology.patterns.table import PATTERNS
from topology.snapshot import QueueNumbers, Snapshot
from topology.structure.ends import Ends, find_ends

CLIENTS = Path(__file__).parent / "client_definitions"
LEVELS = {f"celery_delayed_{number}" for number in range(28)}


def read_client(name: str) -> Snapshot:
    """What the client declared on RabbitMQ 4.3, as the broker exported it."""
    (snapshot,) = read_export(json.loads((CLIENTS / f"{name}.json").read_text()), "").values()
    return snapshot


def ends_of(*objects: BrokerObject, **consumers: int) -> tuple[Ends, Snapshot]:
    numbers = {name: QueueNumbers(consumers=number) for name, number in consumers.items()}
    snapshot = a_snapshot(Definitions.of(objects), numbers)
    return find_ends(snapshot), snapshot


def names_of(ends: Ends, snapshot: Snapshot) -> tuple[set[str], set[str]]:
    """The dead-letter queues, and those that a hint names."""
    queues = snapshot.definitions.queues
    hinted = {q.name for q in queues if ends.find_hint(q, ends.find_obstacle(q))}
    return {queue.name for queue in queues if ends.is_end(queue)}, hinted


@pytest.mark.parametrize(
    ("client", "delays", "dead", "hinted"),
    [
        ("celery", LEVELS, set(), set()),
        ("dramatiq", {"shop.orders.DQ"}, {"shop.orders.XQ"}, set()),
        ("faststream", {"shop.delay", "shop.retry"}, set(), {"shop.errors"}),
        ("golevelup", {"shop.delay.60000", "shop.delay.120000"}, {"shop.failed"}, set()),
        ("kombu", {"shop.retry", "shop.delay.60000", "shop.delay.120000"}, set(), set()),
        ("rascal", {"delay:1m"}, {"dead_letters:registration_service"}, set()),
        ("taskiq", {"shop.delay"}, {"shop.dead_letter"}, set()),
    ],
)
def test_which_queues_of_a_client_delay_and_in_which_failed_messages_end(
    client: str, delays: set[str], dead: set[str], hinted: set[str]
) -> None:
    snapshot = read_client(client)
    ends = find_ends(snapshot)
    assert ends.delays == delays
    assert names_of(ends, snapshot) == (dead, hinted)


def test_a_ttl_without_a_dead_letter_exchange_deletes_dead_letters_and_delays_nothing() -> None:
    queue = read_client("dramatiq").definitions.queue("shop.orders.XQ")
    assert queue is not None
    assert queue.deletes_after == timedelta(days=7)
    assert a_queue("q", ttl=5, dlx="").deletes_after is None
    assert a_queue("q").deletes_after is None


def test_what_leaves_a_delay_queue_did_not_fail_there() -> None:
    """Although it may be full, or has no TTL of its own."""
    work = a_queue("work")
    full = a_queue("hold", ttl=5000, dlx="", key="work", x_max_length=5)
    untimed = a_queue("delay", dlx="", key="work", type="quorum")
    ends, _ = ends_of(work, full, untimed)
    assert ends.find_obstacle(work) == "end of a delay: receives only expired messages"


def test_what_a_work_queue_with_a_ttl_rejects_ends_even_while_nobody_consumes_it() -> None:
    work, dead = a_queue("orders", ttl=86_400_000, dlx="", key="orders.dlq"), a_queue("orders.dlq")
    for consumers in (0, 1):
        ends, _ = ends_of(work, dead, orders=consumers)
        assert ends.is_end(dead)


def test_failures_that_wait_before_they_arrive_are_a_hint() -> None:
    objects: list[BrokerObject] = [
        Exchange("dlx"),
        a_queue("orders", dlx="dlx", key="later"),
        a_queue("slow", ttl=5000, dlx="", key="graveyard"),
        a_queue("graveyard"),
        Binding("dlx", "slow", "later"),
    ]
    ends, snapshot = ends_of(*objects)
    assert names_of(ends, snapshot) == (set(), {"graveyard"})
    graveyard = a_queue("graveyard")
    hint = ends.find_hint(graveyard, ends.find_obstacle(graveyard))
    assert hint == "receives failed messages of “orders” after a delay"


@pytest.mark.parametrize("kind", PATTERNS)
def test_in_no_delay_or_destination_of_a_pattern_failed_messages_end(kind: str) -> None:
    pattern = PATTERNS[kind]
    snapshot = a_snapshot(pattern.definitions(pattern.EXAMPLE))
    dead, _ = names_of(find_ends(snapshot), snapshot)
    assert not dead & set(pattern.targets(pattern.EXAMPLE))
    assert not dead & {q.name for q in snapshot.definitions.queues if q.message_ttl_ms is not None}


@pytest.mark.parametrize(
    ("client", "work", "parking"),
    [
        ("dramatiq", "shop.orders", ("shop.orders.XQ",)),
        ("golevelup", "shop.orders", ("shop.failed",)),
        ("rascal", "registration_service:user:save", ("dead_letters:registration_service",)),
        ("kombu", "shop.orders", ()),
    ],
)
def test_which_queue_gets_what_the_consumers_of_a_client_give_up(
    client: str, work: str, parking: tuple[str, ...]
) -> None:
    snapshot = read_client(client)
    assert find_ends(snapshot).find_parking(snapshot.definitions, work) == parking
