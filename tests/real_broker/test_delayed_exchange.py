"""An exchange of the archived delayed-message plugin is refused, and nothing is changed."""

from __future__ import annotations

import pytest

from tests.brokers import Vhost, every_generation
from tests.builders import address_of, make_broker
from topology.broker.management.client import Management
from topology.broker.management.observe import observe
from topology.definitions import Queue
from topology.models import State
from topology.operations import provision
from topology.operations.ownership import Refusal
from topology.operations.topology_rows import create_topology
from topology.patterns.delayed_exchange import params as delayed_exchange_params
from topology.patterns.delayed_exchange.pattern import delayed_exchange

pytestmark = pytest.mark.django_db


@every_generation
def test_it_is_refused_with_what_replaces_it_and_nothing_is_changed(
    vhost: Vhost,
) -> None:
    params = delayed_exchange_params.Params("later", "direct", (("work", "work"),))
    topology = create_topology(None, make_broker(vhost), delayed_exchange.KIND, params)
    with Management(address_of(vhost)) as management:
        management.declare_queue(Queue("work"))
        before = observe(management)
        obstacle = provision.obstacle_for(topology, before)
        with pytest.raises(Refusal) as refused:
            provision.apply(None, topology)
        after = observe(management)
    assert str(refused.value) == f"{obstacle} Delayboard changed nothing."
    assert "Use delay levels instead" in obstacle
    assert after.declared == before.declared
    topology.refresh_from_db()
    assert (topology.state, topology.owned) == (State.PLANNED, [])
