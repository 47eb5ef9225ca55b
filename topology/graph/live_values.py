"""The live numbers of a vhost as the texts and states that a page shows, and their version."""

from __future__ import annotations

from hashlib import blake2b
from typing import Literal, TypeAlias

from topology.content.text import count_text
from topology.definitions import Definitions, Queue
from topology.snapshot import QueueNumbers, Snapshot, has_stuck
from topology.structure.find_chains import may_delay

Mark: TypeAlias = Literal[
    "unknown",
    "down",
    "stuck",
    "full",
    "taken",
    "no_consumer",
    "growing",
    "waiting",
    "busy",
    "empty",
]

UNKNOWN = "–"
NOT_RUNNING = frozenset({"down", "crashed", "stopped", "minority"})
SLOW, FAST = 1.0, 20.0
# More messages in a minute or two are no chance.
GROWS_BY = 10
MARK_WORDS: dict[str, str] = {
    "unknown": "no data",
    "down": "not running",
    "stuck": "messages are stuck: RabbitMQ cannot route them",
    "full": "full",
    "taken": "a consumer removes messages before they are due",
    "no_consumer": "messages wait and the queue has no consumer",
    "growing": "consumers are slower than publishers: more messages wait each minute",
    "waiting": "messages wait for their due time",
    "busy": "messages wait for consumers",
    "empty": "empty",
    "missing": "missing in the broker",
}


def rate_text(per_second: float | None) -> str:
    """A rate such as "0.4/s", "12/s" or "1 200/s"; a dash when it is unknown."""
    if per_second is None:
        return UNKNOWN
    if 0 < per_second < 10:
        return f"{per_second:.1f}/s" if per_second >= 0.05 else "<0.1/s"
    return f"{count_text(round(per_second))}/s"


def make_version(*values: object) -> str:
    """The same text for equal values in every process; they must print alike, so no sets."""
    digest = blake2b(digest_size=8)
    for value in values:
        digest.update(f"{value!r}\n".encode(errors="surrogatepass"))
    return digest.hexdigest()


def pace(per_second: float | None) -> str:
    """How fast a rate's mark beats: "" unknown, "0" not at all, "1" slowly to "3" quickly."""
    if per_second is None:
        return ""
    if per_second <= 0:
        return "0"
    return str(1 + (per_second >= SLOW) + (per_second >= FAST))


def level_names(definitions: Definitions) -> frozenset[str]:
    """The queues of delay levels, whoever made them: they wait for a 1 at their own exchange."""
    return frozenset(
        binding.destination
        for binding in definitions.bindings
        if binding.destination_is_queue
        and binding.source == binding.destination
        and binding.routing_key.removeprefix("*." * binding.routing_key.count("*.")) == "1.#"
    )


def snapshot_version(snapshot: Snapshot) -> str:
    """Changes when a vhost has other objects, states, depths or rates."""
    numbers = sorted(
        (
            (name, one.state, one.messages, one.ready, one.unacked, one.consumers),
            (rate_text(one.publish_rate), rate_text(one.deliver_rate)),
        )
        for name, one in snapshot.numbers.items()
    )
    rates = sorted((name, rate_text(one)) for name, one in snapshot.exchange_rates.items())
    about = (snapshot.version, snapshot.node, snapshot.alarms, snapshot.doubts)
    return make_version(*snapshot.definitions, *numbers, *rates, *about)


def queue_mark(
    queue: Queue,
    numbers: QueueNumbers | None,
    earlier: QueueNumbers | None = None,
    *,
    is_level: bool = False,
) -> Mark:
    """The state of a queue in one word; `MARK_WORDS` has the text for people.

    `earlier` are its numbers of a minute or two before, where known. `is_level`: a delay queue; a
    consumer on it would receive messages early.
    """
    if numbers is not None and numbers.state in NOT_RUNNING:
        return "down"
    if numbers is None or numbers.messages is None:
        return "unknown"
    if has_stuck(queue, numbers):
        return "stuck"
    limit = queue.arguments.number("x-max-length")
    if limit and numbers.messages >= limit:
        return "full"
    if is_level and numbers.consumers:
        return "taken"
    if not numbers.messages:
        return "empty"
    if numbers.consumers:
        before = earlier.messages if earlier else None
        is_growing = before is not None and numbers.messages - before >= GROWS_BY
        return "growing" if is_growing else "busy"
    is_delay = queue.message_ttl_ms is not None and queue.deletes_after is None
    if is_delay or (may_delay(queue) and numbers.consumers == 0):
        return "waiting"
    # No statement about consumers when RabbitMQ did not report them.
    return "busy" if numbers.consumers is None else "no_consumer"


def snapshot_marks(snapshot: Snapshot) -> dict[str, str]:
    """The state of every queue, by keys such as "queue/orders"."""
    levels, numbers = level_names(snapshot.definitions), snapshot.numbers
    return {
        f"queue/{one.name}": queue_mark(
            one, numbers.get(one.name), snapshot.trend_of(one.name), is_level=one.name in levels
        )
        for one in snapshot.definitions.queues
    }
