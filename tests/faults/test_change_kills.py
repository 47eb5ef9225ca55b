"""Workers and brokers that are killed while they change messages: exactly those change."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import quote

import pytest
from pytest_django import Settings

from analytics.models import ScheduledMessage
from delayboard.changes.intercept import PREFETCH
from delayboard.changes.request import request
from delayboard.changes.take import trip_of
from delayboard.demo.node import PrivateNode
from delayboard.models import (
    ChangeKind,
    ChangeState,
    Interception,
    InterceptionState,
    ScheduledChange,
)
from tests.brokers import Vhost, call_api, every_generation
from tests.builders import address_of, applied_levels, eventually
from tests.faults.forking import forked_call
from tests.faults.nodes import vhost_of
from tests.real_broker.changing import (
    Arrivals,
    all_closed,
    consuming,
    delay,
    expire_leases,
    intercept_until_killed,
    is_in_order,
    states,
    times,
    traffic,
)
from topology.broker.amqp.consumer import getter
from topology.broker.management.client import Management
from topology.broker.management.observe import observe
from topology.definitions import Arguments, Binding, Definitions, Exchange, Queue
from topology.message import Headers
from topology.models import Topology, Work
from topology.patterns.delay_levels.params import Params, delivery_name

pytestmark = pytest.mark.django_db(transaction=True)
QUEUES = ("orders", "bills", "mäils")
# As of what comes without a delay.
KEYS = {queue: queue for queue in QUEUES}
# What the connections of an interception are called.
OWN = tuple(f"delayboard {name} of " for name in ("forwarder", "consumer", "copies"))
# As in the product: a worker or a broker that starts again takes some of it.
LEAD_SECONDS = 10.0
LEVELS = Params("own", "shop", 12, timedelta(milliseconds=50), "quorum")
# Their programs bind queues again, and Celery's each queue twice.
CLIENTS = {
    "Celery": Params("celery", destinations="exchanges"),
    "NServiceBus": Params("nsb-v2"),
    "NServiceBus, conventional routing": Params("nsb-v2", destinations="exchanges"),
}


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in times(LEAD_SECONDS):
        monkeypatch.setattr(module, name, value)


@pytest.fixture(autouse=True)
def event_log(settings: Settings, tmp_path: Path) -> None:
    settings.EVENT_LOG = tmp_path / "log"


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def bind(management: Management, *queues: str, params: Params = LEVELS) -> None:
    """`orders` twice, as kombu binds a queue: what is sent without a delay matches both."""
    delivery, kind = delivery_name(params), Arguments({"x-queue-type": params.queue_type})
    for name in queues:
        management.declare_queue(Queue(name, arguments=kind))
        source, keys = delivery, [f"#.{name}", *([name] if name == "orders" else [])]
        if params.destinations == "exchanges":
            is_celery = params.preset == "celery"
            management.declare_exchange(Exchange(name, "topic" if is_celery else "fanout"))
            management.bind(Binding(delivery, name, f"#.{name}", destination_is_queue=False))
            source, keys = name, [f"#.{name}", name] if is_celery else [""]
        for key in keys:
            management.bind(Binding(source, name, key))


@dataclass
class Changed:
    """Messages by their ids, and those of them that are changed."""

    rows: dict[str, ScheduledMessage]
    cancelled: list[ScheduledMessage] = field(default_factory=list)
    moved: list[ScheduledMessage] = field(default_factory=list)
    hurried: list[ScheduledMessage] = field(default_factory=list)

    def choose(self, number: int) -> None:
        """So many of each kind, at random."""
        chosen = iter(random.sample(list(self.rows.values()), 3 * number))
        for some in (self.cancelled, self.moved, self.hurried):
            some += [next(chosen) for _ in range(number)]

    def request(self, new_due_at: datetime) -> None:
        for some, kind, at in (
            (self.cancelled, ChangeKind.CANCEL, None),
            (self.moved, ChangeKind.RESCHEDULE, new_due_at),
            (self.hurried, ChangeKind.DELIVER_NOW, None),
        ):
            verdicts = request(None, some, kind, at)
            assert [verdict.problem for verdict in verdicts] == [""] * len(some)

    @property
    def dues(self) -> dict[str, datetime]:
        return {row.key: row.due_at for row in self.rows.values() if row.due_at}

    def wanted(self, queue: str) -> set[str]:
        """The ids that come to this queue."""
        gone = {row.key for row in self.cancelled}
        rows = self.rows.values()
        return {row.key for row in rows if row.destination == queue and row.key not in gone}


def start(stack: ExitStack, name: str) -> ExitStack:
    """A process that does what is requested; to close it kills it."""
    own = stack.enter_context(ExitStack())
    own.enter_context(forked_call(intercept_until_killed, name, LEAD_SECONDS))
    return own


def test_kills_of_a_worker_at_any_moment_change_exactly_the_chosen_messages(vhost: Vhost) -> None:
    change_during_kills(vhost, messages=60, changes=6, rate=50, kills=3, workers_number=1)


@pytest.mark.long
@every_generation
@pytest.mark.parametrize("workers_number", [1, 2])
def test_many_kills_and_messages(vhost: Vhost, workers_number: int) -> None:
    change_during_kills(
        vhost, messages=2000, changes=50, rate=500, kills=20, workers_number=workers_number
    )


@pytest.mark.long
@every_generation
def test_many_closed_connections_change_exactly_the_chosen_messages(
    vhost: Vhost, broker_node: PrivateNode
) -> None:
    closed = 0

    def close(_: dict[str, ExitStack]) -> None:
        nonlocal closed
        is_closed = eventually(
            lambda: close_connection(broker_node, vhost) or (all_closed() and "all changes ended"),
            "a connection of the worker",
        )
        closed += is_closed is True

    change_during_kills(
        vhost, messages=2000, changes=50, rate=500, kills=20, workers_number=1, kill=close
    )
    print(f"{closed} connections closed")
    assert closed >= 10


def close_connection(node: PrivateNode, vhost: Vhost) -> bool:
    """Have the broker close a connection of an interception; False when it reports none."""
    found = [
        str(one["name"])
        for one in call_api(node, "GET", f"vhosts/{vhost.name}/connections")
        if one.get("client_properties", {}).get("connection_name", "").startswith(OWN)
    ]
    if found:
        with suppress(HTTPError):
            call_api(node, "DELETE", f"connections/{quote(random.choice(found), safe='')}")
            return True
    return False


def kill_worker(running: dict[str, ExitStack]) -> None:
    """One of them, and start another."""
    name = random.choice(list(running))
    stack = running.pop(name)
    stack.close()
    expire_leases(name)
    running[f"after {name}"] = start(stack, f"after {name}")


def change_during_kills(
    vhost: Vhost,
    *,
    messages: int,
    changes: int,
    rate: float,
    kills: int,
    workers_number: int,
    kill: Callable[[dict[str, ExitStack]], None] = kill_worker,
) -> None:
    topology, before = apply(vhost, LEVELS)
    first = 18 + messages / 25
    last = first + max(6.0, kills * 1.5)
    waits = [random.uniform(first, last) for _ in range(messages)]
    with (
        consuming(vhost, QUEUES) as arrived,
        traffic(vhost, delivery_name(LEVELS), KEYS.values(), rate=rate) as sent,
        ExitStack() as stack,
    ):
        running = {f"worker-{n}": start(stack, f"worker-{n}") for n in range(workers_number)}
        wanted = [(f"m{n}", QUEUES[n % 3], seconds(wait)) for n, wait in enumerate(waits)]
        changed = Changed(delay(topology, vhost, wanted, with_id_header=["orders"]))
        changed.choose(changes)
        later = max(changed.dues.values()) + seconds(5)
        changed.request(later)
        is_open = Interception.objects.exclude(state=InterceptionState.WAITING).exists
        eventually(is_open, "it intercepts", seconds=60 + first)
        for _ in range(kills):
            time.sleep(random.uniform(0.1, 2 * (last - first + 6) / kills))
            kill(running)
        eventually(all_closed, "the bindings are restored", seconds=120)
        wait_until(later + seconds(1.5))
    # What was on the way to each destination.
    most = kills * len(QUEUES) * PREFETCH
    assert_exact(vhost, changed, arrived, sent, before, most_doubled=most, later=later)


@pytest.mark.long
@every_generation
@pytest.mark.parametrize("kind", ["classic", "quorum"])
@pytest.mark.parametrize("with_id_header", [QUEUES, ()], ids=["id header", "routing key"])
def test_changes_make_no_other_message_late(
    vhost: Vhost, kind: str, with_id_header: tuple[str, ...]
) -> None:
    """By 20 ms at most, of 99 of a hundred, compared with a time without changes."""
    compare_lateness(vhost, replace(LEVELS, queue_type=kind), with_id_header)


@pytest.mark.long
@every_generation
@pytest.mark.parametrize("client", CLIENTS)
def test_changes_among_the_messages_of_a_client_make_no_other_late(
    vhost: Vhost, client: str
) -> None:
    """As above, with the objects, ids and headers of a client; its delays are whole seconds."""
    compare_lateness(vhost, CLIENTS[client], QUEUES)


def compare_lateness(vhost: Vhost, params: Params, with_id_header: tuple[str, ...]) -> None:
    topology, before = apply(vhost, params)
    undisturbed = change_in_traffic(vhost, topology, before, with_id_header, changes=0)
    disturbed = change_in_traffic(vhost, topology, before, with_id_header, changes=50)
    print(f"99th percentile {undisturbed * 1000:.1f} ms, with changes {disturbed * 1000:.1f} ms")
    assert disturbed - undisturbed <= 0.020, (disturbed, undisturbed)


def change_in_traffic(
    vhost: Vhost,
    topology: Topology,
    before: Definitions,
    with_id_header: tuple[str, ...],
    *,
    changes: int,
) -> float:
    """The 99th percentile of the lateness (seconds) of all that are not changed, 2,000 of them
    delayed, among 500 others a second."""
    sent_at: dict[str, datetime] = {}
    with (
        consuming(vhost, QUEUES) as arrived,
        traffic(vhost, delivery_name(topology.parsed), KEYS.values(), rate=500, at=sent_at) as sent,
        forked_call(intercept_until_killed, "worker", LEAD_SECONDS),
    ):
        waits = [random.uniform(84, 94) for _ in range(2000)]
        wanted = [(f"m{n}", QUEUES[n % 3], seconds(wait)) for n, wait in enumerate(waits)]
        changed = Changed(delay(topology, vhost, wanted, with_id_header=with_id_header))
        changed.choose(changes)
        later = max(changed.dues.values()) + seconds(5)
        changed.request(later)
        wait_until(later + seconds(5))
        eventually(all_closed, "the bindings are restored", seconds=120)
    assert_exact(vhost, changed, arrived, sent, before, most_doubled=0, later=later)
    ScheduledMessage.objects.all().delete()
    touched = {row.key for row in (*changed.cancelled, *changed.moved, *changed.hurried)}
    begun, due_at = min(changed.dues.values()), {**sent_at, **changed.dues}
    late = sorted(
        (at - due_at[name]).total_seconds()
        for came in arrived.by_queue.values()
        for name, at in came
        if name not in touched and begun <= due_at[name] <= later
    )
    return late[len(late) * 99 // 100]


@pytest.mark.long
@every_generation
def test_a_full_destination_and_a_deleted_one_hold_up_only_their_own_messages(
    vhost: Vhost,
) -> None:
    """`orders` refuses messages until it is consumed, `bills` is deleted and declared again.

    With ten messages: tests/real_broker/test_changes.py.
    """
    messages, changes = 1000, 30
    topology = applied_levels(vhost, LEVELS)
    full = Arguments({"x-queue-type": "quorum", "x-max-length": 5, "x-overflow": "reject-publish"})
    with Management(address_of(vhost)) as management, ExitStack() as stack:
        management.declare_queue(Queue("orders", arguments=full))
        management.bind(Binding(delivery_name(LEVELS), "orders", "#.orders"))
        bind(management, "bills", "mäils")
        before = observe(management).declared
        arrived = stack.enter_context(consuming(vhost, ["mäils"]))
        key = KEYS["mäils"]
        sent = stack.enter_context(traffic(vhost, delivery_name(LEVELS), [key], rate=500))
        start(stack, "worker")
        first = 14 + messages / 12
        # `bills` is deleted long before any of its messages is due: a queue takes them with it.
        waits = {"orders": first, "mäils": first, "bills": first + 30}
        wanted = [
            (f"m{n}", queue, seconds(random.uniform(waits[queue], waits[queue] + 6)))
            for n in range(messages)
            for queue in (QUEUES[n % 3],)
        ]
        # The others of `orders` pass the worker too, once the queue is full.
        changed = Changed(delay(topology, vhost, wanted, with_id_header=["orders"]))
        changed.choose(changes)
        # Copies that are refused fail, and their messages arrive.
        due = [row for row in changed.hurried if row.destination == "mäils"]
        changed.hurried, later = due, max(changed.dues.values()) + seconds(10)
        changed.request(later)
        opened = Interception.objects.filter(queue="bills", state=InterceptionState.OPEN)
        eventually(opened.exists, "it is intercepted", seconds=90 + first)
        management.delete_queue("bills", only_if_empty=False)
        for words in ("does not exist", "refuses messages"):
            reported = Work.objects.filter(error__contains=words)
            eventually(reported.exists, words, seconds=60)
        # Whoever binds it again has messages take both ways: the worker binds it at the end.
        management.declare_queue(Queue("bills", arguments=Arguments({"x-queue-type": "quorum"})))
        late = stack.enter_context(consuming(vhost, ["orders", "bills"]))
        eventually(all_closed, "the bindings are restored", seconds=240)
        wait_until(later + seconds(3))
        assert observe(management).declared == before
    states_of = ScheduledChange.objects.values_list("state", flat=True)
    assert set(states_of) == {ChangeState.DONE}
    for queue, came in (("mäils", arrived), ("orders", late), ("bills", late)):
        names = came.ids(queue)
        own = set(sent[key]) if queue == "mäils" else set()
        assert set(names) == changed.wanted(queue) | own
        # A queue that is deleted may have taken what it did not confirm.
        assert came.doubled(queue).total() <= (PREFETCH if queue == "bills" else 0)
    for row in changed.moved:
        came = arrived if row.destination == "mäils" else late
        assert came.at(row.destination, row.key) >= later


def apply(vhost: Vhost, params: Params) -> tuple[Topology, Definitions]:
    """The levels with a queue for each destination, and what is declared then."""
    topology = applied_levels(vhost, params)
    with Management(address_of(vhost)) as management:
        bind(management, *QUEUES, params=params)
        return topology, observe(management).declared


def assert_exact(
    vhost: Vhost,
    changed: Changed,
    arrived: Arrivals,
    sent: dict[str, list[str]],
    before: Definitions,
    *,
    most_doubled: int,
    later: datetime,
) -> None:
    """The chosen messages changed, all others came once and in order, and the bindings are back."""
    assert_changed(changed)
    with Management(address_of(vhost)) as management:
        assert observe(management).declared == before
    doubled = 0
    for queue in QUEUES:
        names = arrived.ids(queue)
        assert set(names) == changed.wanted(queue) | set(sent[KEYS[queue]])
        doubled += arrived.doubled(queue).total()
        others = [name for name in dict.fromkeys(names) if name.startswith("t")]
        assert sorted(others) == sent[KEYS[queue]]
        assert is_in_order(others, queue)
    assert doubled <= most_doubled
    for row in changed.moved:
        assert arrived.at(row.destination, row.key) >= later


def wait_until(at: datetime) -> None:
    time.sleep(max(0.0, (at - datetime.now(UTC)).total_seconds()))


def assert_changed(changed: Changed) -> None:
    errors = ScheduledChange.objects.exclude(state=ChangeState.DONE).values_list("kind", "error")
    assert Counter(errors) == {}
    assert Counter(states().values()) == Counter({ChangeState.DONE: 3 * len(changed.cancelled)})


@pytest.mark.parametrize("node", ["4.3"], indirect=True)
def test_a_kill_of_the_broker_changes_exactly_the_chosen_messages(node: PrivateNode) -> None:
    change_during_broker_kills(node, messages=60, changes=6, kills=1)


@pytest.mark.long
def test_many_kills_of_the_broker(node: PrivateNode) -> None:
    change_during_broker_kills(node, messages=2000, changes=50, kills=20)


def change_during_broker_kills(
    node: PrivateNode, *, messages: int, changes: int, kills: int
) -> None:
    """Nobody consumes meanwhile: what a queue delivers after a kill may come once more.

    A level that dead-letters at least once publishes again what had no confirm at a kill, without
    a mark, whether Delayboard runs or not.
    """
    vhost = vhost_of(node, "quorum")
    topology, before = apply(vhost, LEVELS)
    with ExitStack() as stack:
        start(stack, "worker")
        first = 18 + messages / 25
        waits = [random.uniform(first, first + 4 + 3 * kills) for _ in range(messages)]
        wanted = [(f"m{n}", QUEUES[n % 3], seconds(wait)) for n, wait in enumerate(waits)]
        changed = Changed(delay(topology, vhost, wanted))
        changed.choose(changes)
        later = max(changed.dues.values()) + seconds(10)
        changed.request(later)
        # What is due while the broker is down, and was not intercepted before, arrives unchanged.
        closed = Interception.objects.filter(
            state__in=(InterceptionState.WAITING, InterceptionState.BEGINNING)
        )
        eventually(lambda: not closed.exists(), "it intercepts", seconds=60 + first)
        for _ in range(kills):
            time.sleep(random.uniform(1, 4))
            node.kill()
            node.start()
        eventually(all_closed, "the bindings are restored", seconds=300)
        wait_until(later + seconds(3))
    assert_changed(changed)
    with Management(address_of(vhost)) as management:
        assert observe(management).declared == before
    arrived = Arrivals({queue: [] for queue in QUEUES})
    cancelled = {row.key for row in changed.cancelled}
    taken: list[tuple[str, Headers]] = []

    def is_complete(queue: str) -> bool:
        with getter(address_of(vhost), queue) as source:
            while delivery := source.get():
                source.ack([delivery.tag])
                arrived.add(queue, delivery)
                if delivery.message.properties.message_id in cancelled:
                    taken.append((trip_of(delivery.message), delivery.message.headers))
        return set(arrived.ids(queue)) >= changed.wanted(queue)

    for queue in QUEUES:
        # A quorum queue publishes a dead letter again when three minutes brought no confirm.
        eventually(partial(is_complete, queue), f"all came to {queue}", seconds=240)
        assert not taken, list(ScheduledChange.objects.values_list("key", "trip", "ended_at"))
        assert set(arrived.ids(queue)) == changed.wanted(queue)
        assert arrived.doubled(queue, unmarked=kills).total() <= kills * PREFETCH
