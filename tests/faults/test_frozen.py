"""While a broker is frozen every page answers in time and says so, and every action fails in time.

The bounds are the requirement; they are measured from outside.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.urls import reverse

from delayboard.demo.node import PrivateNode
from delayboard.live.feed import Feed
from delayboard.live.subjects import find
from tests.brokers import Vhost
from tests.builders import address_of, applied_pair, eventually, make_broker, make_user
from tests.faults.every_page import QUERIES, WITHOUT_BROKER, addresses
from tests.faults.freezing import answered_before, frozen
from tests.publishing import publisher
from tests.stopwatch import Stopwatch, stopwatch
from topology import snapshots
from topology.broker.amqp.connection import CLOSE_SECONDS, open_connection
from topology.broker.amqp.consumer import getter
from topology.broker.amqp.pipeline import REQUEST_HEARTBEAT_SECONDS
from topology.broker.errors import BrokerError
from topology.broker.properties.read import build_properties
from topology.broker.time_limit import run_in_background
from topology.definitions import Definitions, Queue
from topology.message import Publish
from topology.models import Role, Topology

pytestmark = pytest.mark.django_db(transaction=True)
PAGE_SECONDS = 3.0
ACTION_SECONDS = 5.0
SILENT = "did not answer in time"
HANDLE = f"{'0' * 32}.{'0' * 8}.1"


@pytest.fixture
def pair(vhost: Vhost) -> Topology:
    return applied_pair(vhost)


@pytest.fixture
def client(pair: Topology) -> Client:
    client = Client()
    client.force_login(make_user("ada", Role.ADMIN))
    return client


def timed(client: Client, method: str, address: str, **data: Any) -> tuple[float, Any]:
    with stopwatch() as watch:
        answer = getattr(client, method)(address, data)
    return watch.seconds, answer


def test_every_page_answers_in_time_and_says_so(
    pair: Topology, broker_node: PrivateNode, client: Client
) -> None:
    pages = addresses(pair)
    del pages["logout"]
    known = snapshots.poll(pair.broker)
    took: dict[str, float] = {}
    with frozen(broker_node):
        for name, address in pages.items():
            answered_before(pair.broker, known)
            took[name], answer = timed(client, "get", address, **QUERIES.get(name, {}))
            assert answer.status_code in (200, 302, 405), name
        snapshots.poll(pair.broker)
        eventually(lambda: snapshots.silent([pair.broker]), "the poll has failed")
        for name, address in pages.items():
            answer = client.get(address, {"name": "orders"} if "queue" in name else {})
            if answer.status_code == 200 and name not in WITHOUT_BROKER:
                assert "not answer" in answer.content.decode(), name
    assert {name: seconds for name, seconds in took.items() if seconds > PAGE_SECONDS} == {}
    eventually(lambda: snapshots.poll(pair.broker).is_reachable, "it answers again")


def actions(pair: Topology) -> dict[str, tuple[str, str, dict[str, Any]]]:
    """Whatever a person does that asks the broker, by a name for it: method, address, form."""
    at = addresses(pair)
    address = pair.broker.address
    edited = {
        "name": "Test broker",
        "environment": "test",
        "colour": "slate",
        "amqp_addresses": address.amqp_name,
        "vhost": address.vhost,
        "management_urls": address.management_url,
        "username": address.username,
        "password": address.password,
        "verify_tls": "on",
        "sign_in": "password",
    }
    parked_message = {
        "broker": pair.broker.slug,
        "exchange": "orders",
        "routing_key": "orders",
        "send": "1",
    }
    return {
        "test the connection": ("post", at["topology:broker_test"], {}),
        "edit the broker": ("post", at["topology:broker_edit"], edited),
        "apply": ("post", at["topology:topology_apply"], {}),
        "verify": ("post", at["topology:topology_verify"], {}),
        "tear down": ("post", at["topology:topology_teardown"], {"name": "orders"}),
        "unbind": ("post", at["topology:topology_unbind"], {"destination": "orders"}),
        "publish": ("post", at["publish"], parked_message),
        "switch the firehose on": ("post", at["firehose_switch"], {"switch": "on"}),
        "prepare a replay": ("post", at["replay_prepare"], {"name": "orders", "message": HANDLE}),
        "start a replay": ("post", at["replay_start"], {}),
        "look": ("post", f"{at['dead_letter_queue']}?name=orders", {}),
    }


def test_every_action_ends_in_time_with_a_sentence(
    pair: Topology, broker_node: PrivateNode, client: Client
) -> None:
    todo, known = actions(pair), snapshots.poll(pair.broker)
    with frozen(broker_node):
        answered_before(pair.broker, known)
        # All at once, as by as many people: none of them waits for another one.
        tried = {
            name: run_in_background(partial(acted, client, *act), name)
            for name, act in todo.items()
        }
        ended = {name: future.result(20) for name, future in tried.items()}
    for name, (took, reported) in ended.items():
        assert "not answer" in reported, name
        assert took < ACTION_SECONDS, name


def acted(of: Client, method: str, address: str, form: dict[str, Any]) -> tuple[float, str]:
    """How long the answer took (seconds), and the page that the person then sees."""
    client = Client()
    client.cookies.update(of.cookies)
    try:
        took, answer = timed(client, method, address, **form)
        shown = answer if answer.status_code == 200 else client.get(answer["Location"])
        return took, shown.content.decode()
    finally:
        connection.close()


def test_many_frozen_brokers_on_a_page_take_no_longer_than_one(
    pair: Topology, vhost: Vhost, broker_node: PrivateNode, client: Client
) -> None:
    brokers = [pair.broker, *(make_broker(vhost, name=f"Broker {n}") for n in range(5))]
    known = snapshots.poll(pair.broker)
    with frozen(broker_node):
        for name in ("now", "topology:brokers"):
            for broker in brokers:
                answered_before(broker, known)
            took, answer = timed(client, "get", reverse(name))
            assert answer.content.decode().count(SILENT) >= len(brokers), name
            assert took < PAGE_SECONDS


def test_a_publish_and_a_look_that_are_caught_in_the_middle_end_in_time(
    vhost: Vhost, broker_node: PrivateNode
) -> None:
    address, seconds = address_of(vhost), REQUEST_HEARTBEAT_SECONDS
    with publisher(address, "test") as channel:
        channel.declare(Definitions.of([Queue("q")]))
    message = Publish("", "q", build_properties(), b"x")

    watches: list[Stopwatch] = []

    @contextmanager
    def timing() -> Iterator[None]:
        with frozen(broker_node), stopwatch() as watch:
            watches.append(watch)
            yield

    def publish() -> None:
        with publisher(address, "test", heartbeat=seconds) as channel, timing():
            channel.publish(message)

    def look() -> None:
        with getter(address, "q", heartbeat=seconds) as source, timing():
            source.get()

    for act, sentence in ((publish, "before RabbitMQ confirmed"), (look, "does not answer")):
        with pytest.raises(BrokerError, match=sentence):
            act()
        assert watches.pop().seconds < ACTION_SECONDS


def test_a_connection_of_a_node_that_does_not_close_it_is_cut(
    vhost: Vhost, broker_node: PrivateNode
) -> None:
    """Long before its silence would end it: one that answers heartbeats alone has no other end."""
    with ExitStack() as stack:
        closing = open_connection(address_of(vhost), "test", heartbeat=60)
        with stopwatch() as watch, closing as connection:
            connection.channel()
            stack.enter_context(frozen(broker_node))
        assert watch.seconds < 2 * CLOSE_SECONDS


HOUR = timedelta(hours=1)


def test_a_live_page_says_that_it_is_stale_and_recovers(
    pair: Topology, broker_node: PrivateNode
) -> None:
    subject = find("brokers", pair.broker.slug, poll_seconds=0.2)
    assert subject is not None
    feed, news = Feed(), list[str]()
    feed.watch(subject, news.append)

    def error() -> str:
        return snapshots.fresh(pair.broker, HOUR).error

    try:
        eventually(lambda: news and not error(), "it is live")
        with frozen(broker_node):
            eventually(lambda: SILENT in error(), "it is stale")
            told = eventually(lambda: len(news) > 1 and len(news), "the page is told")
        eventually(lambda: not error() and len(news) > told, "it is live again")
    finally:
        feed.end()
