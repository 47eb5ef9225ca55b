"""A broker with 10,000 queues, 10,000 exchanges and 30,000 bindings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from delayboard.demo.node import PrivateNode
from tests.bench.multitude import BINDINGS, COUNTED, EACH, PAIRS, fill, multitude
from tests.bench.scale import figures_of
from tests.brokers import SUITES, call_api, root_of
from tests.builders import eventually
from tests.publishing import publisher
from tests.rooted import make_node
from tests.topology.builders import is_complete
from topology.broker.address import Address, parse_address
from topology.broker.management.client import Management
from topology.broker.management.observe import observe
from topology.definitions import Queue
from topology.message import Properties, Publish
from topology.provisioning.recognition import recognize
from topology.snapshot import Snapshot

RECOGNISING_CPU_SECONDS = 5.0
PAGE_CPU_SECONDS = 1.0
MOST_MEMORY_MB = 500
MOST_AT_FIRST_KB, MOST_SENT_KB = 200, 50


@pytest.fixture
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PrivateNode]:
    """One of its own: so much raises the alarm that would stop the publishers of other tests."""
    node = make_node(tmp_path / "node", "scale", root=root_of(request.param))
    node.start()
    yield node
    node.kill()


# What it shows of pages and recognition, tests/topology holds with vhosts of that size too.
@pytest.mark.long
@pytest.mark.parametrize("node", SUITES, indirect=True)
def test_a_broker_of_ten_thousand_queues_is_seen_and_shown(
    node: PrivateNode, tmp_path: Path
) -> None:
    address = parse_address(node.amqp_url, node.management_url)
    _make(node.amqp_url, address)
    _is_seen(address)
    _is_shown(node, tmp_path)
    _policies_are_seen(node, address)


def _make(amqp_url: str, address: Address) -> None:
    """The messages first: so many queues may raise the alarm that stops publishers."""
    with Management(address) as management:
        management.declare_queue(Queue(COUNTED))
    with publisher(address, "test") as channel:
        for _ in range(3):
            channel.publish(Publish("", COUNTED, Properties(), b"counted"))
    fill(amqp_url, multitude())


def _seen(address: Address) -> Snapshot:
    with Management(address) as management:
        return observe(management)


def _is_seen(address: Address) -> None:
    def counted() -> Snapshot | None:
        snapshot = _seen(address)
        return snapshot if snapshot.numbers[COUNTED].messages == 3 else None

    snapshot = eventually(counted, "the broker counts the messages", seconds=60)
    found = snapshot.definitions
    wanted = multitude()
    assert {queue.with_type() for queue in wanted.queues} == found.queues
    assert len(found.queues) == EACH
    assert wanted.exchanges <= found.exchanges
    assert wanted.bindings == found.bindings
    assert len(found.bindings) == BINDINGS
    assert all(numbers.consumers == 0 for numbers in snapshot.numbers.values())
    (doubt,) = snapshot.doubts
    assert doubt.startswith(
        "This virtual host has 10\u202f000 queues, so Delayboard does not request their rates"
    )
    pairs = [one for one in recognize(snapshot).found if one.use.kind == "retry_pair"]
    assert len(pairs) == PAIRS
    assert all(is_complete(pair) for pair in pairs)


def _is_shown(node: PrivateNode, folder: Path) -> None:
    """In a process of its own, for what this one did before would count."""
    figures = figures_of(node.amqp_url, node.management_url, folder)
    assert figures["recognising, CPU seconds"] < RECOGNISING_CPU_SECONDS
    assert figures["most memory, MB"] < MOST_MEMORY_MB
    pages = {what: figure for what, figure in figures.items() if what.startswith("page of ")}
    assert len(pages) == 14
    assert {what: cpu for what, cpu in pages.items() if cpu > PAGE_CPU_SECONDS} == {}
    first, then = (size for what, size in figures.items() if what.startswith("live page of "))
    assert first < MOST_AT_FIRST_KB
    assert then < MOST_SENT_KB


def _policies_are_seen(node: PrivateNode, address: Address) -> None:
    """No version tells of policies in totals: they are worked out, as the broker does."""
    vhost = quote(address.vhost, safe="")
    queues = {"apply-to": "queues"}
    for kind, name, rest in (
        ("policies", "all", {"pattern": "", "definition": {"message-ttl": 900_000}}),
        ("policies", "short", {"pattern": f"^{COUNTED}$", "definition": {"message-ttl": 600_000}}),
        ("operator-policies", "limit", {"pattern": "ount", "definition": {"message-ttl": 500_000}}),
    ):
        priority = 5 if name == "short" else 0
        call_api(node, "PUT", f"{kind}/{vhost}/{name}", {**rest, **queues, "priority": priority})
    snapshot = _seen(address)
    counted, other = (snapshot.definitions.queue(name) for name in (COUNTED, "work-7"))
    assert counted is not None
    assert other is not None
    assert (counted.message_ttl_ms, other.message_ttl_ms) == (500_000, 900_000)
    assert snapshot.policies[COUNTED] == "short"

    def reported() -> bool:
        """The broker puts a policy in force queue by queue."""
        seen = call_api(node, "GET", f"queues/{vhost}/{COUNTED}")
        given = seen["effective_policy_definition"], seen["policy"]
        return given == ({"message-ttl": 500_000}, "short")

    eventually(reported, "the broker says the same", seconds=60)
