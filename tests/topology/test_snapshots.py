from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import responses
from cryptography.fernet import Fernet
from pytest_django import Settings
from responses import matchers

from tests.builders import eventually, make_broker
from tests.stopwatch import stopwatch
from tests.topology.builders import NOON, a_snapshot
from topology import snapshots
from topology.broker.address import Address
from topology.broker.errors import alarm_sentence
from topology.broker.management.client import Management
from topology.definitions import Definitions
from topology.models import Broker
from topology.operations import connect
from topology.operations.connect import Trial, try_connection
from topology.snapshot import QueueNumbers, Snapshot
from topology.snapshots import Latest

pytestmark = pytest.mark.django_db
API = "http://127.0.0.1:9/api"
LONG = timedelta(hours=1)
NOW = timedelta(0)
SEEN = Snapshot("4.3.6", NOON, Definitions(), Definitions(), numbers={})


@pytest.fixture
def broker() -> Broker:
    return make_broker()


def broker_answers() -> None:
    responses.get(f"{API}/overview", json={"rabbitmq_version": "4.3.6", "node": "a@b"})
    for kind in ("queues", "exchanges", "bindings"):
        responses.get(f"{API}/{kind}/nowhere", json=[])
    responses.get(f"{API}/health/checks/alarms", json={"status": "ok"})
    responses.get(f"{API}/nodes", json=[{"name": "a@b", "running": True}])


@responses.activate
def test_a_fresh_answer_is_kept_for_all_who_look(broker: Broker) -> None:
    broker_answers()
    assert snapshots.latest(broker.pk) is None
    first = snapshots.fresh(broker, LONG)
    assert first.is_reachable
    assert first.snapshot is not None
    assert snapshots.fresh(broker, LONG) is snapshots.latest(broker.pk) is first
    assert snapshots.fresh(broker, NOW) is not first
    snapshots.forget(broker.pk)
    assert snapshots.latest(broker.pk) is None


def test_a_broker_that_never_answered_has_an_error_and_no_snapshot(broker: Broker) -> None:
    found = snapshots.poll(broker)
    assert found.snapshot is None
    assert "Nothing listens at http://127.0.0.1:9" in found.error
    assert not found.is_reachable


def test_a_broker_that_stops_answering_keeps_its_last_snapshot(broker: Broker) -> None:
    with responses.RequestsMock() as api:
        api.get(f"{API}/overview", json={"rabbitmq_version": "4.3.6"})
        for kind in ("queues", "exchanges", "bindings"):
            api.get(f"{API}/{kind}/nowhere", json=[])
        api.get(f"{API}/health/checks/alarms", json={"status": "ok"})
        before = snapshots.poll(broker)
    after = snapshots.poll(broker)
    assert after.snapshot is before.snapshot is not None
    assert after.error
    assert after.tried_at > before.tried_at


def test_the_silent_ones_are_those_that_failed_lately(broker: Broker) -> None:
    assert snapshots.silent([broker]) == []
    snapshots.poll(broker)
    assert snapshots.silent([broker]) == [broker]
    failed = snapshots._latest[broker.pk]
    snapshots._latest[broker.pk] = replace(failed, tried_at=failed.tried_at - LONG)
    assert snapshots.silent([broker]) == []


def test_a_password_that_cannot_be_opened_is_part_of_the_result(
    broker: Broker, settings: Settings
) -> None:
    settings.CREDENTIAL_KEYS = [Fernet.generate_key().decode()]
    assert "cannot be decrypted" in snapshots.poll(broker).error


@responses.activate
def test_many_who_ask_at_once_ask_the_broker_once(broker: Broker) -> None:
    broker_answers()
    barrier = threading.Barrier(4)
    found: list[snapshots.Latest] = []

    def look() -> None:
        barrier.wait(60)
        found.append(snapshots.fresh(broker, LONG))

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 4
    assert len({id(one) for one in found}) == 1
    assert len(responses.calls) == 6


class Silent:
    """A broker that answers when it is let, in place of `observe`; counts who asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.answers = threading.Event()
        self.answered = threading.Semaphore(0)

    def __call__(self, management: Management) -> Snapshot:
        self.asked += 1
        self.answers.wait(60)
        self.answered.release()
        return SEEN


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Silent]:
    one = Silent()
    monkeypatch.setattr(snapshots, "observe", one)
    yield one
    one.answers.set()
    for _ in range(one.asked):
        assert one.answered.acquire(timeout=10)


def test_who_looks_at_a_silent_broker_gets_the_last_known_with_an_error_and_nobody_queues(
    broker: Broker, silent: Silent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "PATIENCE_SECONDS", 0.3)
    known = snapshots._latest[broker.pk] = Latest(SEEN, datetime.now(UTC) - LONG)
    began = time.monotonic()
    first = snapshots.fresh(broker)
    assert time.monotonic() - began >= 0.3
    with stopwatch() as at_second:
        second = snapshots.fresh(broker)
    assert at_second.seconds < 0.2
    for found in (first, second):
        assert found.snapshot is known.snapshot
        assert "did not answer in time" in found.error
    assert silent.asked == 1
    silent.answers.set()
    eventually(lambda: snapshots.latest(broker.pk) is not known, "the late answer is kept")
    found = snapshots.fresh(broker)
    assert (found.is_reachable, silent.asked) == (True, 1)


def test_several_silent_brokers_are_waited_for_together(
    broker: Broker, silent: Silent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "PATIENCE_SECONDS", 0.5)
    brokers = [broker, *(make_broker(name=f"Broker {number}") for number in range(4))]
    with stopwatch() as watch:
        found = snapshots.fresh_all(brokers)
    assert watch.seconds < 1.5
    assert silent.asked == len(found) == 5
    assert not any(one.is_reachable for one in found)


def test_an_answer_that_comes_after_the_address_changed_is_dropped(
    broker: Broker, silent: Silent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "PATIENCE_SECONDS", 0)
    snapshots.fresh(broker)
    snapshots.forget(broker.pk)
    silent.answers.set()
    assert silent.answered.acquire(timeout=10)
    silent.answered.release()
    assert snapshots.latest(broker.pk) is None
    broker.amqp_addresses = "elsewhere.test"
    assert snapshots.poll(broker).is_reachable
    assert silent.asked == 2


def test_an_address_that_changed_is_asked_anew_though_a_poll_is_under_way(
    broker: Broker, silent: Silent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "PATIENCE_SECONDS", 0)
    snapshots.fresh(broker)
    broker.management_urls = "http://127.0.0.1:8"
    assert "127.0.0.1:8 did not answer in time" in snapshots.fresh(broker).error
    assert silent.asked == 2


@responses.activate
def test_a_trial_tells_how_each_protocol_answered(broker: Broker) -> None:
    broker_answers()
    page = {"items": [], "total_count": 10_000}
    one = [matchers.query_param_matcher({"page_size": "1"}, strict_match=False)]
    responses.replace("GET", f"{API}/queues/nowhere", json=page, match=one)
    responses.replace(
        "GET",
        f"{API}/health/checks/alarms",
        status=503,
        json={"alarms": [{"resource": "disk", "node": "a@b"}]},
    )
    amqp, management, publishing = try_connection(broker.address)
    assert amqp == Trial(
        "AMQP",
        False,
        "Nothing listens at 127.0.0.1:9. Check that RabbitMQ runs, and check the port.",
        is_fatal=True,
    )
    assert management.works
    assert management.sentence == "RabbitMQ 4.3.6 on a@b, 10\u202f000 queues."
    assert publishing == Trial("Publishing", False, alarm_sentence(["disk on a@b"]))


def test_a_trial_of_nothing_is_two_sentences(broker: Broker) -> None:
    trials = try_connection(broker.address)
    assert [trial.works for trial in trials] == [False, False]
    assert all(trial.sentence for trial in trials)


def test_a_trial_that_never_ends_is_given_up(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()

    def hang(address: Address) -> list[Trial]:
        release.wait(60)
        return []

    monkeypatch.setattr(connect, "TRIAL_SECONDS", 0.1)
    monkeypatch.setattr(connect, "_try_amqp", hang)
    trial = try_connection(broker.address)[0]
    release.set()
    assert not trial.works
    assert trial.sentence.startswith("127.0.0.1 did not answer")


def test_a_defect_in_a_trial_or_a_poll_is_none_of_the_brokers(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object) -> None:
        raise RuntimeError("never seen before")

    monkeypatch.setattr(snapshots, "observe", fail)
    with pytest.raises(RuntimeError, match="never seen"):
        snapshots.fresh(broker)
    with pytest.raises(RuntimeError, match="never seen"):
        snapshots.fresh(broker)
    monkeypatch.setattr(connect, "_try_amqp", fail)
    with pytest.raises(RuntimeError, match="never seen"):
        try_connection(broker.address)


def test_a_snapshot_has_the_oldest_numbers_of_the_last_two_minutes() -> None:
    known = None
    ages: list[int | None] = []
    for seconds in range(0, 300, 10):
        at = NOON + timedelta(seconds=seconds)
        numbers = {"q": QueueNumbers(messages=seconds)}
        snapshot = replace(a_snapshot(Definitions(), numbers), taken_at=at)
        known = snapshots._with_earlier(known, snapshot)
        assert known.snapshot is not None
        if known.snapshot.earlier_at is None:
            ages.append(None)
            continue
        age = int((at - known.snapshot.earlier_at).total_seconds())
        ages.append(age)
        assert known.snapshot.earlier["q"].messages == seconds - age
        assert len(known.samples) <= 9
    assert ages[:3] == [None, 10, 20]
    assert all(100 <= (age or 0) <= 120 for age in ages[13:])


def test_a_queue_with_messages_is_still_while_its_process_does_nothing() -> None:
    known, times = None, []
    for seconds, reductions in ((0, 7), (10, 7), (400, 7), (410, 8), (420, 8), (430, None)):
        numbers = {"q": QueueNumbers(messages=1, reductions=reductions)}
        at = NOON + timedelta(seconds=seconds)
        known = snapshots._with_earlier(
            known, replace(a_snapshot(Definitions(), numbers), taken_at=at)
        )
        assert known.snapshot is not None
        times.append(known.snapshot.numbers["q"].still_ms // 1000)
    assert times == [0, 10, 400, 0, 10, 0]
