"""Queues that messages wait in: how they end, and what hurries or delays them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from topology.definitions import MAXIMUM_TTL_MS, Queue
from topology.delays import format_delay
from topology.findings.context import Context
from topology.findings.evidence import Hit
from topology.findings.finding import Rule, Severity

TTL, EXPIRES = "x-message-ttl", "x-expires"
TTL_DOC = "https://www.rabbitmq.com/docs/ttl"
LIMITS = ("x-max-length", "x-max-length-bytes")
MILLISECOND = timedelta(milliseconds=1)
# A dead letter that is kept for so long was meant to be deleted then.
RETENTION_MS = 86_400_000


def time_of(ms: int) -> str:
    return format_delay(ms * MILLISECOND)


def discards(context: Context, one: Queue) -> bool:
    """Whether messages are sure to expire in it to nowhere.

    Not where consumers take them first, nor in a queue that is to vanish anyway, such as one for
    replies.
    """
    is_lasting = one.durable and not one.auto_delete and EXPIRES not in one.arguments
    is_discarding = one.message_ttl_ms is not None and one.dead_letter_exchange is None
    return is_lasting and is_discarding and one.type != "stream" and not context.is_consumed(one)


def _find_discarding(context: Context) -> Iterator[Hit]:
    for one in context.queues:
        if discards(context, one) and one.name not in context.fed_by_deaths:
            sentence = (
                f"A message in “{one.name}” is lost after {time_of(one.message_ttl_ms or 0)}."
            )
            who = context.set_by(one, TTL)
            cause = "" if who == "argument" else who
            yield Hit(cause, context.evidence(one, TTL, sentence), context.give_exchange(one))


def _find_expiring_dead_letters(context: Context) -> Iterator[Hit]:
    for one, ttl_ms in _expiring_targets(context):
        if ttl_ms < RETENTION_MS:
            after = time_of(ttl_ms)
            sentence = f"A message that dies into “{one.name}” is lost there after {after}."
            evidence = context.evidence(one, TTL, sentence)
            yield Hit("", evidence, context.give_exchange(one))


def _find_retention(context: Context) -> Iterator[Hit]:
    for one, ttl_ms in _expiring_targets(context):
        if ttl_ms >= RETENTION_MS:
            sentence = f"“{one.name}” deletes dead letters after {time_of(ttl_ms)}."
            yield Hit("", context.evidence(one, TTL, sentence))
    for one in context.queues:
        limit = _dropping_limit(one)
        if limit and one.name in context.fed_by_deaths and one.dead_letter_exchange is None:
            sentence = f"“{one.name}” deletes its oldest dead letters when it is full."
            yield Hit("", context.evidence(one, limit, sentence))


def _expiring_targets(context: Context) -> Iterator[tuple[Queue, int]]:
    for one in context.queues:
        ttl_ms = one.message_ttl_ms
        if ttl_ms is not None and discards(context, one) and one.name in context.fed_by_deaths:
            yield one, ttl_ms


def _dropping_limit(one: Queue) -> str:
    """The argument that makes it drop its oldest message; "" for none."""
    if one.type == "stream" or one.arguments.text("x-overflow") == "reject-publish":
        return ""
    return next((name for name in LIMITS if one.arguments.number(name) is not None), "")


def _find_deleted_early(context: Context) -> Iterator[Hit]:
    for one, ttl_ms, expires_ms in _list_leased(context):
        if expires_ms <= ttl_ms:
            sentence = (
                f"RabbitMQ deletes “{one.name}” after {time_of(expires_ms)} without use, and a "
                f"message waits {time_of(ttl_ms)}."
            )
            repair = context.redeclare(one, {EXPIRES: None})
            yield Hit("", context.evidence(one, EXPIRES, sentence), repair)


def _find_unrenewed(context: Context) -> Iterator[Hit]:
    for one, ttl_ms, expires_ms in _list_leased(context):
        if one.type == "quorum" and expires_ms > ttl_ms:
            late = time_of(expires_ms - ttl_ms)
            sentence = (
                f"A message is lost that arrives in “{one.name}” later than {late} after the queue "
                "was declared."
            )
            yield Hit("", context.evidence(one, EXPIRES, sentence))


def _list_leased(context: Context) -> Iterator[tuple[Queue, int, int]]:
    """Queues that messages wait in and that expire, with their TTL and their lease."""
    for one in context.dead_lettering:
        ttl_ms, expires_ms = one.message_ttl_ms, one.arguments.number(EXPIRES) or 0
        is_valid = 0 < expires_ms <= MAXIMUM_TTL_MS
        if ttl_ms is not None and is_valid and not context.is_consumed(one):
            yield one, ttl_ms, expires_ms


def _find_bounded(context: Context) -> Iterator[Hit]:
    for one in context.dead_lettering:
        limit = _dropping_limit(one)
        if limit and one.name in context.delays:
            sentence = f"When “{one.name}” is full, its oldest message dies before its time."
            repair = context.redeclare(one, dict.fromkeys(LIMITS))
            yield Hit("", context.evidence(one, limit, sentence), repair)


def _find_prioritised(context: Context) -> Iterator[Hit]:
    for one in context.dead_lettering:
        if one.name in context.delays and one.arguments.number("x-max-priority") is not None:
            sentence = (
                f"An expired message of a low priority waits in “{one.name}” behind those of "
                "higher ones."
            )
            repair = context.redeclare(one, {"x-max-priority": None})
            yield Hit("", context.evidence(one, "x-max-priority", sentence), repair)


def _find_shortened(context: Context) -> Iterator[Hit]:
    for one in context.dead_lettering:
        declared = context.snapshot.declared.queue(one.name)
        stated, holds = declared.message_ttl_ms if declared else None, one.message_ttl_ms
        if stated is not None and holds is not None and holds < stated:
            who = context.set_by(one, TTL)
            sentence = (
                f"Messages leave “{one.name}” after {time_of(holds)} instead of {time_of(stated)}."
            )
            yield Hit(who, context.evidence(one, TTL, sentence))


DISCARDED = Rule(
    "F03",
    Severity.LOSS,
    "TTL without a dead-letter exchange",
    "RabbitMQ discards an expired message when its queue has no dead-letter exchange. Every "
    "message that waits here for its TTL is lost.",
    TTL_DOC,
    "Set a dead-letter exchange by a policy, or remove the TTL.",
    _find_discarding,
)

DELETED_BEFORE = Rule(
    "F05",
    Severity.LOSS,
    "Queue expires before its messages",
    "RabbitMQ deletes an unused queue after x-expires and does not dead-letter its messages. A "
    "publish does not count as use, so RabbitMQ deletes the queue before its messages expire.",
    "https://www.rabbitmq.com/docs/ttl#queue-ttl",
    "Declare the queue without x-expires, or set x-expires to twice the TTL and declare "
    "the queue before each publish.",
    _find_deleted_early,
)

NOT_RENEWED = Rule(
    "F06",
    Severity.LOSS,
    "Quorum delay queue with x-expires",
    "Declaring a quorum queue again does not renew its x-expires, and a publish does not either. "
    "RabbitMQ deletes the queue with the messages that came last.",
    "https://github.com/rabbitmq/rabbitmq-server/discussions/5894",
    "Use a classic queue for this delay, or declare the queue without x-expires.",
    _find_unrenewed,
)

EXPIRING_DEAD_LETTERS = Rule(
    "F07",
    Severity.LOSS,
    "Dead letters expire",
    "RabbitMQ dead-letters messages into this queue, which has a TTL and no dead-letter exchange. "
    "They are lost within a day.",
    TTL_DOC,
    "Remove the TTL, or set a dead-letter exchange by a policy.",
    _find_expiring_dead_letters,
)

BOUNDED = Rule(
    "F19",
    Severity.TIMING,
    "Delay queue with a length limit",
    "A full queue with the overflow drop-head dead-letters its oldest message at once. The message "
    "ends its delay early.",
    "https://www.rabbitmq.com/docs/maxlength",
    "Remove the limit. The overflow reject-publish loses dead letters that come to a full classic "
    "queue.",
    _find_bounded,
)

PRIORITISED = Rule(
    "F20",
    Severity.TIMING,
    "Delay queue with priorities",
    "RabbitMQ expires messages only at the head of a queue, where the highest priority stands. "
    "Messages of lower priorities leave late.",
    "https://www.rabbitmq.com/docs/priority",
    "Declare the delay queue without x-max-priority.",
    _find_prioritised,
)

SHORTENED = Rule(
    "F21",
    Severity.TIMING,
    "Policy shortens a TTL",
    "Where an argument and a policy set a TTL, RabbitMQ applies the smaller one. Messages leave "
    "the queue earlier than its declaration says.",
    TTL_DOC,
    "Exclude the queue from the policy, or remove message-ttl from it.",
    _find_shortened,
)

KEPT_FOR_A_TIME = Rule(
    "F29",
    Severity.STYLE,
    "Dead-letter queue deletes messages",
    "RabbitMQ deletes dead letters of this queue by age or when it is full. A failure that nobody "
    "looks at in time leaves no trace.",
    "https://www.rabbitmq.com/docs/dlx",
    "Park dead letters in time, or remove the limit.",
    _find_retention,
)
