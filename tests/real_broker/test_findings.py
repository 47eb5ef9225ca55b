"""Rules at real brokers: each example is imported, and found as its file is found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal, TypeAlias
from urllib.error import HTTPError

import pika
import pytest

from delayboard.demo.node import PrivateNode
from tests.brokers import Vhost, call_api, every_generation, newest_generation
from tests.builders import address_of, eventually
from tests.publishing import publisher
from tests.topology.findings.examples import EXAMPLES
from tests.topology.findings.examples.example import Example
from topology import snapshots
from topology.broker.amqp.depths import live_depths
from topology.broker.management.client import Management
from topology.broker.management.definitions_file import read_export
from topology.broker.management.observe import observe
from topology.broker.properties.read import build_properties
from topology.definitions import TAP_PREFIX, Arguments, Binding, Exchange, Queue
from topology.findings.find import LIVE_RULES, RULES, find
from topology.findings.finding import Finding, Rule
from topology.findings.hit import Evidence, Severity
from topology.message import Properties, Publish
from topology.snapshot import QueueNumbers, Snapshot

Found: TypeAlias = set[tuple[str, Evidence]]
# The delay plugin is not in the packages.
WITHOUT_PLUGIN = {"F30"}
REFUSED = {"F31"} | WITHOUT_PLUGIN
# What streams refuse, they accept from 3.12 on.
ONLY_BEFORE_3_12 = {"F12"}


def evidence_of(findings: Iterable[Finding]) -> Found:
    return {(one.rule.id, evidence) for one in findings for evidence in one.evidence}


def example_of(rule: Rule, kind: str) -> Example:
    return EXAMPLES[rule.id].failing if kind == "failing" else EXAMPLES[rule.id].passing


def from_file(rules: Iterable[Rule], kind: str, version: str) -> Found:
    """What the files of all these examples give."""
    found: Found = set()
    for rule in rules:
        for snapshot in read_export(example_of(rule, kind).definitions(), version).values():
            found |= evidence_of(find(snapshot))
    return found


def load(node: PrivateNode, vhost: Vhost, kind: str) -> tuple[list[Rule], set[str]]:
    """Import each example; the rules whose example the broker took, and the ids of the others."""
    taken, refused = [], set()
    for rule in RULES:
        try:
            call_api(
                node, "POST", f"definitions/{vhost.name}", example_of(rule, kind).definitions()
            )
        except HTTPError:
            refused.add(rule.id)
        else:
            taken.append(rule)
    return taken, refused


@every_generation
@pytest.mark.parametrize("kind", ["failing", "passing"])
def test_a_broker_with_the_examples_has_the_findings_of_their_files(
    broker_node: PrivateNode, vhost: Vhost, kind: Literal["failing", "passing"]
) -> None:
    taken, refused = load(broker_node, vhost, kind)
    assert refused == (REFUSED if kind == "failing" else set())
    with Management(address_of(vhost)) as management:
        version = observe(management).version
        wanted = from_file(taken, kind, version)

        def is_as_its_file() -> bool:
            return evidence_of(find(observe(management))) == wanted

        eventually(is_as_its_file, "policies are in force")
    (exported,) = read_export(call_api(broker_node, "GET", f"definitions/{vhost.name}")).values()
    of_cluster = read_export(call_api(broker_node, "GET", "definitions"))[vhost.name]
    assert evidence_of(find(exported)) == evidence_of(find(of_cluster)) == wanted
    reported = {rule_id for rule_id, evidence in wanted if names(evidence, rule_id)}
    late = set() if version.startswith("3.10") else ONLY_BEFORE_3_12
    if kind == "failing":
        assert {rule.id for rule in RULES} - reported == REFUSED | late
    else:
        assert reported == set()


def names(evidence: Evidence, rule_id: str) -> bool:
    """Whether it is about an object of this rule's own example, which its name says."""
    return any(part.startswith(rule_id.lower()) for part in evidence.object[1:])


@every_generation
@pytest.mark.parametrize(
    ("headers", "arrives"),
    [({}, []), ({"CC": ["save.once"]}, ["save"]), ({"BCC": ["delete.once"]}, ["delete"])],
)
def test_a_dead_letter_is_routed_by_its_copy_keys_too(
    broker_node: PrivateNode, vhost: Vhost, headers: dict[str, Any], arrives: list[str]
) -> None:
    """F02 of what rascal's example declares: possible, and lost without such a key."""
    wait: dict[str, Any] = {"x-message-ttl": 1, "x-dead-letter-exchange": "retry"}
    queues = [Queue("wait", arguments=Arguments(wait)), Queue("save"), Queue("delete")]
    with Management(address_of(vhost)) as management:
        for name in ("delay", "retry"):
            management.declare_exchange(Exchange(name, "topic"))
        for one in queues:
            management.declare_queue(one)
        management.bind(Binding("delay", "wait", "delay.1m"))
        for name in ("save", "delete"):
            management.bind(Binding("retry", name, f"{name}.#"))
        (found,) = find(observe(management))
    assert (found.rule.id, found.is_possible, found.commands) == ("F02", True, ())
    with publisher(address_of(vhost), "test") as channel:
        channel.publish(Publish("delay", "delay.1m", build_properties(headers), b""))
    wanted = {"wait": 0} | {name: int(name in arrives) for name in ("save", "delete")}
    eventually(lambda: live_depths(address_of(vhost), list(wanted)) == wanted, "it has died")


@newest_generation
def test_an_exchange_of_the_delay_plugin_ends_an_import_of_rabbitmq_4_3(
    broker_node: PrivateNode, vhost: Vhost
) -> None:
    """F30."""
    document = {**EXAMPLES["F30"].failing.definitions(), "queues": [{"name": "f30-work"}]}
    (snapshot,) = read_export(document, "4.3.6").values()
    assert {one.rule.id: one.severity for one in find(snapshot)} == {"F30": Severity.REFUSED}
    with pytest.raises(HTTPError):
        call_api(broker_node, "POST", f"definitions/{vhost.name}", document)
    assert not declare(vhost).definitions.queues


@every_generation
def test_a_quorum_queue_takes_reject_publish_dlx_for_drop_head(
    broker_node: PrivateNode, vhost: Vhost
) -> None:
    """F11: the oldest message goes, and no publish is refused."""
    arguments = Arguments({"x-queue-type": "quorum", "x-max-length": 2})
    policy = {"pattern": "^full$", "apply-to": "queues", "priority": 0}
    definition = {"overflow": "reject-publish-dlx"}
    call_api(
        broker_node, "PUT", f"policies/{vhost.name}/full", {**policy, "definition": definition}
    )
    with Management(address_of(vhost)) as management:
        management.declare_queue(Queue("full", arguments=arguments))
    with publisher(address_of(vhost), "test") as channel:
        for body in (b"1", b"2", b"3", b"4", b"5"):
            channel.publish(Publish("", "full", Properties(), body))
    request = {"count": 5, "ackmode": "ack_requeue_false", "encoding": "auto"}
    found = call_api(broker_node, "POST", f"queues/{vhost.name}/full/get", request)
    assert [message["payload"] for message in found] == ["4", "5"]


@every_generation
@pytest.mark.parametrize(("kind", "kept"), [("classic", 2), ("quorum", 5)])
def test_a_full_classic_queue_refuses_dead_letters_and_a_quorum_queue_takes_them(
    broker_node: PrivateNode, vhost: Vhost, kind: str, kept: int
) -> None:
    """F13: the message that died is in no queue."""
    full: dict[str, Any] = {"x-queue-type": kind, "x-max-length": 2, "x-overflow": "reject-publish"}
    to_full = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "full"}
    declare(vhost, Queue("full", arguments=Arguments(full)))
    declare(vhost, Queue("work", arguments=Arguments({**to_full, "x-max-length": 1})))
    send(vhost, "work", 6)
    depths: dict[str, int] = {}

    def has_settled() -> bool:
        depths.update(live_depths(address_of(vhost), ["work", "full"]))
        return depths == {"work": 1, "full": kept}

    eventually(has_settled, "five of six have died")


def live(vhost: Vhost, earlier: Snapshot | None = None) -> dict[str, str]:
    """The findings of live numbers: rule and first sentence."""
    return {one.rule.id: one.evidence[0].sentence for one in live_findings(vhost, earlier)}


def live_findings(vhost: Vhost, earlier: Snapshot | None = None) -> Sequence[Finding]:
    """`earlier` counts as a minute ago."""
    return findings_between(declare(vhost), earlier)


def findings_between(seen: Snapshot, earlier: Snapshot | None) -> Sequence[Finding]:
    if earlier is not None:
        minute = timedelta(minutes=1)
        seen = replace(seen, earlier=earlier.numbers, earlier_at=seen.taken_at - minute)
    return find(seen, LIVE_RULES)


def objects(vhost: Vhost, earlier: Snapshot) -> dict[str, list[str]]:
    return queues_by_rule(live_findings(vhost, earlier))


def queues_by_rule(findings: Iterable[Finding]) -> dict[str, list[str]]:
    """The queues that each rule of live numbers reports."""
    return {one.rule.id: [evidence.object[1] for evidence in one.evidence] for one in findings}


def declare(vhost: Vhost, *queues: Queue) -> Snapshot:
    with Management(address_of(vhost)) as management:
        for one in queues:
            management.declare_queue(one)
        return observe(management)


def send(vhost: Vhost, queue: str, number: int = 1) -> None:
    with publisher(address_of(vhost), "test") as channel:
        for _ in range(number):
            channel.publish(Publish("", queue, Properties(), b""))


@every_generation
def test_consumers_on_a_delay_queue_and_in_a_loop_are_found(
    broker_node: PrivateNode, vhost: Vhost
) -> None:
    to_wait = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "wait"}
    to_work = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "work"}
    wait = Arguments({**to_work, "x-message-ttl": 60_000})
    declare(vhost, Queue("work", arguments=Arguments(to_wait)), Queue("wait", arguments=wait))
    send(vhost, "work")
    with closing(pika.BlockingConnection(pika.URLParameters(vhost.amqp_url))) as connection:
        channel = connection.channel()
        channel.basic_consume("wait", lambda *given: None)

        def requeue(channel: Any, method: Any, properties: Any, body: bytes) -> None:
            connection.call_later(0.02, lambda: channel.basic_reject(method.delivery_tag))

        channel.basic_consume("work", requeue)

        def is_found() -> bool:
            connection.process_data_events(0.5)
            return {"L04", "L07"} <= set(live(vhost))

        eventually(is_found, "both are found")


@every_generation
def test_a_rejected_message_stays_where_neither_a_ttl_nor_a_consumer_ends_its_wait(
    broker_node: PrivateNode, vhost: Vhost
) -> None:
    """F32: its own expiration went with the rejection."""
    to_wait = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "wait"}
    to_work = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "work"}
    declare(vhost, Queue("work", arguments=Arguments(to_wait)))
    declare(vhost, Queue("wait", arguments=Arguments(to_work)))
    with closing(pika.BlockingConnection(pika.URLParameters(vhost.amqp_url))) as connection:
        channel = connection.channel()
        channel.basic_consume(
            "work", lambda channel, method, *rest: channel.basic_reject(method.delivery_tag, False)
        )
        channel.basic_publish("", "work", b"", pika.BasicProperties(expiration="500"))

        def is_found() -> bool:
            connection.process_data_events(0.2)
            found = {one.rule.id: one for one in find(declare(vhost))}
            return "F32" in found and found["F32"].severity == Severity.STUCK

        eventually(is_found, "it is found")
        (before,) = (one for one in find(declare(vhost)) if one.rule.id == "F32")
    assert [evidence.object for evidence in before.evidence] == [("queue", "wait")]
    request = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
    (message,) = call_api(broker_node, "POST", f"queues/{vhost.name}/wait/get", request)
    assert "expiration" not in message["properties"]


@every_generation
def test_dead_letters_that_wait_and_grow_are_found(broker_node: PrivateNode, vhost: Vhost) -> None:
    to_dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    before = declare(
        vhost, Queue("work", arguments=Arguments({**to_dead, "x-max-length": 1})), Queue("dead")
    )
    before = replace(before, numbers={"dead": QueueNumbers(messages=0, consumers=0)})
    send(vhost, "work", 3)
    eventually(lambda: set(live(vhost, before)) == {"L09", "L11"}, "both are found")
    assert (
        live(vhost, before)["L11"]
        == "2 messages are waiting in “dead”, and no consumer reads them."
    )


@every_generation
def test_messages_from_before_their_ttl_that_never_expire_are_found(
    broker_node: PrivateNode, vhost: Vhost
) -> None:
    """The message of the queue “long” is not due."""
    to_work = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "work"}
    hour = Arguments({**to_work, "x-message-ttl": 3_600_000})
    declare(vhost, Queue("wait", arguments=Arguments(to_work)), Queue("long", arguments=hour))
    send(vhost, "wait")
    send(vhost, "long")
    policy = {"pattern": "^wait$", "apply-to": "queues", "definition": {"message-ttl": 1}}
    call_api(broker_node, "PUT", f"policies/{vhost.name}/later", policy)
    eventually(lambda: declare(vhost).policies.get("wait"), "the policy is in force")
    send(vhost, "wait", 2)

    def find_later() -> dict[str, list[str]]:
        """As if the first look had been a minute and a half ago."""
        first = declare(vhost)
        first = replace(first, taken_at=first.taken_at - timedelta(seconds=90))
        seen = snapshots._with_earlier(
            snapshots._with_earlier(None, first), declare(vhost)
        ).snapshot
        assert seen is not None
        return queues_by_rule(find(seen, LIVE_RULES))

    eventually(lambda: find_later() == {"L03": ["wait"]}, "they are found")
    assert live_depths(address_of(vhost), ["wait", "long"]) == {"wait": 3, "long": 1}


@every_generation
def test_messages_that_an_at_least_once_queue_keeps_are_found_with_their_destination(
    broker_node: PrivateNode, vhost: Vhost
) -> None:
    arguments: dict[str, Any] = {
        "x-queue-type": "quorum",
        "x-message-ttl": 100,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "gone",
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }
    declare(vhost, Queue("wait", arguments=Arguments(arguments)))
    send(vhost, "wait", 2)

    def is_found() -> bool:
        with Management(address_of(vhost)) as management:
            first = observe(management)
        return "2 messages are stuck" in live(vhost, first).get("L02", "")

    eventually(is_found, "the messages are stuck")
    with Management(address_of(vhost)) as management:
        first = observe(management)
    assert "no queue gets “gone”" in live(vhost, first)["L02"]


@every_generation
def test_the_full_queue_behind_stuck_messages_is_found(
    broker_node: PrivateNode, vhost: Vhost
) -> None:
    """L02: no key is missing. A quorum queue takes one message more than its limit."""
    safe: dict[str, Any] = {
        "x-queue-type": "quorum",
        "x-message-ttl": 100,
        "x-dead-letter-exchange": "",
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }
    limit: dict[str, Any] = {"x-max-length": 2, "x-overflow": "reject-publish"}
    held = {"classic": 2, "quorum": 3}
    for kind, most in held.items():
        to_full = {**safe, "x-dead-letter-routing-key": kind}
        full = Arguments({**limit, "x-queue-type": kind})
        wait = Arguments(to_full)
        declare(vhost, Queue(kind, arguments=full), Queue(f"before-{kind}", arguments=wait))
        send(vhost, kind, most)
        send(vhost, f"before-{kind}", 3)
    wanted = {
        f"3 messages are stuck in “before-{kind}”: “{kind}” is full ({most} messages, "
        "x-max-length is 2) and refuses them."
        for kind, most in held.items()
    }

    def is_found() -> bool:
        found = live_findings(vhost, declare(vhost))
        return {e.sentence for one in found for e in one.evidence if one.rule.id == "L02"} == wanted

    eventually(is_found, "the messages are stuck")


def test_what_consumers_and_taps_get_not_done_is_found(
    broker_node: PrivateNode, vhost: Vhost
) -> None:
    """One consumer acknowledges, one rejects to a retry queue, one puts back until the limit."""
    retry = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "wait"}
    back = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "work"}
    crash: dict[str, Any] = {"x-queue-type": "quorum", "x-delivery-limit": 1_000}
    tap = f"{TAP_PREFIX}shop"
    declare(
        vhost,
        Queue("work", arguments=Arguments(retry)),
        Queue("wait", arguments=Arguments({**back, "x-message-ttl": 60_000})),
        Queue("lost", arguments=Arguments(crash)),
        Queue("saved", arguments=Arguments({**crash, **retry})),
        Queue("sound", arguments=Arguments(crash)),
        Queue(tap),
    )
    for name, number in {"work": 500, "sound": 500, "lost": 1, "saved": 1, tap: 3}.items():
        send(vhost, name, number)
    before = replace(
        declare(vhost), numbers={"wait": QueueNumbers(messages=0), tap: QueueNumbers(ready=2)}
    )
    with closing(pika.BlockingConnection(pika.URLParameters(vhost.amqp_url))) as connection:

        def consume(queue: str, settle: Callable[[Any, int], None]) -> None:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=1)

            def take(channel: Any, method: Any, properties: Any, body: bytes) -> None:
                connection.call_later(0.05, lambda: settle(channel, method.delivery_tag))

            channel.basic_consume(queue, take)

        consume("work", lambda channel, tag: channel.basic_reject(tag, requeue=False))
        consume("sound", lambda channel, tag: channel.basic_ack(tag))
        for name in ("lost", "saved"):
            consume(name, lambda channel, tag: channel.basic_nack(tag))

        def is_found() -> bool:
            connection.process_data_events(0.5)
            return objects(vhost, before) == {
                "L01": ["lost"],
                "L07": ["saved"],
                "L08": ["wait"],
                "L10": [tap],
            }

        eventually(is_found, "each is found, and nothing of the queue “sound”")


@pytest.mark.long
def test_more_expire_than_an_at_least_once_queue_sends_on(
    broker_node: PrivateNode, vhost: Vhost
) -> None:
    """Each of the ten quorum queues behind it has to confirm."""
    arguments: dict[str, Any] = {
        "x-queue-type": "quorum",
        "x-message-ttl": 2000,
        "x-dead-letter-exchange": "next",
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }
    quorum = Arguments({"x-queue-type": "quorum"})
    with Management(address_of(vhost)) as management:
        management.declare_exchange(Exchange("next", "fanout"))
        for name in (f"next-{n}" for n in range(10)):
            management.declare_queue(Queue(name, arguments=quorum))
            management.bind(Binding("next", name, ""))
        management.declare_queue(Queue("wait", arguments=Arguments(arguments)))
    with closing(pika.BlockingConnection(pika.URLParameters(vhost.amqp_url))) as connection:
        channel = connection.channel()
        # RabbitMQ counts them every five seconds, and 3.10 sends on two thousand a second.
        for _ in range(30_000):
            channel.basic_publish("", "wait", b"")
    looks: list[Snapshot] = []

    def is_found() -> bool:
        """Between a look and any before it; the broker is not slow for long."""
        looks.append(seen := declare(vhost))
        return any(
            queues_by_rule(findings_between(seen, earlier)) == {"L05": ["wait"]}
            for earlier in looks[:-1]
        )

    eventually(is_found, "more wait for their turn than leave at once")
