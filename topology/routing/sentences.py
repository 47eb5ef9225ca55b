"""The sentences of a walk, in an operator's words."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from topology.definitions import Exchange, Queue
from topology.delays import format_delay


def span(ms: int) -> str:
    return format_delay(timedelta(milliseconds=ms))


def no_exchange(name: str) -> str:
    return f"there is no exchange “{name}”"


def no_queue(exchange: str, keys: Sequence[str]) -> str:
    where = f"the exchange “{exchange}”" if exchange else "the default exchange"
    return f"{where} has no queue for the key {', '.join(f'“{key}”' for key in keys)}"


def refused(why: str) -> str:
    return f"the broker refuses the publish: {why}"


def internal(name: str) -> str:
    return f"the exchange “{name}” is internal, so that no client may publish to it"


def bad_expiration(text: str) -> str:
    return f"its expiration “{text}” is no whole number of milliseconds up to ten years"


def unforeseeable(exchange: Exchange) -> str:
    return (
        f"the exchange “{exchange.name}” is of the type {exchange.type}, "
        "whose choice cannot be foretold"
    )


def kept(exchange: str, ms: int) -> str:
    return f"kept by the exchange “{exchange}” for {span(ms)}"


def only_copy(exchange: str) -> str:
    return (
        f"While “{exchange}” keeps it, there is one copy on one node: it is lost with that node or "
        "with the plugin."
    )


def cut_ring(*queues: str) -> str:
    names = " and ".join(f"“{name}”" for name in queues)
    return f"the broker drops it before {names}: it died there before, and was not rejected since"


def kept_back(holder: str, why: str) -> str:
    return f"“{holder}” dead-letters at least once, so it keeps it for ever: {why}"


def deaf_stream(name: str) -> str:
    return f"the stream “{name}” takes no dead letters before RabbitMQ 3.12"


def kept_by_itself(queue: str) -> str:
    return (
        f"“{queue}” dead-letters at least once into itself: before RabbitMQ 4.0 it keeps for ever "
        "what it has handed on"
    )


def goes_round(queues: Sequence[str]) -> str:
    ring = ", ".join(f"“{name}”" for name in queues)
    return (
        f"it goes round for ever, through {ring} and “{queues[0]}” again, "
        "for its consumer never takes it"
    )


def branches_too_often() -> str:
    return "the way branches too often to be followed to all its ends"


def expires(queue: str, ms: int) -> str:
    return f"it expires in “{queue}” after {span(ms)}"


def rejected(queue: str) -> str:
    return f"the consumer of “{queue}” rejects it"


def failed_too_often(queue: str, failures: int) -> str:
    often = "once" if failures == 1 else f"{failures} times"
    return f"it comes back to “{queue}” {often} without an answer, which is over its delivery limit"


def dead_letters_nowhere(how: str) -> str:
    return f"{how}, which dead-letters nowhere"


def never_answered(queue: str) -> str:
    return f"the consumer of “{queue}” gives it back again and again, and nothing ends that"


PUBLISHED = "published"
WAITING = "waiting"
WAITS = "it stays for a consumer"
TAKEN = "its consumer takes it"


def held_up(queue: str, up_to_ms: int | None) -> str:
    until = "" if up_to_ms is None else f", up to {span(up_to_ms)}"
    return f"Messages before it in “{queue}” that live longer hold it back{until}."


def too_slow(queue: str, ms: int) -> str:
    return f"If the consumer of “{queue}” does not take it within {span(ms)}, it expires there."


def while_held(queue: str) -> str:
    return f"It does not expire while the consumer of “{queue}” holds it."


def delayed_retries(queue: str) -> str:
    return f"“{queue}” waits before it delivers again what came back."


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
    then = "its oldest message makes room" if overflow == "drop-head" else "it refuses new ones"
    return f"“{queue.name}” holds at most {' or '.join(bounds)}: when it is full, {then}."


def may_be_deleted(queue: Queue, stays_ms: int | None) -> str:
    """ "" for a queue that is not deleted while the message is in it."""
    unused = queue.arguments.number("x-expires")
    if unused is None or (stays_ms is not None and stays_ms < unused):
        return ""
    return (
        f"“{queue.name}” is deleted with its messages when nobody uses it for {span(unused)}; "
        "a publish is no use."
    )


def fell_back(queue: str) -> str:
    return (
        f"“{queue}” asks for dead-lettering at least once, which needs x-overflow reject-publish; "
        "without it, it is at most once."
    )


def no_such_queue(name: str) -> str:
    return f"there is no queue “{name}”"


def expired(queue: str, ms: int) -> str:
    return f"expired in {queue} after {span(ms)}"


def passed_on(queue: str) -> str:
    return f"due, so that the waiter of {queue} passed it on"


def sent_back(queue: str, laps: int) -> str:
    often = "" if laps == 1 else f" {laps} times in all"
    return f"not due yet, so that the waiter of {queue} sent it back{often}"


def others_pass_on(onward: str) -> str:
    return (
        f"a consumer that is not ours passes it on to “{onward}” when it takes it for due, by a "
        "header that nothing in a broker tells"
    )


def waiter_keeps(queue: str, to: str) -> str:
    return f"the waiter keeps it in “{queue}” until there is a queue “{to}”"
