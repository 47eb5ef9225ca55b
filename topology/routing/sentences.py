"""The sentences of a walk, in an operator's words."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from topology.definitions import MAXIMUM_TTL_MS, Exchange, Queue
from topology.delays import format_delay


def span(ms: int) -> str:
    return format_delay(timedelta(milliseconds=ms))


def no_exchange(name: str) -> str:
    return f"the exchange “{name}” does not exist"


def no_queue(exchange: str, keys: Sequence[str]) -> str:
    where = f"the exchange “{exchange}”" if exchange else "the default exchange"
    return f"{where} has no queue for the key {', '.join(f'“{key}”' for key in keys)}"


def publish_refusal(why: str) -> str:
    return f"RabbitMQ refuses the publish: {why}"


def internal(name: str) -> str:
    return f"the exchange “{name}” is internal and accepts no publishes from clients"


def bad_expiration(text: str) -> str:
    return f"the expiration “{text}” is not a whole number of milliseconds up to ten years"


def unforeseeable(exchange: Exchange) -> str:
    return f"Delayboard cannot predict the exchange “{exchange.name}” of the type {exchange.type}"


def exchange_storage(exchange: str, ms: int) -> str:
    return f"stored by the exchange “{exchange}” for {span(ms)}"


def only_copy(exchange: str) -> str:
    return (
        f"“{exchange}” stores one copy on one node. The message is lost with that node or with "
        "the plugin."
    )


def cut_cycle(*queues: str) -> str:
    names = " and ".join(f"“{name}”" for name in queues)
    return (
        f"RabbitMQ drops the message before {names}: the message expired there before and no "
        "consumer rejected it since"
    )


def stuck_storage(holder: str, why: str) -> str:
    return (
        f"“{holder}” dead-letters at least once and stores the message until "
        f"RabbitMQ can route it: {why}"
    )


def deaf_stream(name: str) -> str:
    return f"the stream “{name}” accepts no dead letters before RabbitMQ 3.12"


def self_dead_lettering(queue: str) -> str:
    return (
        f"“{queue}” dead-letters at least once into itself: before RabbitMQ 4.0 the queue "
        "stores forwarded messages forever"
    )


def goes_round(queues: Sequence[str]) -> str:
    cycle = ", ".join(f"“{name}”" for name in queues)
    return (
        f"the message cycles forever through {cycle} and “{queues[0]}” because no consumer "
        "acknowledges it"
    )


def branches_too_often() -> str:
    return "the route has too many branches to trace"


def expires(queue: str, ms: int) -> str:
    return f"the message expires in “{queue}” after {span(ms)}"


def rejection(queue: str) -> str:
    return f"the consumer of “{queue}” rejects the message"


def exceeded_limit(queue: str, failures: int) -> str:
    often = "once" if failures == 1 else f"{failures} times"
    return (
        f"the message returns to “{queue}” {often} without an acknowledgement and exceeds the "
        "delivery limit"
    )


def dead_letters_nowhere(how: str) -> str:
    return f"{how}, and this queue has no dead-letter exchange"


def never_answered(queue: str) -> str:
    return f"the consumer of “{queue}” requeues the message forever and no limit applies"


PUBLISHED = "published"
WAITING = "waiting"
WAITS = "the message waits for a consumer"
TAKEN = "the consumer receives the message"


def head_delay(queue: str, up_to_ms: int | None) -> str:
    until = "" if up_to_ms is None else f", up to {span(up_to_ms)}"
    return f"Earlier messages in “{queue}” with a longer TTL delay this message{until}."


def too_slow(queue: str, ms: int) -> str:
    return f"The message expires in “{queue}” if no consumer receives it within {span(ms)}."


def no_expiry_while_unacked(queue: str) -> str:
    return f"The message does not expire in “{queue}” while a consumer has it unacknowledged."


def delayed_retries(queue: str) -> str:
    return f"“{queue}” delays each redelivery."


def may_be_full(queue: Queue) -> str:
    """ "" for a queue without a maximum length."""
    bounds = [
        f"{number} {unit}"
        for name, unit in (("x-max-length", "messages"), ("x-max-length-bytes", "bytes"))
        if (number := queue.arguments.number(name)) is not None
    ]
    if not bounds:
        return ""
    overflow = queue.arguments.text("x-overflow") or "drop-head"
    drops = overflow == "drop-head"
    then = "the queue drops the oldest message" if drops else "the queue rejects new messages"
    return f"“{queue.name}” holds at most {' or '.join(bounds)}. When the queue is full, {then}."


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


def fell_back(queue: str) -> str:
    return (
        f"“{queue}” requests at-least-once dead-lettering without x-overflow reject-publish. "
        "RabbitMQ dead-letters at most once instead."
    )


def no_such_queue(name: str) -> str:
    return f"the queue “{name}” does not exist"


def expiry(queue: str, ms: int) -> str:
    return f"expired in {queue} after {span(ms)}"


def forwarding(queue: str) -> str:
    return f"due: the forwarder of {queue} forwards the message"


def forwarder_return(queue: str, laps: int) -> str:
    often = "" if laps == 1 else f" {laps} times in total"
    return f"not due: the forwarder of {queue} returns the message{often}"


def others_pass_on(onward: str) -> str:
    return (
        f"an external consumer forwards due messages to “{onward}”; RabbitMQ does not show its "
        "due header"
    )


def forwarder_keeps(queue: str, to: str) -> str:
    return f"the forwarder leaves the message in “{queue}” until the queue “{to}” exists"
