"""The remedy of a finding, applied to a real broker: the finding ends, and the audit log has it."""

from __future__ import annotations

import pytest

from delayboard.demo.node import PrivateNode
from tests.brokers import Vhost, call_api
from tests.builders import address_of, applied_topology, eventually, make_broker, make_pair
from tests.topology.findings.examples import EXAMPLES
from topology.broker.management.client import Management
from topology.broker.management.observe import observe
from topology.definitions import Binding, Definitions, Exchange, Queue
from topology.findings.find import find
from topology.findings.finding import Finding
from topology.findings.remedy import Remedy, make_remedy
from topology.models import AuditEntry
from topology.operations.apply_remedy import apply_remedy
from topology.operations.ownership import Refusal

pytestmark = pytest.mark.django_db
APPLIED = ("F01", "F02", "F03", "F07", "F09", "F10", "F14", "F15")


def findings(vhost: Vhost, rule: str) -> list[Finding]:
    with Management(address_of(vhost)) as management:
        return [one for one in find(observe(management)) if one.rule.id == rule]


@pytest.mark.parametrize("rule", APPLIED)
def test_an_applied_remedy_ends_its_finding(
    broker_node: PrivateNode, vhost: Vhost, rule: str
) -> None:
    broker = make_broker(vhost)
    exported = EXAMPLES[rule].failing.definitions()
    call_api(broker_node, "POST", f"definitions/{vhost.name}", exported)
    eventually(lambda: len(findings(vhost, rule)) == 1, "policies are in force")
    (found,) = findings(vhost, rule)
    with Management(broker.address) as management:
        remedy = make_remedy(found, observe(management))
    assert remedy is not None
    apply_remedy(None, broker, found.title, remedy, None)
    eventually(lambda: not findings(vhost, rule), "the finding is gone")
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.what, entry.outcome) == ("finding remedied", found.title, "done")
    made = [*entry.details["created"], *entry.details["policies"]]
    assert len(made) == len([*remedy.objects, *remedy.policies])


def test_what_is_made_for_a_topology_is_its_own_and_a_conflict_changes_nothing(
    vhost: Vhost,
) -> None:
    broker = make_broker(vhost)
    topology = applied_topology(make_pair(broker))
    objects = (Exchange("rest", "fanout"), Queue("rest"), Binding("rest", "rest", ""))
    remedy = Remedy(Definitions.of(objects), ())
    assert len(apply_remedy(None, broker, "F10", remedy, topology).select("create")) == 3
    topology.refresh_from_db()
    assert {one.identity for one in objects} <= topology.owned_identities
    assert not apply_remedy(None, broker, "F10", remedy, topology).select("create")
    changed = Remedy(Definitions.of([Exchange("rest", "topic"), Queue("new")]), ())
    with pytest.raises(Refusal, match="Delayboard changed nothing"):
        apply_remedy(None, broker, "F10", changed, topology)
    with Management(broker.address) as management:
        assert observe(management).declared.queue("new") is None


def test_a_policy_that_was_set_meanwhile_stays(broker_node: PrivateNode, vhost: Vhost) -> None:
    broker = make_broker(vhost)
    exported = EXAMPLES["F09"].failing.definitions()
    call_api(broker_node, "POST", f"definitions/{vhost.name}", exported)
    eventually(lambda: findings(vhost, "F09"), "the finding")
    with Management(broker.address) as management:
        remedy = make_remedy(findings(vhost, "F09")[0], observe(management))
        assert remedy is not None
        (policy,) = remedy.policies
        management.set_policy("mine", policy.pattern, {"max-length": 7})
        with pytest.raises(Refusal, match=r"The policy mine was set .* changed nothing"):
            apply_remedy(None, broker, "F09", remedy, None)
        assert [one["name"] for one in management.policies()] == ["mine"]
