"""Adding a broker and trying its connection: AMQP and management, in a few seconds."""

from __future__ import annotations

from dataclasses import dataclass

from topology.broker.address import Address
from topology.broker.amqp import connected
from topology.broker.errors import BrokerError
from topology.broker.management import Management
from topology.models import Broker
from topology.slugs import new_slug


@dataclass(frozen=True)
class Trial:
    """How one protocol answered: a sentence, and whether it is good news."""

    name: str
    works: bool
    sentence: str


def try_connection(address: Address) -> list[Trial]:
    """Try both protocols; a failure is a Trial, never an exception."""
    return [_try_amqp(address), _try_management(address)]


def add_broker(broker: Broker, password: str) -> Broker:
    """Give it a slug and a sealed password, and save it."""
    taken = Broker.objects.filter
    broker.slug = new_slug(broker.name, lambda slug: taken(slug=slug).exists(), longest=60)
    broker.set_password(password)
    broker.save()
    return broker


def _try_amqp(address: Address) -> Trial:
    try:
        with connected(address, "connection test"):
            return Trial("AMQP", True, f"Connected to the virtual host “{address.vhost}”.")
    except BrokerError as error:
        return Trial("AMQP", False, str(error))


def _try_management(address: Address) -> Trial:
    try:
        with Management(address, read_seconds=4) as management:
            overview = management.overview()
            queues = management.queues()
            alarms = management.alarms()
    except BrokerError as error:
        return Trial("Management API", False, str(error))
    version, node = overview.get("rabbitmq_version"), overview.get("node")
    sentence = f"RabbitMQ {version} on {node}, {len(queues)} queues."
    if alarms:
        sentence += f" Alarms: {', '.join(alarms)}: the broker takes no publishes."
    return Trial("Management API", True, sentence)
