"""What the numbers of queues show over time: messages that outstay their TTL."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from topology.delays import in_words
from topology.findings.context import Context
from topology.findings.evidence import Hit
from topology.findings.example import Example, policy, queue
from topology.findings.finding import Rule, Severity
from topology.findings.rules.live import number_evidence
from topology.snapshot import QueueNumbers

# RabbitMQ reports the work of a queue some seconds late.
REPORTED_MS = 60_000


def _not_draining(context: Context) -> Iterator[Hit]:
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


_QUEUES = (queue("l03-wait", dlx="", key="l03-work"), queue("l03-work"))
_SET_LATER = (policy("l03", "^l03-wait", message_ttl=5_000),)
_FULL = QueueNumbers(messages=6, unacked=0, consumers=0, state="running", still_ms=70_000)

NOT_DRAINING = Rule(
    "L03",
    Severity.STUCK,
    "Expired messages do not leave",
    "RabbitMQ sets the expiry of a message at its arrival. A message from before a policy set the "
    "TTL never expires, and in a classic queue all messages behind it wait.",
    "https://www.rabbitmq.com/docs/ttl",
    "Take the messages from the queue with a consumer or a shovel, and publish them again.",
    _not_draining,
    failing=Example(
        queues=_QUEUES,
        policies=_SET_LATER,
        numbers={"l03-wait": _FULL},
        earlier={"l03-wait": _FULL},
    ),
    passing=Example(
        queues=_QUEUES,
        policies=(policy("l03", "^l03-wait", message_ttl=60_000),),
        numbers={"l03-wait": _FULL},
        earlier={"l03-wait": _FULL},
    ),
)
