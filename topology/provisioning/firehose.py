"""The firehose of a vhost: RabbitMQ's copies of every publish and delivery, and our queue of them.

It publishes each as `publish.<exchange>` or `deliver.<queue>` to amq.rabbitmq.trace. What has come
through that exchange is not copied again (rabbit_trace.erl), so reading the copies makes no more of
them; reading one of our other taps does, a copy for each.
"""

from __future__ import annotations

from contextlib import suppress

from topology.broker.errors import BrokerError, NotFound
from topology.broker.management.client import Management
from topology.definitions import TAP_PREFIX, Arguments, ArgumentValue, Binding, Definitions, Queue

TRACE_EXCHANGE = "amq.rabbitmq.trace"
KEYS = ("publish.#", "deliver.#")
KEPT_BYTES = 100_000_000
KEPT_MS = 3_600_000
# Arguments of a queue of the firehose. It is classic on every version: a stream would drop the
# table that holds the original properties (mc_amqpl.erl 4.0.5, 4.3.6). RabbitMQ deletes it after a
# day without a reader.
ARGUMENTS: dict[str, ArgumentValue] = {
    "x-queue-type": "classic",
    "x-max-length-bytes": KEPT_BYTES,
    "x-overflow": "drop-head",
    "x-message-ttl": KEPT_MS,
    "x-expires": 86_400_000,
}


def tap_name(mark: str) -> str:
    """Two installations that read one vhost must not share a queue: `mark` distinguishes them."""
    return f"{TAP_PREFIX}firehose.{mark}"


def tap(queue: str) -> Definitions:
    bindings = (Binding(TRACE_EXCHANGE, queue, key) for key in KEYS)
    return Definitions.of([Queue(queue, arguments=Arguments(ARGUMENTS)), *bindings])


def is_copying(management: Management, queue: str) -> bool:
    """Whether every publish and delivery is copied into our queue. Raises BrokerError."""
    if not management.is_tracing():
        return False
    try:
        bound = management.bindings_from(TRACE_EXCHANGE)
    except NotFound:
        return False
    return set(KEYS) <= {b.get("routing_key") for b in bound if b.get("destination") == queue}


def switch_on(management: Management, queue: str) -> None:
    """Raises BrokerError; then what had begun was taken back as far as the broker let it."""
    changed = management.trace(on=True)
    try:
        keep_on(management, queue)
    except BrokerError:
        with suppress(BrokerError):
            management.delete_queue(queue, only_if_empty=False)
        if changed:
            with suppress(BrokerError):
                management.trace(on=False)
        raise


def keep_on(management: Management, queue: str) -> None:
    """Restore its missing objects. Raises BrokerError; another call continues."""
    management.trace(on=True)
    definitions = tap(queue)
    for declared in definitions.queues:
        management.declare_queue(declared)
    for binding in definitions.bindings:
        management.bind(binding)


def switch_off(management: Management, queue: str) -> bool:
    """Delete our queue; whether the firehose is off, which it is not while others use it."""
    management.delete_queue(queue, only_if_empty=False)
    if management.bindings_from(TRACE_EXCHANGE):
        return not management.is_tracing()
    management.trace(on=False)
    return True
