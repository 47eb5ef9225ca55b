"""What lies in a real vhost: queues, and dead letters with their histories."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.brokers import Vhost
from tests.builders import address_of, declare_in, eventually
from tests.publishing import publisher
from topology.broker.management.client import Management
from topology.broker.properties.read import build_properties
from topology.definitions import Binding, Exchange, Queue
from topology.delays import parse_delay
from topology.message import Publish
from topology.models import Topology
from topology.patterns.delay_levels import params as delay_levels_params
from topology.patterns.delay_levels.params import delivery_name, level_name
from topology.patterns.delay_levels.pattern import delay_levels


def declare(vhost: Vhost, names: Sequence[str]) -> None:
    with Management(address_of(vhost)) as management:
        for name in names:
            management.declare_queue(Queue(name))


def half_built(vhost: Vhost) -> str:
    """Delay levels that somebody else made, but for two bindings; what they are called."""
    params = delay_levels_params.Params("own", "others", 4)
    whole = delay_levels.definitions(params)
    lost = sorted(binding.identity for binding in whole.bindings)[:2]
    declare_in(vhost, *whole.without(lost))
    return delay_levels.title(params)


def history(names: Sequence[str]) -> dict[str, Any]:
    """An x-death header with an entry for each name, the newest first."""
    noon = datetime(2026, 11, 20, 12, tzinfo=UTC)
    entries = [
        {
            "count": 1 + number * 7,
            "reason": ("rejected", "expired", "maxlen", "delivery_limit")[number % 4],
            "queue": name,
            "time": noon - timedelta(minutes=number),
            "exchange": name if number % 2 else "",
            "routing-keys": [name],
        }
        for number, name in enumerate(names)
    ]
    return {"x-death": entries}


def dead_letters(vhost: Vhost, queue: str, names: Sequence[str], *, deaths: int) -> None:
    """A message for each name; its body is JSON, text, bytes or nothing."""
    bodies = (b'{"order": 1, "lines": [1, 2, 3]}', b"", b"\x00\xff\x10binary", b"a word " * 400)
    with publisher(address_of(vhost), "test") as channel:
        for number, name in enumerate(names):
            headers = history(names[:deaths]) | {"tenant": number, "name": name}
            properties = build_properties(headers, message_id=name, content_type="text/plain")
            channel.publish(Publish("", queue, properties, bodies[number % len(bodies)]))


def declare_exchange(vhost: Vhost, name: str, queue: str, key: str) -> None:
    """An exchange that leads to the queue."""
    with Management(address_of(vhost)) as management:
        management.declare_exchange(Exchange(name))
        management.bind(Binding(name, queue, key))


def delayed(vhost: Vhost, topology: Topology, delays: Sequence[str], target: str) -> None:
    """A message for each delay, into the topology."""
    with publisher(address_of(vhost), "test") as channel:
        for delay in delays:
            route = topology.pattern.route(topology.parsed, parse_delay(delay), target)
            properties = build_properties(delivery_mode=2)
            message = Publish(route.exchange, route.routing_key, properties, b"{}")
            channel.publish_by(route, message)


def held_up(vhost: Vhost, levels: Topology, target: str) -> None:
    """Messages whose destination is unbound while they wait, until the broker counts them so."""
    lowest = level_name(levels.parsed, 0)
    delayed(vhost, levels, ["1s", "15s", "15s"], target)
    with Management(address_of(vhost)) as management:
        delivery = delivery_name(levels.parsed)
        management.unbind(Binding(delivery, target, f"#.{target}"))

        def is_held() -> bool:
            seen = management.queue(lowest)
            return bool(seen.get("messages") and not seen.get("messages_ready"))

        eventually(is_held, "the lowest level holds what it cannot route")
