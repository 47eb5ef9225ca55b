"""What the numbers of queues show at this moment."""

from __future__ import annotations

from collections.abc import Iterator

from topology.definitions import Queue
from topology.findings.context import Context
from topology.findings.evidence import Evidence, Hit
from topology.findings.example import Example, queue
from topology.findings.finding import Rule, Severity
from topology.snapshot import QueueNumbers
from topology.stuck_messages import count_stuck_in, has_stuck

# Fewer deliveries a second may be a consumer that starts again once.
LEAST_DELIVERIES = 1.0
# So many of the deliveries are repeats, and so few are acked.
MOSTLY, HARDLY = 0.9, 0.05


def _stuck(context: Context) -> Iterator[Hit]:
    """What looks held in both looks: a burst that expires at one moment looks so in one."""
    for one in context.dead_lettering:
        numbers, earlier = context.numbers(one), context.earlier_numbers(one)
        if earlier is None or not has_stuck(one, numbers) or not has_stuck(one, earlier):
            continue
        number = count_stuck_in(one, numbers) or 0
        sentence = f"{_messages(number)} stuck in “{one.name}”{_missing(context, one)}."
        yield Hit("", _evidence(one, "messages", number, sentence))


def _missing(context: Context, one: Queue) -> str:
    """The destinations that have no queue, by name, where the definitions show them."""
    exchange = one.dead_letter_exchange or "(default exchange)"
    keys = [
        key for key in context.keys(one) or () if not context.die(one, "expired", key).delivered
    ]
    if not keys:
        return ""
    names = ", ".join(f"“{key}”" for key in keys[:3])
    return f": no queue gets {names} at the exchange “{exchange}”"


def _consumed(context: Context) -> Iterator[Hit]:
    for one in context.queues:
        consumers = context.numbers(one).consumers or 0
        if not consumers or one.message_ttl_ms is None or not _is_delay(context, one):
            continue
        read = "1 consumer reads" if consumers == 1 else f"{consumers} consumers read"
        sentence = f"{read} “{one.name}”, so messages leave it before they are due."
        yield Hit("", _evidence(one, "consumers", consumers, sentence))


def _is_delay(context: Context, one: Queue) -> bool:
    """A level, or a queue whose dead letters go back to where they came from.

    By bindings alone: a route ends at a queue that somebody reads.
    """
    fed = context.fed_by_deaths
    work = (feeder for feeder in fed.get(one.name, ()) if feeder.message_ttl_ms is None)
    return one.name in context.level_queues or any(one in fed.get(w.name, ()) for w in work)


def _crashing(context: Context) -> Iterator[Hit]:
    for one in context.queues:
        numbers = context.numbers(one)
        deliveries, repeats = numbers.deliver_rate or 0.0, numbers.redeliver_rate or 0.0
        acks = numbers.ack_rate or 0.0
        if (
            deliveries >= LEAST_DELIVERIES
            and repeats >= MOSTLY * deliveries
            and acks <= HARDLY * deliveries
        ):
            sentence = (
                f"Consumers of “{one.name}” receive {deliveries:.0f} messages per second. Most are "
                "redelivered, and few are acknowledged."
            )
            yield Hit("", _evidence(one, "redelivered a second", f"{repeats:.0f}", sentence))


def _growing(context: Context) -> Iterator[Hit]:
    for one in _dead_letter_queues(context):
        numbers, earlier = context.numbers(one), context.earlier_numbers(one)
        now = numbers.messages or 0
        if earlier is None or earlier.messages is None or now <= earlier.messages:
            continue
        sentence = (
            f"“{one.name}” has {now - earlier.messages} more dead letters than one to two minutes "
            "ago."
        )
        yield Hit("", _evidence(one, "messages", now, sentence))


def _unread(context: Context) -> Iterator[Hit]:
    for one in _dead_letter_queues(context):
        if number := context.numbers(one).messages or 0:
            sentence = f"{_messages(number)} waiting in “{one.name}”, and no consumer reads them."
            yield Hit("", _evidence(one, "messages", number, sentence))


def _dead_letter_queues(context: Context) -> Iterator[Queue]:
    """Where dead letters end, without a consumer."""
    for one in context.queues:
        is_end = one.dead_letter_exchange is None and one.message_ttl_ms is None
        feeders = context.fed_by_deaths.get(one.name, ())
        # What a delay feeds is a work queue.
        is_work = any(feeder.message_ttl_ms is not None for feeder in feeders)
        if is_end and feeders and not is_work and context.numbers(one).consumers == 0:
            yield one


def _messages(number: int) -> str:
    return "1 message is" if number == 1 else f"{number} messages are"


def _evidence(one: Queue, name: str, value: int | str, sentence: str) -> Evidence:
    return Evidence(one.identity, name, str(value), "", sentence)


_LEVEL = queue(
    "l01-wait",
    type="quorum",
    ttl=1_000,
    dlx="",
    key="l01-gone",
    strategy="at-least-once",
    overflow="reject-publish",
)
_RETRY = (
    queue("l02-work", dlx="", key="l02-wait"),
    queue("l02-wait", ttl=60_000, dlx="", key="l02-work"),
)
_DEAD = (queue("l04-work", dlx="", key="l04-dead"), queue("l04-dead"))
_READ = (queue("l05-work", dlx="", key="l05-dead"), queue("l05-dead"))


STUCK = Rule(
    "L01",
    Severity.STUCK,
    "Messages stuck in at-least-once dead-lettering",
    "An at-least-once queue keeps a dead letter until a queue accepts it, and RabbitMQ tries again "
    "every three minutes. RabbitMQ counts these messages and delivers them to no consumer.",
    "https://www.rabbitmq.com/docs/quorum-queues#dead-lettering",
    "Bind a queue for the missing routing key.",
    _stuck,
    failing=Example(
        queues=(_LEVEL,),
        numbers={"l01-wait": QueueNumbers(messages=3, ready=0, unacked=0)},
        earlier={"l01-wait": QueueNumbers(messages=3, ready=0, unacked=0)},
    ),
    passing=Example(
        queues=(_LEVEL, queue("l01-gone")),
        numbers={"l01-wait": QueueNumbers(messages=3, ready=0, unacked=0)},
        earlier={"l01-wait": QueueNumbers(messages=3, ready=3, unacked=0)},
    ),
)

CONSUMED_DELAY = Rule(
    "L02",
    Severity.TIMING,
    "Consumers on a delay queue",
    "A delay queue holds messages until their TTL ends. A consumer takes them at once, so they "
    "arrive early and their delay is lost.",
    "https://www.rabbitmq.com/docs/ttl#per-queue-message-ttl",
    "Stop the consumer of the delay queue.",
    _consumed,
    failing=Example(queues=_RETRY, numbers={"l02-wait": QueueNumbers(consumers=1)}),
    passing=Example(queues=_RETRY, numbers={"l02-work": QueueNumbers(consumers=1)}),
)

CRASH_LOOP = Rule(
    "L03",
    Severity.COST,
    "Consumers return messages in a loop",
    "Consumers get the same messages again and again without an ack. They crash, or requeue what "
    "they cannot process, and each delivery counts towards a delivery limit.",
    "https://www.rabbitmq.com/docs/consumers#acknowledgement-modes",
    "Read the log of the consumer. Configure the consumer to reject without requeue, and "
    "dead-letter to a queue with a TTL.",
    _crashing,
    failing=Example(
        queues=(queue("l03-work"),),
        numbers={
            "l03-work": QueueNumbers(
                consumers=1, deliver_rate=100.0, redeliver_rate=100.0, ack_rate=0.0
            )
        },
    ),
    passing=Example(
        queues=(queue("l03-work"),),
        numbers={
            "l03-work": QueueNumbers(
                consumers=1, deliver_rate=100.0, redeliver_rate=2.0, ack_rate=0.0
            )
        },
    ),
)

GROWING = Rule(
    "L04",
    Severity.COST,
    "Dead-letter queue grows",
    "More messages die into this queue, and no consumer reads it. Messages fail at this moment.",
    "https://www.rabbitmq.com/docs/dlx",
    "Find the cause on the page Dead letters, then replay the messages.",
    _growing,
    failing=Example(
        queues=_DEAD,
        numbers={"l04-dead": QueueNumbers(messages=9, consumers=0)},
        earlier={"l04-dead": QueueNumbers(messages=2, consumers=0)},
    ),
    passing=Example(
        queues=_DEAD,
        numbers={"l04-dead": QueueNumbers(messages=9, consumers=0)},
        earlier={"l04-dead": QueueNumbers(messages=9, consumers=0)},
    ),
)

UNREAD = Rule(
    "L05",
    Severity.STYLE,
    "Dead letters wait",
    "Messages died into this queue, and no consumer reads it. They remain until an operator "
    "replays or discards them.",
    "https://www.rabbitmq.com/docs/dlx",
    "On the page Dead letters, mark the queue and park or replay its messages.",
    _unread,
    failing=Example(queues=_READ, numbers={"l05-dead": QueueNumbers(messages=9, consumers=0)}),
    passing=Example(queues=_READ, numbers={"l05-dead": QueueNumbers(messages=9, consumers=1)}),
)
