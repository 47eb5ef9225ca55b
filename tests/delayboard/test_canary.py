"""The first few: how long they are watched, and what follows from what became of them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db.models import F
from django.utils import timezone

from analytics.models import Firehose
from delayboard.dead_letters.replay import batch_state, observers, outcome
from delayboard.models import (
    BackgroundTask,
    BatchState,
    DeadLetterQueue,
    ItemState,
    ParkedMessage,
    ReplayBatch,
    ReplayItem,
)
from delayboard.models.background_task import task_key
from delayboard.models.replay import Order, ReplayOutcome
from tests.delayboard.builders import a_message, parked, shop
from tests.delayboard.replay_rows import a_batch
from tests.topology.builders import a_queue, a_snapshot
from topology import snapshots
from topology.definitions import Binding, BrokerObject, Definitions, Exchange
from topology.models import Broker, State, Topology
from topology.operations.topology_rows import create_topology
from topology.patterns.retry_ladder.pattern import retry_ladder
from topology.snapshot import QueueNumbers, Snapshot

pytestmark = pytest.mark.django_db
SECOND = timedelta(seconds=1)
DIED = "The canary failed: 1 of the first 2 were dead-lettered again."
CONSUMED = {"orders": QueueNumbers(consumers=1)}

RETRIES = Definitions.of(
    [
        Exchange("orders"),
        a_queue("orders", dlx="retry", key="orders", ttl=3_600_000),
        Exchange("retry", "fanout"),
        a_queue("wait-1", dlx="", key="wait-2", ttl=1000),
        a_queue("wait-2", dlx="orders", key="orders", ttl=2000),
        a_queue("wait-long", dlx="orders", key="orders", ttl=30_000),
        a_queue("dead", ttl=9_000_000, dlx="archive"),
        Binding("orders", "orders", "orders"),
        Binding("retry", "wait-1", ""),
        Binding("retry", "wait-long", ""),
        Binding("retry", "dead", ""),
    ]
)


def seen(definitions: Definitions, **changes: Any) -> Snapshot:
    return a_snapshot(definitions, CONSUMED, **changes)


def watching(broker: Broker, *states: ItemState, **stated: Any) -> ReplayBatch:
    parked_messages = parked(broker, *(a_message(b"%d" % n) for n in range(len(states) + 3)))
    rest = [ItemState.PENDING] * 3
    values = {"canary": len(states), "canary_until": timezone.now() - SECOND}
    return a_batch(
        broker, parked_messages, BatchState.WATCHING, [*states, *rest], **(values | stated)
    )


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Snapshot:
    snapshot = seen(shop())
    monkeypatch.setattr(snapshots, "recent", lambda broker: snapshot)
    return snapshot


def watch(broker: Broker, queue: str = "dead") -> BackgroundTask:
    row = DeadLetterQueue.objects.create(
        broker=broker,
        queue=queue,
        is_confirmed=True,
        parks_automatically=True,
        decided_at=timezone.now(),
    )
    return BackgroundTask.objects.create(
        key=task_key("park", row.pk), name="p", beat_at=timezone.now()
    )


def test_the_longest_round_is_the_longest_way_through_delays_to_where_it_dies() -> None:
    snapshot = seen(RETRIES)
    paths = observers.find_paths(snapshot)
    # Not the time to live of the consumed queue, nor that of where it lies dead.
    assert observers.estimate_longest(snapshot, paths, "orders", ["dead"]) == 30 * SECOND
    assert observers.estimate_longest(snapshot, paths, "wait-1", ["dead"]) == 33 * SECOND
    assert observers.estimate_longest(snapshot, paths, "gone", []) == timedelta(0)


def test_a_mesh_of_delays_does_not_take_for_ever() -> None:
    names = [f"q{n}" for n in range(30)]
    mesh: list[BrokerObject] = [
        *(a_queue(name, dlx="all", ttl=1000) for name in names),
        Exchange("all", "fanout"),
        *(Binding("all", name, "") for name in names),
    ]
    snapshot = a_snapshot(Definitions.of(mesh))
    assert observers.estimate_longest(snapshot, observers.find_paths(snapshot), "q0") > 10 * SECOND


@pytest.mark.parametrize(("version", "seconds"), [("4.3.6", 1 + 2 + 3 + 3), ("4.0.5", 0)])
def test_the_waits_within_a_quorum_queue_are_counted_from_4_3_on(
    version: str, seconds: int
) -> None:
    queue = a_queue(
        "orders",
        type="quorum",
        x_delayed_retry_type="failed",
        x_delayed_retry_min=1000,
        x_delayed_retry_max=3000,
        x_delivery_limit=4,
    )
    snapshot = seen(Definitions.of([queue]), version=version)
    paths = observers.find_paths(snapshot)
    assert observers.estimate_longest(snapshot, paths, "orders") == seconds * SECOND


def test_what_is_handed_to_a_delay_comes_later_by_that_much(broker: Broker) -> None:
    batch = watching(broker, ItemState.DONE)
    assert (
        observers.estimate_round(batch, observers.make_scene(batch, seen(RETRIES))) == 30 * SECOND
    )
    batch.routes.update(after_ms=60_000)
    assert (
        observers.estimate_round(batch, observers.make_scene(batch, seen(RETRIES))) == 90 * SECOND
    )


def test_a_ladder_is_climbed_to_its_end(broker: Broker) -> None:
    params = retry_ladder.parse(retry_ladder.store(retry_ladder.EXAMPLE))
    topology = create_topology(None, broker, retry_ladder.KIND, params)
    topology.state = State.APPLIED
    topology.save()
    batch = watching(broker, ItemState.DONE)
    work = retry_ladder.targets(params)[0]
    batch.routes.update(routing_key=work)
    snapshot = a_snapshot(Definitions.of([a_queue(work)]), {work: QueueNumbers(consumers=1)})
    assert observers.estimate_round(batch, observers.make_scene(batch, snapshot)) == sum(
        params.delays, timedelta(0)
    )


def test_they_are_watched_for_the_typed_time_or_for_a_round(
    broker: Broker, known: Snapshot
) -> None:
    now = timezone.now()
    batch = watching(broker, ItemState.DONE, canary_seconds=20)
    batch.routes.update(after_ms=60_000)
    assert outcome.find_watch_end(batch, now) == now + 20 * SECOND
    batch.canary_seconds = 0
    assert outcome.find_watch_end(batch, now) == now + 60 * SECOND


def test_after_less_than_a_round_a_user_resumes(broker: Broker, known: Snapshot) -> None:
    watch(broker)
    batch = watching(broker, ItemState.DONE, canary_goes_on=True, canary_seconds=20)
    assert outcome.check_canary(batch, timezone.now()).action == "go on"
    batch.routes.update(after_ms=60_000)
    judged = outcome.check_canary(batch, timezone.now())
    assert judged.action == "ask"
    assert "time of 20s is shorter than one retry round of the target, 1m." in judged.why


def test_when_one_of_the_first_died_again_it_stops(broker: Broker) -> None:
    batch = watching(
        broker,
        ItemState.DONE,
        ItemState.DONE,
        canary_goes_on=True,
        canary_until=timezone.now() + 60 * SECOND,
    )
    batch.items.filter(position=2).update(outcome=ReplayOutcome.DIED)
    judged = outcome.check_canary(batch, timezone.now())
    assert judged == outcome.CanaryResult("stop", DIED)


def test_a_stage_goes_on_to_the_next_one_and_counts_its_own_deaths(
    broker: Broker, known: Snapshot
) -> None:
    watch(broker)
    stages = [[20.0, 60, 0], [80.0, 90, 1]]
    batch = watching(broker, *[ItemState.DONE] * 2, canary_goes_on=True, stages=stages, canary=1)
    assert outcome.check_canary(batch, timezone.now()).action == "go on"
    now = timezone.now()
    second = batch_state.end_watch(batch, now)
    expected = {"stages_done": 1, "canary_until": None, "canary": 4, "canary_seconds": 90}
    assert second == expected
    for name, value in (second | {"canary_until": now}).items():
        setattr(batch, name, value)
    batch.items.filter(position__lte=2).update(outcome=ReplayOutcome.DIED)
    judged = outcome.check_canary(batch, timezone.now())
    assert judged.why.startswith(
        "1 of the 1 of stage 2 were dead-lettered again, at most 1 may be."
    )
    batch.stages[1][2] = 0
    assert outcome.check_canary(batch, timezone.now()).action == "stop"
    assert batch_state.end_watch(batch, now) == {"stages_done": 2, "canary_until": now}


def test_of_the_newest_first_the_last_ones_are_the_first(broker: Broker) -> None:
    batch = watching(broker, ItemState.PENDING, order=Order.NEWEST, canary=1)
    batch.items.filter(position=4).update(
        outcome=ReplayOutcome.DIED, attempts=1, state=ItemState.DONE
    )
    assert outcome.check_canary(batch, timezone.now()).action == "stop"


def test_however_many_were_not_sent_the_first_ones_are_those_that_were(broker: Broker) -> None:
    batch = watching(broker, *[ItemState.DONE] * 2, canary_goes_on=True)
    batch.items.filter(attempts=1).update(position=F("position") + 10_000)
    batch.items.filter(position=10_002).update(outcome=ReplayOutcome.DIED)
    ReplayItem.objects.bulk_create(
        ReplayItem(batch=batch, position=number, size=1, state=ItemState.CANCELLED)
        for number in range(6, 5200)
    )
    judged = outcome.check_canary(batch, timezone.now())
    assert judged == outcome.CanaryResult("stop", DIED)


def test_without_a_sent_message_it_asks(broker: Broker, known: Snapshot) -> None:
    watch(broker)
    batch = watching(broker, ItemState.CANCELLED, canary_goes_on=True)
    judged = outcome.check_canary(batch, timezone.now())
    assert judged == outcome.CanaryResult("ask", "The broker confirmed none of the first messages.")


def test_it_waits_for_its_time(broker: Broker) -> None:
    until = timezone.now() + 60 * SECOND
    batch = watching(broker, ItemState.DONE, canary_goes_on=True, canary_until=until)
    judged = outcome.check_canary(batch, timezone.now())
    assert judged.action == "wait"
    assert f"{until:%H:%M:%S}" in judged.why


def test_it_goes_on_by_itself_where_a_death_would_have_been_seen(
    broker: Broker, known: Snapshot
) -> None:
    watch(broker)
    batch = watching(broker, ItemState.DONE, canary_goes_on=True)
    assert outcome.check_canary(batch, timezone.now()).action == "go on"
    batch.canary_goes_on = False
    assert outcome.check_canary(batch, timezone.now()).action == "ask"


def test_it_asks_where_nobody_would_have_seen_a_death(broker: Broker, known: Snapshot) -> None:
    batch = watching(broker, ItemState.DONE, canary_goes_on=True)
    judged = outcome.check_canary(batch, timezone.now())
    assert judged.action == "ask"
    assert "does not observe dead-lettering into “dead”, " in judged.why


def test_it_asks_where_the_parker_does_not_run(broker: Broker, known: Snapshot) -> None:
    background_task = watch(broker)
    batch = watching(broker, ItemState.DONE, canary_goes_on=True)
    BackgroundTask.objects.filter(pk=background_task.pk).update(last_error="It is full.")
    assert "It is full." in outcome.check_canary(batch, timezone.now()).why
    BackgroundTask.objects.filter(pk=background_task.pk).update(beat_at=None)
    judged = outcome.check_canary(batch, timezone.now())
    assert (judged.action, "the worker does not run" in judged.why) == ("ask", True)


def test_a_confirmed_queue_that_can_be_looked_at_for_nothing_is_seen(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = {**CONSUMED, "dead": QueueNumbers(messages=3, consumers=0)}
    snapshot = a_snapshot(shop(), numbers)
    monkeypatch.setattr(snapshots, "recent", lambda broker: snapshot)
    DeadLetterQueue.objects.create(
        broker=broker, queue="dead", is_confirmed=True, decided_at=timezone.now()
    )
    batch = watching(broker, ItemState.DONE, canary_goes_on=True)
    assert outcome.check_canary(batch, timezone.now()).action == "wait"
    assert outcome.check_canary(batch, timezone.now() + outcome.PEEKS_TAKE).action == "go on"
    numbers["dead"] = QueueNumbers(messages=300, consumers=0)
    assert outcome.check_canary(batch, timezone.now()).action == "ask"


def test_it_asks_at_once_when_none_was_taken_and_in_the_end_when_some_were_not(
    broker: Broker, known: Snapshot
) -> None:
    watch(broker)
    later = {"canary_until": timezone.now() + 60 * SECOND, "canary_goes_on": True}
    none = watching(broker, ItemState.RETURNED, ItemState.UNKNOWN, **later)
    assert outcome.check_canary(none, timezone.now()).action == "ask"
    some = watching(broker, ItemState.DONE, ItemState.UNKNOWN, **later)
    assert outcome.check_canary(some, timezone.now()).action == "wait"
    assert outcome.check_canary(some, timezone.now() + 61 * SECOND).action == "ask"


def test_a_tap_on_the_way_sees_them_arrive_and_the_firehose_only_behind_a_delay(
    pair: Topology,
) -> None:
    batch = watching(pair.broker, ItemState.DONE)
    batch.routes.update(exchange="orders")
    there = a_snapshot(pair.definitions, CONSUMED)
    assert observers.explain_unobserved_arrivals(batch, observers.make_scene(batch, there)) == ""
    bare = a_snapshot(pair.definitions.without_taps(), CONSUMED)
    assert "no tap" in observers.explain_unobserved_arrivals(
        batch, observers.make_scene(batch, bare)
    )
    Firehose.objects.create(broker=pair.broker, switched_on_at=timezone.now())
    assert "no tap" in observers.explain_unobserved_arrivals(
        batch, observers.make_scene(batch, bare)
    )
    batch.routes.update(after_ms=1)
    assert observers.explain_unobserved_arrivals(batch, observers.make_scene(batch, bare)) == ""


def test_a_target_without_a_dead_letter_exchange_loses_what_fails(broker: Broker) -> None:
    batch = watching(broker, ItemState.DONE)
    batch.items.update(parked_message=None)
    snapshot = a_snapshot(Definitions.of([a_queue("orders")]))
    assert "no dead-letter exchange" in observers.explain_unobserved_deaths(
        batch, observers.make_scene(batch, snapshot)
    )


# What orders rejects goes to every subscriber of a fanout exchange.
FANNED = Definitions.of(
    [
        Exchange("orders"),
        Exchange("failures", "fanout"),
        a_queue("orders", dlx="failures"),
        a_queue("dead"),
        a_queue("audit"),
        Binding("orders", "orders", "orders"),
        Binding("failures", "dead", ""),
        Binding("failures", "audit", ""),
    ]
)


def test_queues_that_nobody_watches_are_named(broker: Broker) -> None:
    batch = watching(broker, ItemState.DONE)
    numbers = {**CONSUMED, "audit": QueueNumbers(consumers=2)}
    scene = observers.make_scene(batch, a_snapshot(FANNED, numbers))
    said = observers.explain_unobserved_deaths(batch, scene)
    assert said.startswith("Delayboard does not observe dead-lettering into “audit”, “dead”, ")
    assert said.endswith("for queues that contain only dead letters.")
    watch(broker)
    said = observers.explain_unobserved_deaths(batch, scene)
    assert said.startswith("Delayboard does not observe dead-lettering into “audit”, ")


def test_an_own_queue_is_no_end_of_a_path(pair: Topology) -> None:
    batch = watching(pair.broker, ItemState.DONE)
    batch.routes.update(exchange="orders")
    own = pair.definitions | pair.probe_definitions
    scene = observers.make_scene(batch, a_snapshot(own, CONSUMED))
    assert pair.probe_queue not in scene.ends


def test_a_queue_that_is_gone_is_not_proposed(broker: Broker) -> None:
    batch = watching(broker, ItemState.DONE)
    ParkedMessage.objects.update(queue="gone")
    said = observers.explain_unobserved_deaths(
        batch, observers.make_scene(batch, a_snapshot(shop(), CONSUMED))
    )
    assert "gone" not in said.replace("is gone", "")
