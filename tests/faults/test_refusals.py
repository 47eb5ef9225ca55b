"""What each generation of RabbitMQ cannot or will not do, as a sentence that says what helps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from delayboard.demo.node import PrivateNode
from delayboard.models import Publication
from tests.brokers import Vhost, call_api, every_generation
from tests.builders import address_of, make_broker, make_user
from tests.faults.alarms import alarmed
from tests.publishing import publisher
from tests.stopwatch import stopwatch
from topology import snapshots
from topology.broker.address import Address
from topology.broker.amqp.pipeline import REQUEST_HEARTBEAT_SECONDS
from topology.broker.errors import OutcomeUnknown, Refused, Unsupported
from topology.broker.management.client import Management
from topology.broker.properties.read import build_properties
from topology.definitions import Arguments, Definitions, Exchange, Queue
from topology.message import Publish
from topology.models import Role
from topology.operations.connect import try_connection

LONGEST_SECONDS = 5.0


def declare_by_api(address: Address, obj: Any) -> None:
    with Management(address) as management:
        if isinstance(obj, Queue):
            management.declare_queue(obj)
        else:
            management.declare_exchange(obj)


def declare_by_amqp(address: Address, obj: Any) -> None:
    with publisher(address, "test", heartbeat=REQUEST_HEARTBEAT_SECONDS) as channel:
        channel.declare(Definitions.of([obj]))


def queue_of(**arguments: Any) -> Queue:
    named = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    return Queue("q", arguments=Arguments(named))


@every_generation
@pytest.mark.parametrize(
    ("obj", "sentence"),
    [
        (queue_of(queue_type="sand"), "no queue type “sand”. Choose another"),
        (queue_of(queue_type="classic", delivery_limit=3), "classic queue has no argument"),
        (queue_of(queue_type="stream", dead_letter_exchange="a"), "stream queue has no argument"),
        (Exchange("x", "x-delayed-message"), "type “x-delayed-message”. Enable the plugin"),
    ],
    ids=["queue type", "argument", "argument of a stream", "exchange type"],
)
def test_what_this_version_lacks_is_said_the_same_way_over_both_protocols(
    vhost: Vhost, obj: Any, sentence: str
) -> None:
    for declare in (declare_by_api, declare_by_amqp):
        with pytest.raises(Unsupported, match=sentence):
            declare(address_of(vhost), obj)


@pytest.fixture
def account(broker_node: PrivateNode) -> Iterator[tuple[str, str]]:
    """A user that may use the management API and sees no virtual host."""
    name, password = "outsider", "a secret that nobody may read"
    call_api(broker_node, "PUT", f"users/{name}", {"password": password, "tags": "management"})
    yield name, password
    call_api(broker_node, "DELETE", f"users/{name}")


@every_generation
def test_a_user_is_told_what_it_lacks_though_rabbitmq_answers_alike(
    vhost: Vhost, broker_node: PrivateNode, account: tuple[str, str]
) -> None:
    name, password = account
    outsider = replace(address_of(vhost), username=name, password=password)
    assert "permissions" in refusal(outsider)
    assert "Check the user name and the password" in refusal(replace(outsider, password="wrong"))
    nowhere = refusal(replace(address_of(vhost), vhost="nowhere"))
    assert "The virtual host “nowhere” does not exist" in nowhere
    call_api(broker_node, "PUT", f"users/{name}", {"password": password, "tags": ""})
    assert "Add the tag “management”" in refusal(outsider)


def refusal(address: Address) -> str:
    """The same sentence whether it is looked or something is declared."""
    with Management(address) as management, pytest.raises(Refused) as raised:
        management.queues()
    return str(raised.value)


@every_generation
@pytest.mark.parametrize(
    ("resource", "remedy"),
    [("memory", "consume or delete messages"), ("disk", "free disk space")],
)
def test_an_alarm_is_named_with_what_ends_it_and_a_publish_does_not_wait_for_that(
    vhost: Vhost, broker_node: PrivateNode, resource: str, remedy: str
) -> None:
    """Tried: sometimes the broker takes the message when the alarm is over, sometimes not."""
    address = address_of(vhost)
    declare_by_api(address, queue_of(queue_type="classic"))
    sending = publisher(address, "test", heartbeat=REQUEST_HEARTBEAT_SECONDS)
    with alarmed(broker_node, resource):
        trial = {trial.name: trial for trial in try_connection(address)}["Publishing"]
        takes_none = pytest.raises(OutcomeUnknown, match="has an alarm and blocks publishes")
        with sending as channel, stopwatch() as watch, takes_none:
            channel.publish(Publish("", "q", build_properties(), b"x"))
    assert watch.seconds < LONGEST_SECONDS
    assert not trial.works
    assert trial.sentence.startswith(f"RabbitMQ has an alarm ({resource}")
    assert remedy in trial.sentence


@pytest.mark.django_db(transaction=True)
def test_the_pages_say_so_and_publish_nothing(vhost: Vhost, broker_node: PrivateNode) -> None:
    broker = make_broker(vhost)
    client = Client()
    client.force_login(make_user("ada", Role.ADMIN))
    parked_message = {"broker": broker.slug, "exchange": "", "routing_key": "q", "send": "1"}
    with alarmed(broker_node, "memory"):
        snapshots.poll(broker)
        with stopwatch() as watch:
            sent = client.post(reverse("publish"), parked_message).content.decode()
        assert watch.seconds < LONGEST_SECONDS
        front = client.get(reverse("now")).content.decode()
    for page in (sent, front):
        assert "blocks publishes until the alarm ends. To end it, consume" in page
    assert "Nothing was published" in sent
    assert not Publication.objects.exists()
