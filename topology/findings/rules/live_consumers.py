"""What the numbers of queues show at this moment: consumers that get nothing done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from topology.content.text import count_of
from topology.definitions import Queue
from topology.findings.context import Context
from topology.findings.finding import rule
from topology.findings.hit import Evidence, Hit, list_consumers
from topology.findings.rules.live import count_growth, number_evidence
from topology.routing.context import delivery_limit
from topology.snapshot import QueueNumbers

# Least deliveries a second that say something: fewer may be a consumer that starts again.
LEAST_DELIVERIES = 1.0
# The share of deliveries that are repeats, and the share that is acknowledged.
MOSTLY, HARDLY = 0.9, 0.05


def _find_consumed_delays(context: Context) -> Iterator[Hit]:
    for one in context.queues:
        consumers = context.numbers(one).consumers or 0
        if not consumers or one.message_ttl_ms is None or not _is_delay(context, one):
            continue
        read = count_of(consumers, "consumer", "reads")
        sentence = f"{read} “{one.name}”, so messages leave it before they are due."
        evidence = number_evidence(one, "consumers", consumers, sentence)
        yield Hit("", evidence, (list_consumers(one.name),))


def _is_delay(context: Context, one: Queue) -> bool:
    """A level, or a queue whose dead letters go back to where they came from.

    By bindings alone: a route ends at a queue that somebody reads.
    """
    fed = context.fed_by_deaths
    work = (feeder for feeder in fed.get(one.name, ()) if feeder.message_ttl_ms is None)
    return one.name in context.level_queues or any(one in fed.get(w.name, ()) for w in work)


def _find_lost_by_crashes(context: Context) -> Iterator[Hit]:
    for one, _ in _list_crashing(context):
        if (limit := delivery_limit(one, context.version)) is not None and _drops(context, one):
            fail = f"Consumers of “{one.name}” fail with the same messages again and again."
            sentence = f"{fail} RabbitMQ drops a message after {_failures(limit)}."
            value, set_by = str(limit), context.set_by(one, "x-delivery-limit")
            evidence = Evidence(one.identity, "x-delivery-limit", value, set_by, sentence)
            is_lost = one.dead_letter_exchange is None
            repair = context.give_dead_letter_queue(one) if is_lost else ()
            yield Hit("", evidence, (list_consumers(one.name), *repair))


def _drops(context: Context, one: Queue) -> bool:
    """Whether no queue gets what exceeds its delivery limit, whatever else its messages have."""
    if one.dead_letter_exchange is None:
        return True
    walks = (context.die(one, "delivery_limit", key) for key in context.keys(one) or ())
    return any(
        not any(end.others or end in walk.delivered for end in walk.outcomes) for walk in walks
    )


def _find_redelivered(context: Context) -> Iterator[Hit]:
    for one, numbers in _list_crashing(context):
        limit = delivery_limit(one, context.version)
        if limit is not None and _drops(context, one):
            continue
        end = "" if limit is None else f" RabbitMQ dead-letters each after {_failures(limit)}."
        sentence = (
            f"Consumers of “{one.name}” receive {numbers.deliver_rate or 0:.0f} messages per "
            f"second. Most are redelivered, and few are acknowledged.{end}"
        )
        value = f"{numbers.redeliver_rate or 0:.0f}"
        evidence = number_evidence(one, "redelivered per second", value, sentence)
        yield Hit("", evidence, (list_consumers(one.name),))


def _list_crashing(context: Context) -> Iterator[tuple[Queue, QueueNumbers]]:
    for one in context.queues:
        numbers = context.numbers(one)
        deliveries, repeats = numbers.deliver_rate or 0.0, numbers.redeliver_rate or 0.0
        if deliveries < LEAST_DELIVERIES or (numbers.ack_rate or 0.0) > HARDLY * deliveries:
            continue
        limit = delivery_limit(one, context.version)
        # The first delivery of each message is no repeat.
        most = 1.0 if limit is None else limit / (limit + 1)
        if repeats and repeats >= MOSTLY * most * deliveries:
            yield one, numbers


def _failures(limit: int) -> str:
    return "1 failed delivery" if limit == 0 else f"{limit + 1} failed deliveries"


def _find_growing_retries(context: Context) -> Iterator[Hit]:
    for one in context.queues:
        numbers, earlier = context.numbers(one), context.earlier_numbers(one)
        # What is published to it are retries too, of consumers that acknowledge.
        if earlier is None or numbers.publish_rate or one.message_ttl_ms is None:
            continue
        is_retry = one.name in context.fed_by_deaths and _is_delay(context, one)
        if context.is_consumed(one) or not is_retry:
            continue
        grown = count_growth(numbers, earlier)
        work = [f for f in context.fed_by_deaths[one.name] if f.message_ttl_ms is None]
        taken = sum(_count_taken(context, each) for each in work)
        if grown > taken and _find_failing(context, work):
            names = ", ".join(f"“{each.name}”" for each in work[:3])
            more = f"{grown} more messages than one to two minutes ago"
            sentence = f"“{one.name}” has {more}, and most deliveries of {names} fail."
            evidence = number_evidence(one, "messages", numbers.messages or 0, sentence)
            yield Hit("", evidence, tuple(list_consumers(each.name) for each in work))


def _count_taken(context: Context, one: Queue) -> int:
    """How many more messages its consumers hold: they may acknowledge a batch later."""
    earlier = context.earlier_numbers(one) or QueueNumbers()
    return max(0, (context.numbers(one).unacked or 0) - (earlier.unacked or 0))


def _find_failing(context: Context, work: Sequence[Queue]) -> bool:
    seen = [context.numbers(one) for one in work]
    deliveries = sum((n.deliver_rate or 0.0) - (n.redeliver_rate or 0.0) for n in seen)
    acks = sum(n.ack_rate or 0.0 for n in seen)
    return deliveries >= LEAST_DELIVERIES and acks < deliveries / 2


LIMIT = rule("L01", _find_lost_by_crashes)
CONSUMED_DELAY = rule("L04", _find_consumed_delays)
CRASH_LOOP = rule("L07", _find_redelivered)
GROWING_RETRIES = rule("L08", _find_growing_retries)
