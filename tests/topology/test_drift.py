"""How topologies differ from their definitions, as Now reports it."""

from __future__ import annotations

import pytest

from tests.builders import make_broker, make_pair
from tests.topology.builders import a_queue, a_snapshot
from topology.definitions import Definitions
from topology.models import State, Topology
from topology.operations import drift, provision
from topology.operations.drift import find_drift
from topology.provisioning.plan import Plan
from topology.snapshot import Snapshot

pytestmark = pytest.mark.django_db


@pytest.fixture
def pair() -> Topology:
    made = make_pair(make_broker(), delay="5s", tap_type="classic")
    made.state = State.APPLIED
    made.save()
    return made


def sentence(pair: Topology, there: Definitions) -> str:
    found = find_drift(pair.broker_id, [pair], a_snapshot(there))
    return found[pair.pk].sentence if found else ""


def test_what_matches_is_no_drift(pair: Topology) -> None:
    assert sentence(pair, pair.definitions) == ""


def test_missing_and_changed_objects_are_counted(pair: Topology) -> None:
    whole = pair.definitions
    total = len(list(whole))
    without = whole.without([("queue", "orders-retry")])
    assert "missing." in sentence(pair, without)
    changed = without | Definitions.of([a_queue("orders-retry", ttl=9, dlx="orders")])
    assert sentence(pair, changed) == "1 differs from the definition."
    assert sentence(pair, Definitions()) == f"{total} of {total} objects are missing."


def test_what_did_not_change_is_not_compared_again(
    pair: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    drift._known.clear()
    compared: list[Topology] = []
    plan_for = provision.plan_for

    def counted(topology: Topology, snapshot: Snapshot) -> Plan:
        compared.append(topology)
        return plan_for(topology, snapshot)

    monkeypatch.setattr(provision, "plan_for", counted)
    for _ in range(3):
        sentence(pair, pair.definitions)
    assert len(compared) == 1
    sentence(pair, pair.definitions.without([("queue", "orders-retry")]))
    assert len(compared) == 2
