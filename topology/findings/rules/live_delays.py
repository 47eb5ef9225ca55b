"""Messages that outstay their TTL: by the numbers of queues, by the list, by a peek."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from topology.delays import in_words
from topology.findings.context import Context
from topology.findings.evidence import Hit
from topology.findings.finding import Rule, Severity
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
            still = in_words(timedelta(seconds=numbers.still_ms // 1000))
            count = "1 message is" if numbers.messages == 1 else f"{numbers.messages} messages are"
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
            count = "1 message waits" if numbers.ready == 1 else f"{numbers.ready} messages wait"
            sentence = f"{count} in “{one.name}”, which has no queue TTL and no consumer."
            yield Hit("", number_evidence(one, "messages ready", numbers.ready, sentence))


NOT_DRAINING = Rule(
    "L03",
    Severity.STUCK,
    "Expired messages do not leave",
    "RabbitMQ sets the expiry of a message at its arrival. A message from before a policy set the "
    "TTL never expires, and in a classic queue all messages behind it wait.",
    "https://www.rabbitmq.com/docs/ttl",
    "Take the messages from the queue with a consumer or a shovel, and publish them again.",
    _find_not_draining,
)


BLOCKED = Rule(
    "L06",
    Severity.TIMING,
    "Messages wait behind one with a longer TTL",
    "RabbitMQ removes expired messages only at the head of a queue. A message with a short TTL "
    "leaves late, when those before it have left.",
    "https://www.rabbitmq.com/docs/ttl#per-message-ttl-caveats",
    "Use one queue for each delay, with a queue TTL. The topologies of Delayboard do.",
    _find_blocked,
)

UNCONSUMED = Rule(
    "L12",
    Severity.STYLE,
    "Messages wait without a queue TTL or a consumer",
    "RabbitMQ removes a message only when its own TTL ends, and only at the head of the queue. A "
    "message without a TTL never leaves, and a message with a long TTL makes the others late.",
    "https://www.rabbitmq.com/docs/ttl#per-message-ttl-caveats",
    "Start the consumer of a work queue. Peek a delay queue: the peek compares the TTLs of its "
    "first messages.",
    _find_unconsumed,
)
