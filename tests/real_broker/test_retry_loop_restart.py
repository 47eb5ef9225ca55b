"""What a restart of the broker leaves of the article's transient exchanges."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from delayboard.demo.node import PrivateNode
from tests.brokers import SUITES, Vhost, root_of
from tests.builders import address_of, eventually, make_broker
from topology import provision
from topology.broker.errors import NotFound
from topology.broker.management import Management
from topology.broker.observe import observe
from topology.models import Topology
from topology.patterns.retry_loop import pattern as retry_loop

pytestmark = pytest.mark.django_db


@pytest.fixture(params=SUITES)
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PrivateNode]:
    node = PrivateNode(
        tmp_path / "node", "restarted", statistics_interval_ms=1000, root=root_of(request.param)
    )
    node.start()
    yield node
    node.kill()


def is_applied(topology: Topology) -> bool:
    """After a restart some queue may be slower than the management API."""
    try:
        provision.apply(None, topology)
    except NotFound:
        return False
    return True


@pytest.mark.parametrize("preset", ["article", "durable"])
def test_a_restart_takes_transient_exchanges_before_4_3_and_applying_puts_them_back(
    node: PrivateNode, preset: str
) -> None:
    vhost = Vhost(node.amqp_url, node.management_url, "/", node.username, node.password)
    params = retry_loop.parse({"name": "a", "preset": preset})
    topology = provision.create_topology(None, make_broker(vhost), retry_loop.KIND, params)
    provision.apply(None, topology)
    own = retry_loop.definitions(params)
    node.stop()
    node.start()
    with Management(address_of(vhost)) as management:
        snapshot = observe(management)
        gone = {thing for thing in own if snapshot.declared.get(thing.identity) is None}
        is_taken = preset == "article" and snapshot.version_tuple < (4, 3)
        assert gone == ({*own.exchanges, *own.bindings} if is_taken else set())
        eventually(lambda: is_applied(topology), "every queue has come up again")
        (use,) = retry_loop.recognize(observe(management).declared)
        assert (use.params, use.missing) == (params, ())
