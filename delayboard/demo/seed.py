"""What the first `make run` finds: a broker, a retry pair, a queue for what was given up."""

from __future__ import annotations

from topology.broker.address import Address, parse_address
from topology.broker.management.client import Management
from topology.definitions import Arguments, Queue
from topology.models import Broker, State, Topology
from topology.operations import provision
from topology.operations.connect import add_broker
from topology.operations.topology_rows import create_topology
from topology.patterns.retry_pair.params import KIND, parse

DEMO_BROKER = "Demo broker"
WORK = "orders"
PARKED = "orders-parked"
DELAY = "15s"


def prepare_demo(amqp_url: str, management_url: str) -> Broker:
    """Make the demo broker's row and its topology, or bring the row's address up to date.

    The private node keeps its data but may come back on other ports. Raises BrokerError.
    """
    address = parse_address(amqp_url, management_url)
    broker = _registered(DEMO_BROKER, address)
    topology = Topology.objects.filter(broker=broker, kind=KIND, name=WORK).first()
    if topology is None:
        params = parse({"name": WORK, "delay": DELAY})
        topology = create_topology(None, broker, KIND, params)
    if topology.state in (State.PLANNED, State.APPLYING):
        provision.apply(None, topology)
        with Management(broker.address) as management:
            management.declare_queue(
                Queue(PARKED, arguments=Arguments({"x-queue-type": "classic"}))
            )
    return broker


def register_own_broker(amqp_url: str, management_url: str) -> Broker:
    """Make or update the row of the operator's own broker; nothing is changed on it."""
    address = parse_address(amqp_url, management_url)
    return _registered(f"{address.host} {address.vhost}", address)


def _registered(name: str, address: Address) -> Broker:
    broker = Broker.objects.filter(name=name).first()
    is_new = broker is None
    broker = broker or Broker(name=name, environment="demo" if name == DEMO_BROKER else "own")
    broker.host, broker.port, broker.vhost = address.host, address.port, address.vhost
    broker.username, broker.tls = address.username, address.tls
    broker.management_url = address.management_url
    if is_new:
        return add_broker(broker, address.password)
    broker.set_password(address.password)
    broker.save()
    return broker
