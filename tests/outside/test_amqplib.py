"""A Node service with amqplib retries in a loop of ours, gives up, and gets its message back."""

from __future__ import annotations

import json
import subprocess
from base64 import b64decode
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.urls import reverse
from pytest_django import Settings

from tests.brokers import Vhost
from tests.builders import applied_topology, eventually, make_broker, make_user
from tests.outside.client_programs import environment, json_lines, node
from tests.real_broker.replaying import draft, park, recorded, replayed
from tests.site.page_setup import signed_in, text_of
from topology.broker.management.client import Management
from topology.deaths import read_history
from topology.definitions import Queue
from topology.models import Broker, Role, Topology
from topology.operations.topology_rows import create_topology
from topology.patterns.retry_loop.pattern import retry_loop

pytestmark = pytest.mark.django_db(transaction=True)

PARKING = Queue("for people")
TIMES = 2
# What a replay puts in, and what a death does.
ADDED = ("delayboard-", "x-death", "x-first-death-", "x-last-death-")


def publish(vhost: Vhost, exchange: str, *ids: str) -> None:
    command = node("retry_loop.js", "publish", vhost.amqp_url, exchange, *ids)
    subprocess.run(command, env=environment(), check=True, timeout=60)


def a_consumer(vhost: Vhost, queue: str) -> AbstractContextManager[list[dict[str, Any]]]:
    """What it writes while it runs, from the moment on at which it consumes."""
    arguments = ("consume", vhost.amqp_url, queue, PARKING.name, str(TIMES))
    return json_lines(node("retry_loop.js", *arguments))


@pytest.fixture
def broker(vhost: Vhost, settings: Settings, tmp_path: Path) -> Broker:
    settings.EVENT_LOG = tmp_path / "log"
    made = make_broker(vhost)
    with Management(made.address) as management:
        management.declare_queue(PARKING)
    return made


@pytest.fixture
def operator() -> User:
    return make_user("ada", Role.OPERATOR)


def a_loop(broker: Broker, name: str, delay: str) -> Topology:
    params = retry_loop.parse({"name": name, "delay": delay})
    return applied_topology(create_topology(None, broker, retry_loop.KIND, params))


def of_id(written: list[dict[str, Any]], wanted: str) -> list[dict[str, Any]]:
    return [line for line in written if line.get("id") == wanted]


def as_published(line: dict[str, Any]) -> tuple[Any, ...]:
    """Body, properties and headers of a delivery, without what brokers and replays add."""
    properties = dict(line["properties"])
    headers = properties.pop("headers")
    own = {name: value for name, value in headers.items() if not name.startswith(ADDED)}
    return line["body"], properties, own


def test_a_node_consumer_rejects_acks_gives_up_and_gets_its_message_back(
    vhost: Vhost, broker: Broker, operator: User, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = a_loop(broker, "fast", "300ms").parsed
    queue = loop.input_queue
    with a_consumer(vhost, queue) as written:
        publish(vhost, loop.input_exchange, "good-1", "bad-1")
        eventually(lambda: len(of_id(written, "good-1")) > TIMES, "good is worked on")
        (parked_message,) = park(operator, broker, 1, PARKING.name)
        for name in ("good-1", "bad-1"):
            assert [line["round"] for line in of_id(written, name)] == [0, 1, 2], name
        first = of_id(written, "bad-1")[0]
        assert read_history(parked_message.message.headers).count(queue, "rejected") == TIMES
        assert parked_message.message.body == b64decode(first["body"])
        page = reverse("parked_message", args=[broker.slug, parked_message.pk])
        assert "größer 🐇" in text_of(signed_in(Role.ADMIN).get(page))
        batch = replayed(operator, draft(operator, [parked_message]))
        assert batch.done == 1, batch.state_why
        back = eventually(lambda: of_id(written, "bad-1")[TIMES + 1 :], "it is back in Node")[0]
    assert back["round"] == 0
    assert as_published(back) == as_published(first)
    assert back["properties"]["headers"]["delayboard-replays"] == 1
    call_command("walk", broker.slug, loop.input_exchange, "", "--json")
    (outcome,) = json.loads(capsys.readouterr().out)["outcomes"]
    assert (outcome["ending"], outcome["queue"]) == ("delivered", queue)


def test_what_a_node_consumer_rejected_is_listed_with_its_round(
    vhost: Vhost, broker: Broker
) -> None:
    topology = a_loop(broker, "slow", "1h")
    with recorded(topology), a_consumer(vhost, topology.parsed.input_queue):
        publish(vhost, topology.parsed.input_exchange, "late-1")
        client = signed_in(Role.ADMIN)
        address = reverse("retrying", args=[broker.slug])

        def listed() -> str:
            text = text_of(client.get(address))
            return text if "late-1" in text else ""

        text = eventually(listed, "it is listed")
    assert "retry 1" in text
    assert f"rejected once in {topology.parsed.input_queue}" in text
