"""The sentences of a walk, in an operator's words."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from topology.definitions import MAXIMUM_TTL_MS, Exchange, Queue
from topology.delays import format_delay


def span(ms: int) -> str:
    return format_delay(timedelta(milliseconds=ms))


NO_EXCHANGE = "the exchange “{}” does not exist"


def no_queue(exchange: str, keys: Sequence[str]) -> str:
    where = f"the exchange “{exchange}”" if exchange else "the default exchange"
    return f"{where} has no queue for the key {', '.join(f'“{key}”' for key in keys)}"


PUBLISH_REFUSAL = "RabbitMQ refuses the publish: {}"
INTERNAL = "the exchange “{}” is internal and accepts no publishes from clients"
BAD_EXPIRATION = "the expiration “{}” is not a whole number of milliseconds up to ten years"


def unforeseeable(exchange: Exchange) -> str:
    return f"Delayboard cannot predict the exchange “{exchange.name}” of the type {exchange.type}"


def exchange_storage(exchange: str, ms: int) -> str:
    return f"stored by the exchange “{exchange}” for {span(ms)}"


ONLY_COPY = (
    "“{}” stores one copy on one node. The message is lost with that node or with the plugin."
)


def cut_cycle(*queues: str) -> str:
    names = " and ".join(f"“{name}”" for name in queues)
    return (
        f"RabbitMQ drops the message before {names}: the message expired there before and no "
        "consumer rejected it since"
    )


STUCK_STORAGE = (
    "“{}” dead-letters at least once and stores the message until RabbitMQ can route it: {}"
)
DEAF_STREAM = "the stream “{}” accepts no dead letters before RabbitMQ 3.12"
SELF_DEAD_LETTERING = (
    "“{}” dead-letters at least once into itself: before RabbitMQ 4.0 the queue "
    "stores forwarded messages forever"
)


def goes_round(queues: Sequence[str]) -> str:
    cycle = ", ".join(f"“{name}”" for name in queues)
    return (
        f"the message cycles forever through {cycle} and “{queues[0]}” because no consumer "
        "acknowledges it"
    )


BRANCHES_TOO_OFTEN = "the route has too many branches to trace"


def expires(queue: str, ms: int) -> str:
    return f"the message expires in “{queue}” after {span(ms)}"


REJECTION = "the consumer of “{}” rejects the message"


def exceeded_limit(queue: str, failures: int) -> str:
    often = "once" if failures == 1 else f"{failures} times"
    return (
        f"the message returns to “{queue}” {often} without an acknowledgement and exceeds the "
        "delivery limit"
    )


DEAD_LETTERS_NOWHERE = "{}, and this queue has no dead-letter exchange"
NEVER_ANSWERED = "the consumer of “{}” requeues the message forever and no limit applies"
PUBLISHED = "published"
WAITING = "waiting"
WAITS = "the message waits for a consumer"
TAKEN = "the consumer receives the message"


def head_delay(queue: str, up_to_ms: int | None) -> str:
    until = "" if up_to_ms is None else f", up to {span(up_to_ms)}"
    return f"Earlier messages in “{queue}” with a longer TTL delay this message{until}."


def too_slow(queue: str, ms: int) -> str:
    return f"The message expires in “{queue}” if no consumer receives it within {span(ms)}."


NO_EXPIRY_WHILE_UNACKED = (
    "The message does not expire in “{}” while a consumer has it unacknowledged."
)
DELAYED_RETRIES = "“{}” delays each redelivery."


def may_be_full(queue: Queue, *, is_dead_letter: bool, is_confirmed: bool) -> str:
    """ "" for a queue without a maximum length, and for a dead letter that is taken beyond it.

    `is_confirmed`: the queue that it died in stores it until this one accepts it. Tried with each
    type and overflow, 3.10.8 to 4.3.6.
    """
    bounds = [
        f"{number} {unit}"
        for name, unit in (("x-max-length", "messages"), ("x-max-length-bytes", "bytes"))
        if (number := queue.arguments.number(name)) is not None
    ]
    if not bounds:
        return ""
    dies = "drops" if queue.dead_letter_exchange is None else "dead-letters"
    overflow = queue.arguments.text("x-overflow") or "drop-head"
    if overflow == "drop-head" or (queue.type == "quorum" and overflow != "reject-publish"):
        early = " early" if dies == "dead-letters" else ""
        then = f"RabbitMQ {dies} the oldest message{early}"
    elif overflow == "reject-publish-dlx" and dies == "dead-letters":
        then = "RabbitMQ dead-letters this message at once"
    elif is_confirmed:
        then = "this message waits in the queue where it died"
    elif not is_dead_letter:
        then = "RabbitMQ rejects new messages"
    elif queue.type == "quorum":
        return ""
    else:
        then = "RabbitMQ drops dead letters"
    return f"“{queue.name}” holds at most {' or '.join(bounds)}. When the queue is full, {then}."


def has_no_end(queue: str) -> str:
    return f"“{queue}” has no TTL, so a dead letter remains in it until a consumer reads it."


def may_be_deleted(queue: Queue, wait_ms: int | None) -> str:
    """ "" for a queue that is not deleted while the message is in it, or that no broker takes."""
    unused = queue.arguments.number("x-expires")
    is_short = wait_ms is not None and unused is not None and wait_ms < unused
    if unused is None or not 0 < unused <= MAXIMUM_TTL_MS or is_short:
        return ""
    return (
        f"RabbitMQ deletes “{queue.name}” and its messages after {span(unused)} without use. A "
        "publish does not count as use."
    )


FELL_BACK = (
    "“{}” requests at-least-once dead-lettering without x-overflow reject-publish. "
    "RabbitMQ dead-letters at most once instead."
)
NO_SUCH_QUEUE = "the queue “{}” does not exist"


def expiry(queue: str, ms: int) -> str:
    return f"expired in {queue} after {span(ms)}"


FORWARDING = "due: the forwarder of {} forwards the message"


def forwarder_return(queue: str, laps: int) -> str:
    often = "" if laps == 1 else f" {laps} times in total"
    return f"not due: the forwarder of {queue} returns the message{often}"


OTHER_FORWARDER = (
    "an external consumer forwards due messages to “{}”; RabbitMQ does not show its due header"
)
FORWARDER_KEEPS = "the forwarder leaves the message in “{}” until the queue “{}” exists"
