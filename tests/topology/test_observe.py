from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest
import responses
from hypothesis import given
from hypothesis import strategies as st

from tests.topology.builders import MANAGEMENT, NOON, an_address
from topology.broker.management.client import Management
from topology.broker.management.observe import observe, read_snapshot
from topology.definitions import Arguments, Binding, Exchange, Queue
from topology.snapshot import QueueNumbers, Snapshot


def seen(
    queues: list[dict[str, Any]] | None = None,
    exchanges: list[dict[str, Any]] | None = None,
    bindings: list[dict[str, Any]] | None = None,
    overview: dict[str, Any] | None = None,
) -> Snapshot:
    return read_snapshot(
        overview or {},
        queues or [],
        exchanges or [],
        bindings or [],
        alarms=["disk on a"],
        taken_at=NOON,
    )


def test_an_alternate_exchange_of_a_policy_is_in_force_unless_an_argument_names_one() -> None:
    own = {"alternate-exchange": "own"}
    exchanges: list[dict[str, Any]] = [
        {"name": "plain", "type": "direct", "policy": "p"},
        {"name": "stated", "type": "direct", "policy": "p", "arguments": own},
        {"name": "other", "type": "direct", "policy": "q"},
    ]
    policies = [
        {"name": "p", "definition": {"alternate-exchange": "spare"}},
        {"name": "q", "definition": {"alternate-exchange": 5}},
    ]
    snapshot = read_snapshot({}, [], exchanges, [], alarms=[], taken_at=NOON, policies=policies)
    found = {x.name: x.arguments.get("alternate-exchange") for x in snapshot.definitions.exchanges}
    assert found == {"plain": "spare", "stated": "own", "other": None}
    assert not any(x.name == "plain" and x.arguments for x in snapshot.declared.exchanges)


@responses.activate
def test_policies_that_may_not_be_read_are_a_doubt_and_no_failure() -> None:
    api = f"{MANAGEMENT}/api"
    responses.get(f"{api}/overview", json={"rabbitmq_version": "4.3.6"})
    responses.get(re.compile(f"{api}/exchanges/.*"), json=[{"name": "x", "policy": "p"}])
    for kind in ("queues", "bindings"):
        responses.get(re.compile(f"{api}/{kind}/.*"), json=[])
    responses.get(f"{api}/health/checks/alarms", json={"status": "ok"})
    responses.get(re.compile(f"{api}/policies/.*"), status=401, json={"reason": "Not policymaker"})
    responses.get(re.compile(f"{api}/whoami"), json={"name": "a", "tags": ["management"]})
    with Management(an_address()) as management:
        snapshot = observe(management)
    (doubt,) = snapshot.doubts
    assert "Give the account the tag policymaker" in doubt


@pytest.mark.parametrize(("stated", "policy", "found"), [(5, -1, 5), (-1, 7, 7), (5, 7, 5)])
def test_a_delivery_limit_that_is_none_gives_way_to_one_that_is(
    stated: int, policy: int, found: int
) -> None:
    arguments = in_force(
        arguments={"x-delivery-limit": stated},
        type="quorum",
        effective_policy_definition={"delivery-limit": policy},
    )
    assert arguments["x-delivery-limit"] == found


def in_force(**raw: Any) -> Arguments:
    """The arguments in force of one queue, by the API's words for it."""
    (queue,) = seen([{"name": "q", **raw}]).definitions.queues
    return queue.arguments


def test_an_answer_without_any_field_is_a_vhost_without_anything() -> None:
    snapshot = seen()
    assert len(snapshot.definitions) == 0
    assert (snapshot.version, snapshot.node) == ("", "")
    assert (snapshot.taken_at, snapshot.alarms) == (NOON, ("disk on a",))


def test_a_queue_is_read_with_its_numbers() -> None:
    queue = {
        "name": "q",
        "durable": True,
        "arguments": {"x-message-ttl": 500},
        "type": "quorum",
        "messages": 5,
        "messages_ready": 3,
        "messages_unacknowledged": 2,
        "consumers": 1,
        "state": "running",
        "policy": "p",
        "head_message_timestamp": 1_700_000_000,
        "message_stats": {
            "publish_details": {"rate": 1.5},
            "deliver_get_details": {"rate": 0},
            "ack_details": {},
        },
    }
    snapshot = seen(
        [queue], overview={"rabbitmq_version": "4.3.6", "node": "n", "cluster_name": "c"}
    )
    arguments = Arguments({"x-message-ttl": 500, "x-queue-type": "quorum"})
    assert snapshot.declared.queues == {Queue("q", arguments=arguments)}
    assert snapshot.numbers == {
        "q": QueueNumbers(
            messages=5,
            ready=3,
            unacked=2,
            consumers=1,
            publish_rate=1.5,
            deliver_rate=0.0,
            ack_rate=None,
            head_at=datetime.fromtimestamp(1_700_000_000, UTC),
            state="running",
        )
    }
    assert snapshot.policies == {"q": "p"}
    assert (snapshot.version_tuple, snapshot.node, snapshot.cluster) == ((4, 3, 6), "n", "c")


def test_a_broker_that_counts_nothing_is_unknown_and_not_empty() -> None:
    assert seen([{"name": "q"}]).numbers["q"] == QueueNumbers()


def test_exchanges_and_bindings_are_read_and_the_default_ones_left_out() -> None:
    snapshot = seen(
        exchanges=[
            {"name": "", "type": "direct"},
            {
                "name": "x",
                "type": "topic",
                "durable": True,
                "internal": True,
                "arguments": {"alternate-exchange": "y"},
                "message_stats": {"publish_in_details": {"rate": 2}},
            },
        ],
        bindings=[
            {"source": "", "destination": "q", "destination_type": "queue", "routing_key": "q"},
            {"source": "x", "destination": "q", "destination_type": "queue", "routing_key": "k"},
            {"source": "x", "destination": "y", "destination_type": "exchange"},
        ],
    )
    alternate = Arguments({"alternate-exchange": "y"})
    assert snapshot.declared.exchanges == {
        Exchange("x", "topic", internal=True, arguments=alternate)
    }
    assert snapshot.declared.bindings == {
        Binding("x", "q", "k"),
        Binding("x", "y", "", destination_is_queue=False),
    }
    assert snapshot.exchange_rates == {"x": 2.0}


@pytest.mark.parametrize(
    ("declared", "policy", "kind", "expected"),
    [
        ({"x-message-ttl": 500}, {"message-ttl": 300}, "classic", {"x-message-ttl": 300}),
        ({"x-message-ttl": 500}, {"message-ttl": 900}, "classic", {"x-message-ttl": 500}),
        ({}, {"message-ttl": 300}, "classic", {"x-message-ttl": 300}),
        ({"x-expires": 9}, {"expires": 5}, "classic", {"x-expires": 5}),
        ({"x-max-length": 9}, {"max-length": 5}, "classic", {"x-max-length": 5}),
        (
            {"x-dead-letter-exchange": "mine"},
            {"dead-letter-exchange": "policy"},
            "classic",
            {"x-dead-letter-exchange": "mine"},
        ),
        (
            {},
            {"dead-letter-exchange": "p", "dead-letter-routing-key": "k"},
            "quorum",
            {"x-dead-letter-exchange": "p", "x-dead-letter-routing-key": "k"},
        ),
        ({"x-overflow": "mine"}, {"overflow": "policy"}, "classic", {"x-overflow": "mine"}),
        ({"x-overflow": "mine"}, {"overflow": "policy"}, "quorum", {"x-overflow": "policy"}),
        (
            {"x-delayed-retry-type": "failed", "x-delayed-retry-min": 9},
            {"delayed-retry-type": "all", "delayed-retry-min": 5},
            "quorum",
            {"x-delayed-retry-type": "all", "x-delayed-retry-min": 5},
        ),
        ({}, {"ha-mode": "all", "max-age": None, "message-ttl": {}}, "classic", {}),
        ({}, [], "classic", {}),
        ({}, "text", "classic", {}),
    ],
)
def test_a_policy_is_folded_into_what_is_in_force(
    declared: dict[str, Any], policy: Any, kind: str, expected: dict[str, Any]
) -> None:
    raw = {"arguments": declared, "type": kind, "effective_policy_definition": policy}
    assert in_force(**raw) == Arguments({"x-queue-type": kind, **expected})
    (queue,) = seen([{"name": "q", **raw}]).declared.queues
    assert queue.arguments == Arguments({"x-queue-type": kind, **declared})


def test_nested_arguments_become_texts() -> None:
    assert in_force(arguments={"x-odd": {"a": [1]}, "x-none": None})["x-odd"] == "{'a': [1]}"


json_values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5)
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=5), inner, max_size=2)
    ),
    max_leaves=5,
)
WORDS = (
    *("name", "type", "durable", "arguments", "effective_policy_definition", "policy", "source"),
    *("destination", "destination_type", "routing_key", "messages", "consumers", "state"),
    *("message_stats", "head_message_timestamp", "rabbitmq_version"),
)
tables = st.dictionaries(st.sampled_from(WORDS), json_values, max_size=6)


@given(
    tables, st.lists(tables, max_size=2), st.lists(tables, max_size=2), st.lists(tables, max_size=2)
)
def test_no_answer_of_odd_types_makes_reading_fail(
    overview: dict[str, Any],
    queues: list[dict[str, Any]],
    exchanges: list[dict[str, Any]],
    bindings: list[dict[str, Any]],
) -> None:
    snapshot = seen(queues, exchanges, bindings, overview)
    assert len(snapshot.declared.queues) <= len(queues)
    assert all(n.messages is None or isinstance(n.messages, int) for n in snapshot.numbers.values())


@responses.activate
def test_a_vhost_is_observed_by_five_questions() -> None:
    answers = {
        "overview": {"rabbitmq_version": "4.0.5"},
        "queues/%2F": [{"name": "q"}],
        "exchanges/%2F": [],
        "bindings/%2F": [],
        "health/checks/alarms": {"status": "ok"},
    }
    for path, answer in answers.items():
        responses.get(f"{MANAGEMENT}/api/{path}", json=answer)
    with Management(an_address()) as management:
        snapshot = observe(management)
    assert (snapshot.version, set(snapshot.numbers)) == ("4.0.5", {"q"})
    assert snapshot.poll_seconds > 0
    assert len(responses.calls) == 5
