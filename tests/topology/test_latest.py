from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest
import responses
from cryptography.fernet import Fernet
from pytest_django import Settings

from tests.builders import make_broker
from topology import latest
from topology.connect import Trial, try_connection
from topology.models import Broker

pytestmark = pytest.mark.django_db
API = "http://127.0.0.1:9/api"
LONG = timedelta(hours=1)
NOW = timedelta(0)


@pytest.fixture
def broker() -> Iterator[Broker]:
    row = make_broker()
    latest.forget(row.pk)
    yield row
    latest.forget(row.pk)


def broker_answers() -> None:
    responses.get(f"{API}/overview", json={"rabbitmq_version": "4.3.6", "node": "a@b"})
    for kind in ("queues", "exchanges", "bindings"):
        responses.get(f"{API}/{kind}/nowhere", json=[])
    responses.get(f"{API}/health/checks/alarms", json={"status": "ok"})


@responses.activate
def test_a_fresh_answer_is_kept_for_all_who_look(broker: Broker) -> None:
    broker_answers()
    assert latest.latest(broker.pk) is None
    first = latest.fresh(broker, LONG)
    assert first.is_reachable
    assert first.snapshot is not None
    assert latest.fresh(broker, LONG) is latest.latest(broker.pk) is first
    assert latest.fresh(broker, NOW) is not first
    latest.forget(broker.pk)
    assert latest.latest(broker.pk) is None


def test_a_broker_that_never_answered_has_an_error_and_no_snapshot(broker: Broker) -> None:
    found = latest.poll(broker)
    assert found.snapshot is None
    assert "No management API at http://127.0.0.1:9" in found.error
    assert not found.is_reachable


def test_a_broker_that_stops_answering_keeps_its_last_snapshot(broker: Broker) -> None:
    with responses.RequestsMock() as api:
        api.get(f"{API}/overview", json={"rabbitmq_version": "4.3.6"})
        for kind in ("queues", "exchanges", "bindings"):
            api.get(f"{API}/{kind}/nowhere", json=[])
        api.get(f"{API}/health/checks/alarms", json={"status": "ok"})
        before = latest.poll(broker)
    after = latest.poll(broker)
    assert after.snapshot is before.snapshot is not None
    assert after.error
    assert after.tried_at > before.tried_at


def test_a_password_that_cannot_be_opened_is_part_of_the_result(
    broker: Broker, settings: Settings
) -> None:
    settings.CREDENTIAL_KEYS = [Fernet.generate_key().decode()]
    assert "cannot be decrypted" in latest.poll(broker).error


@responses.activate
def test_many_who_ask_at_once_ask_the_broker_once(broker: Broker) -> None:
    broker_answers()
    barrier = threading.Barrier(4)
    found: list[latest.Latest] = []

    def look() -> None:
        barrier.wait(10)
        found.append(latest.fresh(broker, LONG))

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(found) == 4
    assert len({id(one) for one in found}) == 1
    assert len(responses.calls) == 5


@responses.activate
def test_a_trial_tells_how_each_protocol_answered(broker: Broker) -> None:
    broker_answers()
    responses.replace(
        "GET",
        f"{API}/health/checks/alarms",
        status=503,
        json={"alarms": [{"resource": "disk", "node": "a@b"}]},
    )
    amqp, management = try_connection(broker.address)
    assert amqp == Trial(
        "AMQP", False, "Nothing listens at 127.0.0.1:9: is RabbitMQ running, is the port right?"
    )
    assert management.works
    assert management.sentence == (
        "RabbitMQ 4.3.6 on a@b, 0 queues. Alarms: disk on a@b: the broker takes no publishes."
    )


def test_a_trial_of_nothing_is_two_sentences(broker: Broker) -> None:
    trials = try_connection(broker.address)
    assert [trial.works for trial in trials] == [False, False]
    assert all(trial.sentence for trial in trials)
