"""The management API's answers -> a Snapshot."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from topology.broker.errors import NotFound, Refused
from topology.broker.management.client import Management
from topology.broker.management.list_queues import LISTING_SECONDS, is_large, queues_of
from topology.definitions import Arguments, Binding, Definitions, Exchange, Queue
from topology.snapshot import QueueNumbers, Snapshot

# Policy keys; each acts like the argument of this name behind “x-” (reference: RabbitMQ docs,
# "Parameters and Policies"). Where both are set a number is the smaller one, a dead-letter name the
# argument's.
_NUMBERS = {
    *("message-ttl", "expires", "max-length", "max-length-bytes", "delivery-limit"),
    *("delayed-retry-min", "delayed-retry-max"),
}
_POLICY_KEYS = _NUMBERS | {
    *("dead-letter-exchange", "dead-letter-routing-key", "dead-letter-strategy"),
    *("overflow", "delayed-retry-type"),
}
POLICIES_UNREAD = (
    "This account may not read policies, so alternate exchanges set by policy are missing "
    "here. Give the account the tag policymaker."
)
_POLICY_WINS_IN_QUORUM = {"x-overflow", "x-delayed-retry-type"}


def observe(management: Management) -> Snapshot:
    """Take a snapshot of a whole vhost. Raises BrokerError."""
    started = time.monotonic()
    overview = management.overview()
    with management.patience(LISTING_SECONDS) if is_large(overview) else nullcontext():
        queues, hidden = queues_of(overview, management)
        read = read_with_policies(
            management,
            overview,
            queues,
            management.exchanges(),
            management.bindings(),
            management.alarms(),
        )
    # The overview names its node only to accounts that may read nodes.
    states: Sequence[Mapping[str, Any]] = []
    if read.node:
        with suppress(Refused, NotFound):
            states = management.nodes()
    down, partitioned = _list_down(states), _list_partitioned(states)
    read = replace(read, nodes=read.nodes | down, down=down, partitioned=partitioned)
    seconds = time.monotonic() - started
    return replace(read, doubts=(*hidden, *read.doubts), poll_seconds=seconds)


def read_with_policies(
    management: Management,
    overview: dict[str, Any],
    queues: list[dict[str, Any]],
    exchanges: list[dict[str, Any]],
    bindings: list[dict[str, Any]],
    alarms: list[str],
) -> Snapshot:
    """These answers with the policies of the vhost, which it reads. Raises BrokerError."""
    policies: list[dict[str, Any]] = []
    doubts: tuple[str, ...] = ()
    # An exchange is listed with the name of its policy only.
    if any(raw.get("policy") for raw in exchanges):
        try:
            policies = management.policies()
        except Refused:
            doubts = (POLICIES_UNREAD,)
    return read_snapshot(
        overview,
        queues,
        exchanges,
        bindings,
        alarms=alarms,
        policies=policies,
        doubts=doubts,
        taken_at=datetime.now(UTC),
    )


def read_snapshot(
    overview: Mapping[str, Any],
    queues: list[dict[str, Any]],
    exchanges: list[dict[str, Any]],
    bindings: list[dict[str, Any]],
    *,
    alarms: list[str],
    taken_at: datetime,
    policies: Sequence[Mapping[str, Any]] = (),
    doubts: tuple[str, ...] = (),
) -> Snapshot:
    """Pure: the API's JSON as values. Transient bits such as exclusive queues are included."""
    declared_queues = [(declared_queue(raw), raw) for raw in queues]
    declared_exchanges = [declared_exchange(raw) for raw in exchanges if raw.get("name")]
    bound = [read_binding(raw) for raw in bindings if raw.get("source")]
    in_force = [_add_policy(queue, raw) for queue, raw in declared_queues]
    alternates = _alternates(exchanges, policies)
    return Snapshot(
        version=str(overview.get("rabbitmq_version", "")),
        taken_at=taken_at,
        definitions=Definitions.of(
            [*(_add_alternate(x, alternates) for x in declared_exchanges), *in_force, *bound]
        ),
        declared=Definitions.of([*declared_exchanges, *(q for q, _ in declared_queues), *bound]),
        numbers={queue.name: _numbers(raw) for queue, raw in declared_queues},
        exchange_rates={
            str(raw["name"]): rate
            for raw in exchanges
            if raw.get("name") and (rate := _rate(raw, "publish_in")) is not None
        },
        policies={q.name: str(raw["policy"]) for q, raw in declared_queues if raw.get("policy")},
        operator_policies={
            q.name: str(name) for q, raw in declared_queues if (name := raw.get("operator_policy"))
        },
        policy_arguments={
            queue.name: given for queue, raw in declared_queues if (given := _read_policy(raw))
        },
        node=str(overview.get("node", "")),
        nodes=_nodes(overview, queues),
        cluster=str(overview.get("cluster_name", "")),
        alarms=tuple(alarms),
        doubts=doubts,
    )


def _nodes(overview: Mapping[str, Any], queues: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """The nodes that listen, and those that queues are on."""
    listeners = overview.get("listeners")
    rows = listeners if isinstance(listeners, list) else []
    named = [one.get("node") for one in [overview, *rows, *queues] if isinstance(one, Mapping)]
    for one in queues:
        members = one.get("members")
        named += members if isinstance(members, list) else []
    return frozenset(name for name in named if isinstance(name, str) and name)


def _list_down(states: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    return frozenset(
        str(one["name"]) for one in states if one.get("name") and one.get("running") is False
    )


def _list_partitioned(states: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """The nodes that RabbitMQ reports on one side of a partition or the other (before 4.3)."""
    parted = [(one.get("name"), one.get("partitions")) for one in states]
    return frozenset(
        str(name)
        for owner, others in parted
        if isinstance(others, list) and others
        for name in (owner, *others)
        if isinstance(name, str)
    )


def _alternates(
    exchanges: Sequence[Mapping[str, Any]], policies: Sequence[Mapping[str, Any]]
) -> dict[str, str]:
    """The alternate exchange that a policy gives, by exchange; operator policies give none."""
    given = {
        str(policy.get("name")): alternate
        for policy in policies
        if isinstance(policy.get("definition"), Mapping)
        and isinstance(alternate := policy["definition"].get("alternate-exchange"), str)
    }
    return {
        str(raw.get("name")): given[str(raw.get("policy"))]
        for raw in exchanges
        if str(raw.get("policy")) in given
    }


def _add_alternate(exchange: Exchange, alternates: Mapping[str, str]) -> Exchange:
    """The argument wins over the policy (rabbit_exchange.erl, all versions)."""
    alternate = alternates.get(exchange.name)
    if alternate is None or "alternate-exchange" in exchange.arguments:
        return exchange
    folded = Arguments({**exchange.arguments, "alternate-exchange": alternate})
    return replace(exchange, arguments=folded)


def declared_exchange(raw: Mapping[str, Any]) -> Exchange:
    """The exchange as it was declared, from the API's answer."""
    return Exchange(
        name=str(raw["name"]),
        type=str(raw.get("type", "")),
        durable=bool(raw.get("durable")),
        auto_delete=bool(raw.get("auto_delete")),
        internal=bool(raw.get("internal")),
        arguments=Arguments(_flatten(raw.get("arguments"))),
    )


def declared_queue(raw: Mapping[str, Any]) -> Queue:
    """The queue as it was declared, from the API's answer."""
    arguments = _flatten(raw.get("arguments"))
    arguments.setdefault("x-queue-type", str(raw.get("type") or "classic"))
    return Queue(
        name=str(raw.get("name", "")),
        durable=bool(raw.get("durable")),
        auto_delete=bool(raw.get("auto_delete")),
        arguments=Arguments(arguments),
    )


def _add_policy(queue: Queue, raw: Mapping[str, Any]) -> Queue:
    given = _read_policy(raw)
    if not given:
        return queue
    folded = dict(queue.arguments)
    for argument, value in given.items():
        stated = folded.get(argument)
        is_number = argument.removeprefix("x-") in _NUMBERS
        if is_number and isinstance(stated, int) and isinstance(value, int):
            # A negative delivery limit is none, and gives way (resolve_delivery_limit/2,
            # rabbit_quorum_queue.erl 4.0.5).
            choose = max if min(stated, value) < 0 else min
            folded[argument] = choose(stated, value)
        elif argument in _POLICY_WINS_IN_QUORUM and queue.type == "quorum":
            folded[argument] = value
        else:
            folded.setdefault(argument, value)
    return Queue(queue.name, queue.durable, queue.auto_delete, Arguments(folded))


def _read_policy(raw: Mapping[str, Any]) -> Arguments:
    """What its policies give a queue, by the names of the arguments."""
    policy = raw.get("effective_policy_definition")
    stated = policy if isinstance(policy, Mapping) else {}
    return Arguments(
        {
            f"x-{key}": value
            for key, value in stated.items()
            if key in _POLICY_KEYS and isinstance(value, (bool, int, float, str))
        }
    )


def read_binding(raw: Mapping[str, Any]) -> Binding:
    """The binding, from the API's answer."""
    return Binding(
        source=str(raw["source"]),
        destination=str(raw.get("destination", "")),
        routing_key=str(raw.get("routing_key", "")),
        destination_is_queue=raw.get("destination_type") == "queue",
        arguments=Arguments(_flatten(raw.get("arguments"))),
    )


def _numbers(raw: Mapping[str, Any]) -> QueueNumbers:
    stats = _stats(raw)
    published, delivered, repeated = (
        _whole_number(stats.get(name)) for name in ("publish", "deliver_get", "redeliver")
    )
    return QueueNumbers(
        messages=_whole_number(raw.get("messages")),
        ready=_whole_number(raw.get("messages_ready")),
        unacked=_whole_number(raw.get("messages_unacknowledged")),
        consumers=_whole_number(raw.get("consumers")),
        publish_rate=_rate(raw, "publish"),
        deliver_rate=_rate(raw, "deliver_get"),
        ack_rate=_rate(raw, "ack"),
        redeliver_rate=_rate(raw, "redeliver"),
        head_at=_moment(raw.get("head_message_timestamp")),
        state=str(raw.get("state", "")),
        published=published,
        consumed=None if delivered is None else delivered - (repeated or 0),
        acked=_whole_number(stats.get("ack")),
        reductions=_whole_number(raw.get("reductions")),
    )


def newest_numbers(management: Management, queues: Iterable[str]) -> dict[str, QueueNumbers]:
    """Read each queue by a request of its own: the list that `observe` reads may be cached.

    Queues that no longer exist are omitted. Raises BrokerError.
    """
    found = {}
    for name in queues:
        with suppress(NotFound):
            found[name] = _numbers(management.queue(name))
    return found


def _flatten(arguments: Any) -> dict[str, bool | int | float | str]:
    """Arguments as scalars; nested ones, which no queue or binding of ours has, as text."""
    if not isinstance(arguments, Mapping):
        return {}
    return {
        str(name): value if isinstance(value, (bool, int, float, str)) else repr(value)
        for name, value in arguments.items()
    }


def _rate(raw: Mapping[str, Any], name: str) -> float | None:
    details = _stats(raw).get(f"{name}_details")
    rate = details.get("rate") if isinstance(details, Mapping) else None
    return float(rate) if isinstance(rate, (int, float)) else None


def _stats(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    stats = raw.get("message_stats")
    return stats if isinstance(stats, Mapping) else {}


def _whole_number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _moment(seconds: Any) -> datetime | None:
    try:
        return datetime.fromtimestamp(seconds, UTC) if isinstance(seconds, int) else None
    except (ValueError, OverflowError, OSError):
        return None
