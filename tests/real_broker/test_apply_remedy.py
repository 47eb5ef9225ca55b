"""The remedy of a finding, applied to a real broker: the finding ends, and the audit log has it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from delayboard.demo.node import PrivateNode
from tests.brokers import Vhost, call_api
from tests.builders import address_of, applied_topology, eventually, make_broker, make_pair
from tests.topology.findings.examples import EXAMPLES
from topology import snapshots
from topology.broker.amqp.connection import open_connection
from topology.broker.amqp.depths import live_depths
from topology.broker.errors import BrokerError, Unreachable
from topology.broker.management.client import Management
from topology.broker.management.observe import observe
from topology.definitions import Arguments, ArgumentValue, Binding, Definitions, Exchange, Queue
from topology.findings.find import find
from topology.findings.finding import Finding
from topology.findings.remedy import Remedy, make_remedy
from topology.models import AuditEntry
from topology.operations import apply_remedy as apply_module
from topology.operations.apply_remedy import _replace, apply_remedy, explain_in_use
from topology.operations.ownership import Refusal
from topology.snapshot import QueueNumbers
from topology.snapshots import Latest

pytestmark = pytest.mark.django_db
# All of loss, and others that objects, policies and other arguments end.
APPLIED = [f"F{number:02}" for number in (*range(1, 12), *range(13, 17), 19, 20, 23)]


def findings(vhost: Vhost, rule: str) -> list[Finding]:
    with Management(address_of(vhost)) as management:
        return [one for one in find(observe(management)) if one.rule.id == rule]


def publish(broker_node: PrivateNode, vhost: Vhost, exchange: str, key: str) -> None:
    where = f"exchanges/{vhost.name}/{exchange}/publish"
    sent = {"properties": {}, "routing_key": key, "payload": "1", "payload_encoding": "string"}
    assert call_api(broker_node, "POST", where, sent)["routed"]


def wait_for_numbers(management: Management, remedy: Remedy) -> None:
    eventually(lambda: not explain_in_use(remedy, observe(management)), "numbers are known")


@pytest.mark.parametrize("rule", APPLIED)
def test_an_applied_remedy_ends_its_finding(
    broker_node: PrivateNode, vhost: Vhost, rule: str
) -> None:
    check_remedy(broker_node, vhost, rule)


@pytest.mark.generations("3.10", only=True)
def test_dead_letters_to_an_old_stream_get_another_queue(
    broker_node: PrivateNode, vhost: Vhost
) -> None:
    """RabbitMQ 3.10 is the only one here that drops them."""
    check_remedy(broker_node, vhost, "F12")


def check_remedy(broker_node: PrivateNode, vhost: Vhost, rule: str) -> None:
    broker = make_broker(vhost)
    exported = EXAMPLES[rule].failing.definitions()
    call_api(broker_node, "POST", f"definitions/{vhost.name}", exported)
    eventually(lambda: len(findings(vhost, rule)) == 1, "policies are in force")
    (found,) = findings(vhost, rule)
    with Management(broker.address) as management:
        remedy = make_remedy(found, observe(management))
        assert remedy is not None
        wait_for_numbers(management, remedy)
    apply_remedy(None, broker, found.title, remedy, None)
    eventually(lambda: not findings(vhost, rule), "the finding is gone")
    entry = AuditEntry.objects.get(action="finding remedied")
    assert (entry.what, entry.outcome) == (found.title, "done")
    made = [one for kind in ("created", "policies", "replaced") for one in entry.details[kind]]
    assert len(made) == len([*remedy.objects, *remedy.policies, *remedy.replaced])


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


def test_a_queue_in_use_is_not_replaced_and_keeps_its_bindings_when_it_is(
    broker_node: PrivateNode, vhost: Vhost
) -> None:
    broker = make_broker(vhost)
    wait = Queue(
        "wait",
        arguments=Arguments(
            {
                "x-queue-type": "classic",
                "x-message-ttl": 600_000,
                "x-expires": 600_000,
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": "work",
            }
        ),
    )
    bound = Binding("in", "wait", "a key", arguments=Arguments({"color": "blue"}))
    with Management(broker.address) as management:
        management.declare([Exchange("in"), Queue("work"), wait, bound])
        eventually(lambda: findings(vhost, "F05"), "the finding")
        remedy = make_remedy(findings(vhost, "F05")[0], observe(management))
        assert remedy is not None
        assert remedy.label == "Replace queue"
        publish(broker_node, vhost, "amq.default", "wait")
        with pytest.raises(Refusal, match=r"“wait” holds 1 message\. .* changed nothing"):
            apply_remedy(None, broker, "F05", remedy, None)
        assert observe(management).declared.queue("wait") == wait
        call_api(broker_node, "DELETE", f"queues/{vhost.name}/wait/contents")
        eventually(lambda: not explain_in_use(remedy, observe(management)), "empty")
        apply_remedy(None, broker, "F05", remedy, None)
        now = observe(management).declared
        assert now.queue("wait") == remedy.replaced[0]
        assert bound in now.leads("in", "wait")


def test_another_policy_of_a_queue_keeps_its_settings(vhost: Vhost) -> None:
    """It is for other queues too, so the queue gets one of its own. It ends F11, not F03."""
    broker = make_broker(vhost)
    quorum = Arguments({"x-queue-type": "quorum", "x-max-length": 5})
    with Management(broker.address) as management:
        management.declare([Queue("one", arguments=quorum), Queue("other")])
        given = {"overflow": "reject-publish-dlx", "message-ttl": 60_000}
        management.set_policy("all", ".*", given, 7)
        found = eventually(lambda: findings(vhost, "F11"), "the finding")[0]
        remedy = make_remedy(found, observe(management))
        assert remedy is not None
        apply_remedy(None, broker, "F11", remedy, None)
        set_now = {one["name"]: one for one in management.policies()}
        assert set_now["all"]["definition"] == given
        own = set_now["delayboard-one-dead-letters"]
        assert own["definition"] == {**given, "overflow": "reject-publish"}
        assert (own["priority"], own["pattern"]) == (8, "^one$")


@pytest.mark.parametrize("limits", [{"x-delivery-limit": 5}, {"x-max-length": 5}])
def test_deaths_of_a_quorum_queue_in_its_cycle_end(
    vhost: Vhost, limits: dict[str, ArgumentValue]
) -> None:
    broker = make_broker(vhost)
    to_wait = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "wait"}
    back = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "work"}
    quorum: dict[str, ArgumentValue] = {"x-queue-type": "quorum", "x-delivery-limit": -1}
    work = Arguments({**quorum, **to_wait, **limits})
    wait = Arguments({"x-message-ttl": 60_000, **back})
    with Management(broker.address) as management:
        management.declare([Queue("work", arguments=work), Queue("wait", arguments=wait)])
        eventually(lambda: findings(vhost, "F04"), "the finding")
        for found in findings(vhost, "F04"):
            remedy = make_remedy(found, observe(management))
            assert remedy is not None, found.title
            wait_for_numbers(management, remedy)
            apply_remedy(None, broker, "F04", remedy, None)
    eventually(lambda: not findings(vhost, "F04"), "the finding is gone")


def test_a_quorum_queue_that_got_a_message_meanwhile_stays_with_its_bindings(
    broker_node: PrivateNode, vhost: Vhost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RabbitMQ deletes it with its messages, whatever the condition."""
    broker = make_broker(vhost)
    expiring = Arguments({"x-queue-type": "quorum", "x-expires": 600_000})
    remedy = Remedy(
        Definitions(), (), "", (Queue("one", arguments=Arguments({"x-queue-type": "quorum"})),)
    )
    bound = Binding("in", "one", "key", arguments=Arguments({"color": "blue"}))
    with Management(broker.address) as management:
        management.declare([Exchange("in"), Queue("one", arguments=expiring), bound])
        wait_for_numbers(management, remedy)

        def look_before_a_publish(*given: Any) -> list[str]:
            found = explain_in_use(*given)
            publish(broker_node, vhost, "in", "key")
            return found

        monkeypatch.setattr(apply_module, "explain_in_use", look_before_a_publish)
        with pytest.raises(Refusal, match=r"“one” was not replaced\. “one” holds 1 message"):
            apply_remedy(None, broker, "F05", remedy, None)
        now = observe(management).declared
        assert now.queue("one") == Queue("one", arguments=expiring)
        assert now.leads("in", "one") == [bound]
        assert live_depths(broker.address, ["one"]) == {"one": 1}


def test_what_is_replaced_is_read_again_at_a_slow_broker(vhost: Vhost) -> None:
    broker = make_broker(vhost)
    classic = Arguments({"x-queue-type": "classic"})
    remedy = Remedy(Definitions(), (), "", (Queue("one", arguments=classic),))
    with Management(broker.address) as management:
        management.declare([Queue("one", durable=False)])
        wait_for_numbers(management, remedy)
        before = replace(
            observe(management), poll_seconds=60.0, numbers={"one": QueueNumbers(messages=1)}
        )
        snapshots._latest[broker.pk] = Latest(before, datetime.now(UTC))
        apply_remedy(None, broker, "F03", remedy, None)
        now = observe(management).declared
    assert now.queue("one") == remedy.replaced[0]


EXPIRING = Queue("one", arguments=Arguments({"x-queue-type": "classic", "x-expires": 600_000}))
LASTING = Queue("one", arguments=Arguments({"x-queue-type": "classic"}))
BOUND = (Binding("in", "one", "a"), Binding("in", "one", "b", arguments=Arguments({"c": "d"})))


def declare_bound(management: Management, source: Exchange, wanted: Queue) -> Remedy:
    """What replaces the queue by the wanted one, once its numbers are known."""
    management.declare([source, EXPIRING, *BOUND])
    remedy = Remedy(Definitions(), (), "", (wanted,))
    eventually(
        lambda: (
            "one" in (now := observe(management)).numbers
            and now.numbers["one"].consumers == now.numbers["one"].messages == 0
        ),
        "numbers are known",
    )
    return remedy


def test_an_auto_delete_exchange_that_is_bound_to_it_would_be_lost(vhost: Vhost) -> None:
    broker = make_broker(vhost)
    with Management(broker.address) as management:
        remedy = declare_bound(management, Exchange("in", auto_delete=True), LASTING)
        with pytest.raises(Refusal, match=r"auto-delete exchange “in” with its last binding"):
            apply_remedy(None, broker, "F05", remedy, None)
        now = observe(management).declared
    assert now.queue("one") == EXPIRING
    assert now.leads("in", "one") == list(BOUND)


def test_what_rabbitmq_refuses_is_declared_as_before(vhost: Vhost) -> None:
    broker = make_broker(vhost)
    refused = replace(EXPIRING, arguments=Arguments({**EXPIRING.arguments, "x-expires": -1}))
    with Management(broker.address) as management:
        remedy = declare_bound(management, Exchange("in"), refused)
        with pytest.raises(BrokerError, match="“one” was not replaced"):
            apply_remedy(None, broker, "F05", remedy, None)
        now = observe(management).declared
    assert now.queue("one") == EXPIRING
    assert now.leads("in", "one") == list(BOUND)
    entry = AuditEntry.objects.get(action="queue replaced")
    assert entry.outcome.startswith("failed: “one” was not replaced")
    assert [one["name"] for one in entry.details["before"]["queues"]] == ["one"]
    assert [one["routing_key"] for one in entry.details["before"]["bindings"]] == ["a", "b"]


@pytest.mark.parametrize("call", ["delete_queue", "declare_queue", "bind"])
def test_a_call_without_an_answer_loses_no_queue_and_no_binding(
    vhost: Vhost, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Its outcome is not known: here the first one was carried out."""
    broker = make_broker(vhost)
    with Management(broker.address) as management:
        remedy = declare_bound(management, Exchange("in"), LASTING)
        carry_out, calls = getattr(Management, call), []

        def answer_late(*given: Any, **stated: Any) -> None:
            carry_out(*given, **stated)
            calls.append(given)
            if len(calls) == 1:
                raise Unreachable("No answer.")

        monkeypatch.setattr(Management, call, answer_late)
        if call == "delete_queue":
            with pytest.raises(Unreachable, match=r"“one” was not replaced\. No answer"):
                apply_remedy(None, broker, "F05", remedy, None)
        else:
            apply_remedy(None, broker, "F05", remedy, None)
        now = observe(management).declared
    assert now.queue("one") == (EXPIRING if call == "delete_queue" else LASTING)
    assert now.leads("in", "one") == list(BOUND)


def test_a_binding_that_fails_is_named_and_the_others_are_there(
    vhost: Vhost, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, carry_out = make_broker(vhost), Management.bind

    def bind(management: Management, binding: Binding) -> None:
        if binding == BOUND[0]:
            raise Unreachable("No answer.")
        carry_out(management, binding)

    with Management(broker.address) as management:
        remedy = declare_bound(management, Exchange("in"), LASTING)
        monkeypatch.setattr(Management, "bind", bind)
        with pytest.raises(Unreachable, match="The binding from in to queue one with key a may be"):
            apply_remedy(None, broker, "F05", remedy, None)
        now = observe(management).declared
    assert now.queue("one") == LASTING
    assert now.leads("in", "one") == [BOUND[1]]


def test_void_in_a_binding_and_an_exclusive_queue_are_not_replaced(vhost: Vhost) -> None:
    """The management API shows void as a text, which would be another binding."""
    broker = make_broker(vhost)
    with Management(broker.address) as management, open_connection(broker.address, "test") as own:
        remedy = declare_bound(management, Exchange("in", "headers"), LASTING)
        channel = own.channel()
        channel.queue_bind("one", "in", "", {"x-match": "all", "tenant": None})
        with pytest.raises(Refusal, match="a list, a table or void"):
            apply_remedy(None, broker, "F05", remedy, None)
        assert len(observe(management).declared.leads("in", "one")) == 3
        channel.queue_declare("reply", exclusive=True)
        wanted = Queue("reply", arguments=LASTING.arguments)
        with pytest.raises(Refusal, match="“reply” is exclusive"):
            _replace(None, broker, wanted, management)
        assert observe(management).declared.queue("reply") != wanted


def test_a_failure_says_what_was_replaced_before(vhost: Vhost) -> None:
    broker = make_broker(vhost)
    other = replace(LASTING, name="other")
    with Management(broker.address) as management:
        management.declare([replace(EXPIRING, name="other")])
        refused = replace(EXPIRING, arguments=Arguments({**EXPIRING.arguments, "x-expires": -1}))
        remedy = declare_bound(management, Exchange("in"), refused)
        remedy = replace(remedy, replaced=(other, refused))
        wait_for_numbers(management, remedy)
        with pytest.raises(BrokerError, match=r"“one” was not replaced.* Done before: queue other"):
            apply_remedy(None, broker, "F05", remedy, None)
        assert observe(management).declared.queue("other") == other
    assert AuditEntry.objects.get(what="F05").details["replaced"] == ["queue other"]
