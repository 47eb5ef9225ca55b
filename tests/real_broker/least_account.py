"""An account with exactly the permissions that are exported for Delayboard."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from delayboard.demo.node import PrivateNode
from tests.brokers import call_api
from topology.broker.address import Address
from topology.broker.management.client import Management
from topology.broker.management.observe import observe
from topology.models import Broker, State
from topology.operations.definitions_files import export_topology
from topology.provisioning.replacement import SUFFIX

USER, PASSWORD = "least", "a long enough password"


def limit_account(node: PrivateNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes through the row of a broker with topologies has the permissions on these.

    They are exported again before each use, as an operator does when destinations change, but not
    while a queue is replaced. Tests themselves keep the account that may do everything.
    """
    account = {"password": PASSWORD, "tags": "monitoring"}
    call_api(node, "PUT", f"users/{USER}", account)
    given: dict[str, dict[str, str]] = {}
    read_address = vars(Broker)["address"].fget

    def limited(broker: Broker) -> Address:
        full: Address = read_address(broker)
        rows = broker.topologies.exclude(state=State.DELETED)
        row = rows.first() or broker.topologies.first()
        if row is None or full.username != node.username:
            return full
        with Management(full) as management:
            found = observe(management).definitions
        exported = export_topology(row, "permissions", found).splitlines()
        (line,) = [
            one for one in exported if one.startswith("rabbitmqctl") and " delayboard '" in one
        ]
        kinds = dict(zip(("configure", "write", "read"), shlex.split(line)[-3:], strict=True))
        is_replacing = any(queue.name.endswith(SUFFIX) for queue in found.queues)
        if kinds != given.get(broker.vhost) and not is_replacing:
            given[broker.vhost] = kinds
            call_api(node, "PUT", f"permissions/{broker.vhost}/{USER}", kinds)
        return replace(full, username=USER, password=PASSWORD)

    monkeypatch.setattr(Broker, "address", property(limited))
