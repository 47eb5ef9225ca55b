"""What the numbers of queues show at this moment: messages that do not go on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta

from topology.content.text import count_of
from topology.definitions import Queue, is_tap
from topology.delays import format_delay, format_span
from topology.findings.context import Context
from topology.findings.finding import rule
from topology.findings.hit import Evidence, Hit
from topology.findings.rules.dead_letter_routes import BYTES, find_unrouted, limit_that_refuses
from topology.snapshot import QueueNumbers, count_stuck_in, has_stuck

# Most dead letters of a queue in flight at once (default of dead_letter_worker_consumer_prefetch,
# rabbit_fifo_dlx_worker.erl).
IN_FLIGHT = 32
# Waiting copies from which on a recorder is too slow, besides those that it has already.
BACKLOG = 1_000
# Milliseconds by which RabbitMQ may report the work of a queue late.
REPORTED_MS = 60_000


def _find_stuck(context: Context) -> Iterator[Hit]:
    for one, number, is_leaving in _list_stuck_queues(context):
        missing = _missing_keys(context, one)
        full = [] if is_leaving else _find_full_targets(context, one)
        messages = count_of(number, "message", "is")
        if missing or not (full or is_leaving):
            sentence = f"{messages} stuck in “{one.name}”{_describe_keys(one, missing)}."
            evidence = number_evidence(one, "messages", number, sentence)
            yield Hit("", evidence, _bind(context, one, missing))
        for target in full:
            why, remedy = _explain_full(context, target)
            sentence = f"{messages} stuck in “{one.name}”: {why}."
            evidence = number_evidence(one, "messages", number, sentence)
            yield Hit(target.name, evidence, remedy=remedy)


def _find_full_targets(context: Context, one: Queue) -> Sequence[Queue]:
    """The queues behind it that refuse what dies in it, because they are full, by name.

    RabbitMQ counts messages that no consumer has; Delayboard does not read how many bytes there
    are.
    """
    keys = context.keys(one)
    if keys is None:
        names = set(context.index.reach(one.dead_letter_exchange or "").queues)
    else:
        ends = (end for key in keys for end in context.die(one, "expired", key).outcomes)
        names = {end.hops[1].queue for end in ends if len(end.hops) > 1}
    targets = (context.index.queues[name] for name in sorted(names - {one.name}))
    return [target for target in targets if _is_full(context, target)]


def _is_full(context: Context, target: Queue) -> bool:
    limit = limit_that_refuses(target)
    if limit == BYTES:
        return bool(context.numbers(target).messages)
    return bool(limit) and _count_limited(context, target) >= (target.arguments.number(limit) or 0)


def _count_limited(context: Context, target: Queue) -> int:
    numbers = context.numbers(target)
    return (numbers.messages or 0) - (numbers.unacked or 0)


def _explain_full(context: Context, target: Queue) -> tuple[str, str]:
    """Why it refuses messages, and the remedy."""
    limit = limit_that_refuses(target)
    most, set_by = target.arguments.number(limit), context.set_by(target, limit)
    # A quorum queue accepts one message more than its limit.
    number = count_of(_count_limited(context, target), "message")
    why = f"is full ({number}, {limit} is {most}) and refuses them"
    if limit == BYTES:
        why = f"holds at most {most} bytes and refuses messages when it is full"
    how = f"raise {limit.removeprefix('x-')} in the {set_by}"
    if set_by == "argument":
        how = f"declare the queue again with a higher {limit}"
    return f"“{target.name}” {why}", (
        f"Consume or move messages of “{target.name}”, or {how}. RabbitMQ then sends the stuck "
        "messages within three minutes."
    )


def _find_slow(context: Context) -> Iterator[Hit]:
    for one, number, is_leaving in _list_stuck_queues(context):
        if number > IN_FLIGHT and is_leaving and not _missing_keys(context, one):
            past = f"{count_of(number, 'message', 'is')} past their time in “{one.name}”"
            sentence = f"{past}, and RabbitMQ sends at most {IN_FLIGHT} at once."
            yield Hit("", number_evidence(one, "messages", number, sentence))


def _list_stuck_queues(context: Context) -> Iterator[tuple[Queue, int, bool]]:
    """What looks held in both looks, how many, and whether messages left the queue between.

    A burst that expires at one moment looks held in one.
    """
    for one in context.dead_lettering:
        numbers, earlier = context.numbers(one), context.earlier_numbers(one)
        if earlier and has_stuck(one, numbers) and has_stuck(one, earlier):
            # What other queues sent here is not counted, so that more may have left.
            came = (numbers.published or 0) - (earlier.published or 0)
            left = came - count_growth(numbers, earlier)
            yield one, count_stuck_in(one, numbers) or 0, left > 0


def count_growth(numbers: QueueNumbers, earlier: QueueNumbers) -> int:
    """How many more messages it has; negative where it has fewer."""
    return (numbers.messages or 0) - (earlier.messages or 0)


def _missing_keys(context: Context, one: Queue) -> Sequence[str]:
    """The keys for which there is no queue, where the definitions show them."""
    keys = context.keys(one) or ()
    return [key for key in keys if find_unrouted(context.die(one, "expired", key))]


def _describe_keys(one: Queue, missing: Sequence[str]) -> str:
    if not missing:
        return ""
    exchange = one.dead_letter_exchange or "(default exchange)"
    names = ", ".join(f"“{key}”" for key in missing[:3])
    return f": no queue gets {names} at the exchange “{exchange}”"


def _bind(context: Context, one: Queue, missing: Sequence[str]) -> tuple[str, ...]:
    """Commands that bind the queue; none behind the default exchange, or where a queue of this name
    is missing.
    """
    exchange = one.dead_letter_exchange
    if not exchange or exchange not in context.index.exchanges:
        return ()
    return tuple(context.admin.bind(exchange, key=key) for key in missing)


def _find_growing(context: Context) -> Iterator[Hit]:
    for one in _dead_letter_queues(context):
        numbers, earlier = context.numbers(one), context.earlier_numbers(one)
        if earlier is None or earlier.messages is None or count_growth(numbers, earlier) <= 0:
            continue
        grown = count_growth(numbers, earlier)
        sentence = f"“{one.name}” has {grown} more dead letters than one to two minutes ago."
        yield Hit("", number_evidence(one, "messages", numbers.messages or 0, sentence))


def _find_behind(context: Context) -> Iterator[Hit]:
    for one in context.snapshot.declared.queues:
        numbers, earlier = context.numbers(one), context.earlier_numbers(one)
        if not is_tap(one.name) or one.type == "stream" or earlier is None:
            continue
        least = BACKLOG if numbers.consumers else 1
        number = numbers.ready or 0
        if number >= (earlier.ready or 0) >= least:
            why = "its recorder is too slow" if numbers.consumers else "nothing reads them"
            copies = "1 copy waits" if number == 1 else f"{number} copies wait"
            sentence = f"{copies} in the tap “{one.name}”, and {why}."
            yield Hit("", number_evidence(one, "messages ready", number, sentence))


def _find_unread(context: Context) -> Iterator[Hit]:
    for one in _dead_letter_queues(context):
        if number := context.numbers(one).messages or 0:
            messages = count_of(number, "message", "is")
            sentence = f"{messages} waiting in “{one.name}”, and no consumer reads them."
            if one.deletes_after is not None:
                sentence += f" RabbitMQ deletes each after {format_delay(one.deletes_after)}."
            yield Hit("", number_evidence(one, "messages", number, sentence))


def _dead_letter_queues(context: Context) -> Iterator[Queue]:
    """Where failed messages end. It may have consumers that RabbitMQ did not report."""
    for one in context.queues:
        if context.ends.is_end(one) and context.numbers(one).consumers == 0:
            yield one


def number_evidence(one: Queue, name: str, value: int | str, sentence: str) -> Evidence:
    """A number of a queue; nobody sets it."""
    return Evidence(one.identity, name, str(value), "", sentence)


STUCK = rule("L02", _find_stuck)
SLOW = rule("L05", _find_slow)
GROWING = rule("L09", _find_growing)
BEHIND = rule("L10", _find_behind)
UNREAD = rule("L11", _find_unread)


def _find_not_draining(context: Context) -> Iterator[Hit]:
    """A classic queue whose process did nothing for longer than its TTL, although it has messages.

    So nothing came and nothing left: all of them are past their time. By the process and not by
    publishes, which RabbitMQ counts for AMQP 0-9-1 alone. Processes of quorum queues always work.
    """
    for one in context.queues:
        numbers, ttl_ms = context.numbers(one), one.message_ttl_ms
        if ttl_ms is None or one.type != "classic" or context.earlier_numbers(one) is None:
            continue
        is_alone = numbers.consumers == 0 and numbers.unacked == 0 and numbers.state == "running"
        if is_alone and numbers.messages and numbers.still_ms > ttl_ms + REPORTED_MS:
            still = format_span(timedelta(seconds=numbers.still_ms // 1000))
            count = count_of(numbers.messages, "message", "is")
            sentence = f"{count} past the TTL of “{one.name}”, and none has left for {still}."
            yield Hit("", number_evidence(one, "messages", numbers.messages, sentence))


def _find_blocked(context: Context) -> Iterator[Hit]:
    for one, report in context.reports(BLOCKED.id):
        yield Hit("", number_evidence(one, "messages", report.number, report.sentence))


def _find_unconsumed(context: Context) -> Iterator[Hit]:
    """Find queues that nobody consumes, unless a queue TTL or a consumer takes messages out."""
    for one in context.dead_lettering:
        numbers, earlier = context.numbers(one), context.earlier_numbers(one)
        if one.message_ttl_ms is not None or earlier is None or not earlier.ready:
            continue
        if numbers.consumers == 0 == earlier.consumers and numbers.unacked == 0 and numbers.ready:
            count = count_of(numbers.ready, "message", "waits")
            sentence = f"{count} in “{one.name}”, which has no queue TTL and no consumer."
            yield Hit("", number_evidence(one, "messages ready", numbers.ready, sentence))


NOT_DRAINING = rule("L03", _find_not_draining)
BLOCKED = rule("L06", _find_blocked)
UNCONSUMED = rule("L12", _find_unconsumed)
