"""The broker's row that `make run` needs."""

from __future__ import annotations

from delayboard.demo.script import DEMO_BROKER
from topology.broker.address import Address, parse_address
from topology.models import Broker
from topology.operations.connect import add_broker


def prepare_demo(amqp_url: str, management_url: str) -> Broker:
    """Make the demo broker's row, or bring its address up to date.

    The private node keeps its data but may come back on other ports. Raises BrokerError.
    """
    return _register(DEMO_BROKER, parse_address(amqp_url, management_url))


def register_own_broker(amqp_url: str, management_url: str) -> Broker:
    """Make or update the row of the operator's own broker; nothing is changed on it."""
    address = parse_address(amqp_url, management_url)
    return _register(f"{address.host} {address.vhost}", address)


def _register(name: str, address: Address) -> Broker:
    broker = Broker.objects.filter(name=name).first()
    is_new = broker is None
    broker = broker or Broker(name=name, environment="demo" if name == DEMO_BROKER else "own")
    broker.vhost, broker.username, broker.tls = address.vhost, address.username, address.tls
    broker.amqp_addresses = ", ".join(one.amqp_name for one in address.amqp_nodes)
    broker.management_urls = ", ".join(one.management_url for one in address.management_nodes)
    broker.silent = {}
    if is_new:
        return add_broker(broker, address.password)
    broker.set_password(address.password)
    broker.save()
    return broker
