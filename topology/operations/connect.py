"""Adding a broker and trying its connection: AMQP and management at once, in a few seconds."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import wait
from dataclasses import dataclass
from functools import partial

from topology.broker.address import Address
from topology.broker.amqp.connection import open_connection
from topology.broker.amqp.publisher import REQUEST_HEARTBEAT_SECONDS
from topology.broker.errors import BrokerError, alarm_sentence
from topology.broker.management.client import Management
from topology.broker.time_limit import run_in_background
from topology.content.text import count_of
from topology.database.slugs import new_slug
from topology.models import Broker

TRIAL_SECONDS = 3.0


@dataclass(frozen=True)
class Trial:
    """How one protocol answered: a sentence, and whether it is good news.

    A fatal one cannot be used at all; an alarm passes.
    """

    name: str
    works: bool
    sentence: str
    is_fatal: bool = False


Try = Callable[[Address], list[Trial]]


def try_connection(address: Address) -> list[Trial]:
    """Try both protocols; a failure is a Trial, never an exception. Takes 3 seconds at most."""
    tries: dict[str, Try] = {"AMQP": _try_amqp, "Management API": _try_management}
    begun = {
        name: run_in_background(partial(one, address), f"trial of {name}")
        for name, one in tries.items()
    }
    wait(begun.values(), TRIAL_SECONDS)
    found: list[Trial] = []
    for name, future in begun.items():
        found += future.result() if future.done() else [_timeout(name, address)]
    return found


def add_broker(broker: Broker, password: str) -> Broker:
    """Give it a slug and a sealed password, and save it."""
    taken = Broker.objects.filter
    broker.slug = new_slug(broker.name, lambda slug: taken(slug=slug).exists(), longest=60)
    broker.set_password(password)
    broker.save()
    return broker


def _try_amqp(address: Address) -> list[Trial]:
    try:
        with open_connection(address, "connection test", heartbeat=REQUEST_HEARTBEAT_SECONDS):
            return [Trial("AMQP", True, f"Connected to the virtual host “{address.vhost}”.")]
    except BrokerError as error:
        return [Trial("AMQP", False, str(error), is_fatal=True)]


def _try_management(address: Address) -> list[Trial]:
    try:
        with Management(address, in_all=TRIAL_SECONDS) as management:
            overview = management.overview()
            queues = management.count_queues()
            alarms = management.alarms()
    except BrokerError as error:
        return [Trial("Management API", False, str(error), is_fatal=True)]
    # The node is named only to accounts with the tag “monitoring”.
    node = f" on {overview['node']}" if overview.get("node") else ""
    sentence = f"RabbitMQ {overview.get('rabbitmq_version')}{node}, {count_of(queues, 'queue')}."
    works = Trial("Management API", True, sentence)
    return [works, Trial("Publishing", False, alarm_sentence(alarms))] if alarms else [works]


def _timeout(name: str, address: Address) -> Trial:
    sentence = (
        f"{address.host} did not answer in {TRIAL_SECONDS:.0f} seconds. Check the host name, "
        "the network and the load of RabbitMQ."
    )
    return Trial(name, False, sentence, is_fatal=True)
