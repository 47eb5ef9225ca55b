"""Messages that outstay their TTL: by the numbers of queues, by the list, by a peek."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from topology.content.text import count_of
from topology.delays import format_span
from topology.findings.context import Context
from topology.findings.evidence import Hit
from topology.findings.finding import rule
from topology.findings.rules.live import number_evidence

# RabbitMQ reports the work of a queue some seconds late.
REPORTED_MS = 60_000


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
    """Not where a queue TTL or a consumer takes messages out."""
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
