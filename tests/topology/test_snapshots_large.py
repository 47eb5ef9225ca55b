"""A broker that takes long to read: asked once at a time, and what is said meanwhile."""

from __future__ import annotations

import gc
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
import responses

from tests.builders import eventually, make_broker
from tests.topology.broker.slow import API, Slow, slow
from tests.topology.builders import NOON
from topology import snapshots
from topology.broker.errors import Unreachable
from topology.broker.management.client import Management
from topology.definitions import Definitions, Queue
from topology.models import Broker
from topology.snapshot import Snapshot
from topology.snapshots import Latest

__all__ = ["slow"]

pytestmark = pytest.mark.django_db
NOW = timedelta(0)


@pytest.fixture
def broker() -> Broker:
    return make_broker()


def known(broker: Broker, *, age: timedelta = NOW, took: float = 6.0, error: str = "") -> Latest:
    now = datetime.now(UTC)
    snapshot = Snapshot("4.3.6", now - age, Definitions(), Definitions(), poll_seconds=took)
    kept = snapshots._latest[broker.pk] = Latest(snapshot, now - age, error)
    return kept


def test_the_first_reading_of_a_broker_that_answers_is_no_trouble(
    broker: Broker, slow: Slow
) -> None:
    found = snapshots.fresh(broker)
    assert found.snapshot is None
    assert found.reading_since is not None
    assert (found.is_reachable, found.trouble) == (True, "")
    assert re.fullmatch(
        r"The broker answers. The first read is in progress \(so far [0-9]+s\)\.", found.error
    )
    assert snapshots.silent([broker]) == []
    assert snapshots.latest(broker.pk) is None
    slow.let()
    eventually(lambda: snapshots.latest(broker.pk), "it is read")
    found = snapshots.fresh(broker)
    assert (found.error, found.reading_since) == ("", None)
    assert found.snapshot is not None


def test_a_broker_that_failed_before_and_is_being_read_now_is_no_trouble(
    broker: Broker, slow: Slow
) -> None:
    snapshots._latest[broker.pk] = Latest(None, datetime.now(UTC) - timedelta(seconds=5), "Gone.")
    assert snapshots.fresh(broker).reading_since is not None
    assert snapshots.silent([broker]) == []


def test_a_reading_that_fails_is_trouble(broker: Broker, slow: Slow) -> None:
    responses.replace("GET", f"{API}/bindings/nowhere", status=500, json={"reason": "no"})
    assert snapshots.fresh(broker).is_reachable
    slow.let()
    eventually(lambda: snapshots.latest(broker.pk), "the poll ends")
    found = snapshots.fresh(broker, timedelta(hours=1))
    assert (found.is_reachable, found.reading_since) == (False, None)
    assert "answered 500" in found.trouble


def test_many_pages_and_actions_ask_once_at_a_time(broker: Broker, slow: Slow) -> None:
    with ThreadPoolExecutor(12) as pool:
        looks = [pool.submit(snapshots.fresh, broker, NOW) for _ in range(20)]
        looks += [pool.submit(snapshots.poll, broker) for _ in range(20)]
        assert all(look.result(20).snapshot is None for look in looks)
    assert (slow.listing, slow.overviews) == (1, 1)
    slow.let()
    eventually(lambda: slow.listing == 2, "one look more, from after the actions")
    snapshots.fresh(broker, NOW)
    slow.let()
    eventually(lambda: not snapshots._polls, "both end")
    assert (slow.listing, slow.overviews, slow.most_at_once) == (2, 2, 1)


def test_a_look_after_an_action_is_from_after_it(broker: Broker, slow: Slow) -> None:
    snapshots.fresh(broker)
    first = snapshots._polls[broker.pk]
    with ThreadPoolExecutor(1) as pool:
        after = pool.submit(snapshots.poll, broker, 20.0)
        eventually(lambda: first.follower, "it is to be looked at again")
        slow.let()
        eventually(lambda: slow.listing == 2, "the second look began")
        assert not after.done()
        slow.let()
        assert after.result(20) is snapshots.latest(broker.pk)


def test_during_an_interval_nobody_asks_a_slow_broker(broker: Broker, slow: Slow) -> None:
    kept = known(broker, age=timedelta(seconds=20))
    assert [snapshots.fresh(broker) for _ in range(50)] == [kept] * 50
    assert slow.overviews == 0


def test_a_poll_that_was_answered_lately_is_not_lost_however_long_it_takes(
    broker: Broker, slow: Slow
) -> None:
    snapshots.fresh(broker)
    assert slow.lists.wait(60)
    running = snapshots._polls[broker.pk]
    running.began -= 100
    assert snapshots.fresh(broker).reading_since is not None
    assert slow.overviews == 1
    assert running.management is not None
    running.management.heard = running.began
    snapshots.fresh(broker)
    assert snapshots._polls[broker.pk] is not running


def test_of_many_polls_the_last_snapshot_alone_is_kept(broker: Broker, slow: Slow) -> None:
    slow.let(1000)
    began_at = datetime.now(UTC)
    for _ in range(30):
        snapshots.poll(broker, 20)
    eventually(lambda: not snapshots._polls, "the last one ends")
    gc.collect()
    # Since then: what pages have worked out for the brokers of other tests keeps theirs.
    held = [one for one in gc.get_objects() if isinstance(one, Snapshot)]
    assert [one for one in held if one.taken_at > began_at] == [
        snapshots._latest[broker.pk].snapshot
    ]
    assert not [one for one in gc.get_objects() if isinstance(one, snapshots._Poll)]


ONE = Queue("one")


def test_a_change_at_a_slow_broker_is_planned_on_its_own_things_anew(
    broker: Broker, slow: Slow
) -> None:
    kept = known(broker)
    responses.get(f"{API}/queues/nowhere/one", json={"name": "one", "messages": 5})
    responses.get(f"{API}/queues/nowhere/one/bindings", json=[])
    with Management(broker.address) as management:
        found = snapshots.for_action(broker, management, [ONE])
    assert kept.snapshot is not None
    assert found.taken_at == kept.snapshot.taken_at
    assert found.numbers["one"].messages == 5
    assert slow.listing == 0


def test_a_change_at_a_quick_broker_is_planned_on_a_look_at_all(broker: Broker, slow: Slow) -> None:
    slow.let()
    known(broker, took=0.1)
    with Management(broker.address) as management:
        found = snapshots.for_action(broker, management, [ONE])
    assert found.taken_at > NOON
    assert slow.listing == 1


def test_a_change_at_a_broker_that_is_still_being_read_waits_for_it_and_not_for_ever(
    broker: Broker, slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "ACTION_SECONDS", 0.1)
    snapshots.fresh(broker)
    with (
        Management(broker.address) as management,
        pytest.raises(Unreachable, match="is still reading the objects of"),
    ):
        snapshots.for_action(broker, management, [ONE])
    assert slow.listing == 1
    monkeypatch.setattr(snapshots, "ACTION_SECONDS", 20.0)
    slow.let()
    assert snapshots.recent(broker).version == "4.3.6"


def test_what_is_known_is_recent_for_a_minute(broker: Broker, slow: Slow) -> None:
    kept = known(broker, age=timedelta(seconds=50))
    assert snapshots.recent(broker) is kept.snapshot
    known(broker, age=timedelta(seconds=70))
    slow.let()
    assert snapshots.recent(broker) is not kept.snapshot
    assert slow.listing == 1


def test_a_broker_that_fails_is_not_planned_on(broker: Broker) -> None:
    known(broker, age=timedelta(seconds=70))
    with pytest.raises(Unreachable, match="Nothing listens at"):
        snapshots.recent(broker)
