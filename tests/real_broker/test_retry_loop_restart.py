"""What a restart of the broker leaves of the article's transient exchanges."""

from __future__ import annotations

from functools import partial

import pytest

from delayboard.demo.node import PrivateNode
from tests.brokers import Vhost
from tests.builders import address_of, eventually, make_broker
from tests.real_broker.restarting import restart
from topology.broker.errors import NotFound
from topology.broker.management.client import Management
from topology.broker.management.observe import observe
from topology.models import Topology
from topology.operations import provision
from topology.operations.topology_rows import create_topology
from topology.patterns.retry_loop.pattern import retry_loop

pytestmark = [pytest.mark.django_db, pytest.mark.generations("3.10", "4.3")]


def is_applied(topology: Topology) -> bool:
    """After a restart some queue may be slower than the management API."""
    try:
        provision.apply(None, topology)
    except NotFound:
        return False
    return True


def test_a_restart_takes_transient_exchanges_before_4_3_and_applying_puts_them_back(
    broker_node: PrivateNode, vhost: Vhost
) -> None:
    broker = make_broker(vhost)
    topologies = {
        params: create_topology(None, broker, retry_loop.KIND, params)
        for preset in ("article", "durable")
        for params in [retry_loop.parse({"name": preset, "preset": preset})]
    }
    for topology in topologies.values():
        provision.apply(None, topology)
    restart(broker_node)
    with Management(address_of(vhost)) as management:
        snapshot = observe(management)
        for params, topology in topologies.items():
            own = retry_loop.definitions(params)
            gone = {obj for obj in own if snapshot.declared.get(obj.identity) is None}
            is_taken = params.preset == "article" and snapshot.version_tuple < (4, 3)
            assert gone == ({*own.exchanges, *own.bindings} if is_taken else set())
            eventually(partial(is_applied, topology), "every queue has come up again")
        uses = retry_loop.recognize(observe(management).declared)
        assert {use.params: use.missing for use in uses} == dict.fromkeys(topologies, ())
