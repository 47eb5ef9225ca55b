"""How topologies differ from their definitions, as the worker writes it down."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.builders import make_broker, make_pair
from tests.topology.builders import a_queue, a_snapshot
from topology.definitions import Binding, Definitions, Exchange, Queue
from topology.models import Drift, State, Topology
from topology.operations import provision
from topology.operations.provision import DriftCheck
from topology.operations.topology_rows import create_topology
from topology.patterns.chain.params import claim
from topology.patterns.chain.pattern import retry_chain
from topology.provisioning.plan import Plan
from topology.snapshot import Snapshot
from topology.structure.find_chains import find_chains

pytestmark = pytest.mark.django_db


@pytest.fixture
def pair() -> Topology:
    made = make_pair(make_broker(), delay="5s", tap_type="classic")
    made.state = State.APPLIED
    made.save()
    return made


def sentence(pair: Topology, there: Definitions, check: DriftCheck | None = None) -> str:
    (check or DriftCheck()).update_rows(pair.broker, a_snapshot(there))
    row = Drift.objects.filter(topology=pair).first()
    return row.sentence if row else ""


def test_what_matches_is_no_drift(pair: Topology) -> None:
    assert sentence(pair, pair.definitions) == ""


def test_missing_and_changed_objects_are_counted(pair: Topology) -> None:
    whole = pair.definitions
    total = len(list(whole))
    without = whole.without([("queue", "orders-retry")])
    assert " is missing since 2026-" in sentence(pair, without)
    changed = without | Definitions.of([a_queue("orders-retry", ttl=9, dlx="orders")])
    assert sentence(pair, changed).startswith("1 differs from the definition since ")
    assert sentence(pair, Definitions()).startswith(f"{total} of {total} objects are missing")
    assert sentence(pair, whole) == ""


def test_bindings_of_others_are_no_drift(pair: Topology) -> None:
    others = Definitions.of([Queue("audit"), Binding("orders", "audit", "")])
    assert sentence(pair, pair.definitions | others) == ""


def test_a_queue_that_rabbitmq_deleted_because_nobody_used_it_is_no_drift() -> None:
    """Symfony Messenger and Laravel declare it again with the next delay."""
    wait = a_queue("wait", ttl=5000, dlx="", key="mail", x_expires=15_000)
    found = Definitions.of(
        [Exchange("delays"), Binding("delays", "wait", "w"), wait, Queue("mail")]
    )
    (chain,) = find_chains(found)
    made = create_topology(None, make_broker(), retry_chain.KIND, claim(chain, found))
    made.tap_type = "none"
    assert provision.plan_for(made, a_snapshot(Definitions())).select("create")
    made.state = State.APPLIED
    made.save()
    gone = found.without([wait.identity]).without(one.identity for one in found.bindings)
    assert sentence(made, gone) == ""
    assert " is missing since 2026-" in sentence(made, gone.without([("exchange", "delays")]))


def test_the_first_time_stays_while_the_difference_changes(pair: Topology) -> None:
    sentence(pair, Definitions())
    first = Drift.objects.get()
    later = replace(a_snapshot(Definitions()), taken_at=first.since_at + timedelta(hours=1))
    DriftCheck().update_rows(pair.broker, later)
    assert Drift.objects.get().since_at == first.since_at


def test_a_snapshot_from_before_an_apply_says_nothing(pair: Topology) -> None:
    Topology.objects.update(applied_at=a_snapshot(Definitions()).taken_at + timedelta(seconds=1))
    assert sentence(pair, Definitions()) == ""


def test_a_deleted_topology_has_no_drift(pair: Topology) -> None:
    sentence(pair, Definitions())
    Topology.objects.update(state=State.DELETED)
    assert sentence(pair, Definitions()) == ""


def test_what_did_not_change_is_not_compared_again(
    pair: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[Topology] = []
    plan_for = provision.plan_for

    def counted(topology: Topology, snapshot: Snapshot) -> Plan:
        compared.append(topology)
        return plan_for(topology, snapshot)

    monkeypatch.setattr(provision, "plan_for", counted)
    check = DriftCheck()
    for _ in range(3):
        sentence(pair, pair.definitions, check)
    assert len(compared) == 1
    sentence(pair, pair.definitions.without([("queue", "orders-retry")]), check)
    assert len(compared) == 2
