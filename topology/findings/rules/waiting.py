"""Queues that messages wait in: how they end, and what hurries or delays them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from topology.definitions import MAXIMUM_TTL_MS, Queue
from topology.delays import format_delay
from topology.findings.context import Context, state_unless
from topology.findings.finding import rule
from topology.findings.hit import TIME_TO_LIVE, Hit, Severity
from topology.findings.rules.dead_letter_routes import LENGTHS
from topology.routing import sentences
from topology.routing.outcome import RouteOutcome

TTL, EXPIRES = "x-message-ttl", "x-expires"
MILLISECOND = timedelta(milliseconds=1)
# TTL in milliseconds from which on dead letters are kept on purpose, and deleted then.
RETENTION_MS = 86_400_000


def time_of(ms: int) -> str:
    return format_delay(ms * MILLISECOND)


def discards(context: Context, one: Queue) -> bool:
    """Whether messages are sure to expire in it to nowhere.

    Not where consumers take them first, nor in a queue that is to vanish anyway, such as one for
    replies.
    """
    is_lasting = one.durable and not one.auto_delete and EXPIRES not in one.arguments
    is_discarding = one.deletes_after is not None and one.type != "stream"
    return is_lasting and is_discarding and not context.is_consumed(one)


def _find_discarding(context: Context) -> Iterator[Hit]:
    for one in context.queues:
        if discards(context, one) and one.name not in context.fed_by_deaths:
            after = time_of(one.message_ttl_ms or 0)
            sentence = f"A message in “{one.name}” is lost after {after}."
            evidence = context.evidence(one, TTL, sentence)
            cause = "" if evidence.set_by == "argument" else evidence.set_by
            yield Hit(cause, evidence, context.give_exchange(one))


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
    return next((name for name in LENGTHS if one.arguments.number(name) is not None), "")


def _find_deleted_early(context: Context) -> Iterator[Hit]:
    for one, ttl_ms, expires_ms in _list_leased(context):
        if expires_ms <= ttl_ms:
            unused = f"after {time_of(expires_ms)} without use"
            waits = f"a message waits {time_of(ttl_ms)}"
            sentence = f"RabbitMQ deletes “{one.name}” {unused}, and {waits}."
            repair = context.redeclare(one, {EXPIRES: None})
            yield Hit("", context.evidence(one, EXPIRES, sentence), repair)


def _find_unrenewed(context: Context) -> Iterator[Hit]:
    for one, ttl_ms, expires_ms in _list_leased(context):
        if one.type == "quorum" and expires_ms > ttl_ms:
            late = time_of(expires_ms - ttl_ms)
            later = f"later than {late} after the queue was declared"
            sentence = f"A message can be lost that arrives in “{one.name}” {later}."
            repair = context.redeclare(one, {EXPIRES: None})
            yield Hit("", context.evidence(one, EXPIRES, sentence), repair)


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
        if limit and (unless := context.may_delay(one)) is not None:
            overflow = one.arguments.text("x-overflow")
            is_newest = one.type == "classic" and overflow == "reject-publish-dlx"
            which = "each new" if is_newest else "its oldest"
            sentence = f"When “{one.name}” is full, {which} message dies before its time."
            repair = context.redeclare(one, dict.fromkeys(LENGTHS))
            yield Hit("", context.evidence(one, limit, sentence), repair, unless)


def _find_prioritised(context: Context) -> Iterator[Hit]:
    for one in context.dead_lettering:
        is_prioritised = one.arguments.number("x-max-priority") is not None
        if is_prioritised and (unless := context.may_delay(one)) is not None:
            behind = f"waits in “{one.name}” behind those of higher ones"
            sentence = f"An expired message of a low priority {behind}."
            repair = context.redeclare(one, {"x-max-priority": None})
            yield Hit("", context.evidence(one, "x-max-priority", sentence), repair, unless)


def _find_without_end(context: Context) -> Iterator[Hit]:
    """Where rejected messages wait in vain for a TTL: RabbitMQ removes that of a dead letter.

    Definitions do not show whether a consumer reads the queue, and which of two queues is the
    retry queue: it is a note until one has consumers and the other none.
    """
    seen = set()
    for death in context.deaths:
        for end in death.walk.delivered if death.reason == "rejected" else ():
            one = context.index.queues[end.queue]
            place = (one.name, death.queue.name)
            if place not in seen and _leads_back_without_ttl(context, one, death.queue, end):
                seen.add(place)
                sentence = (
                    f"A message that fails in “{death.queue.name}” remains in “{one.name}” until "
                    "a consumer reads it."
                )
                is_stuck = context.is_consumed(death.queue) and not context.is_consumed(one)
                repair = context.give_policy(one, message_ttl=TIME_TO_LIVE) if is_stuck else ()
                evidence = context.evidence(one, "x-dead-letter-exchange", sentence)
                severity = Severity.STUCK if is_stuck else None
                yield Hit("", evidence, repair, state_unless(end.unless), severity)


def _leads_back_without_ttl(context: Context, one: Queue, work: Queue, end: RouteOutcome) -> bool:
    if one == work or one.message_ttl_ms is not None or context.is_consumed(one):
        return False
    if one.dead_letter_exchange is None or one.type == "stream" or end.why != sentences.WAITS:
        return False
    key = end.hops[-1].routing_key if one.dead_letter_routing_key is None else None
    walked = context.die(one, "expired", key or one.dead_letter_routing_key or "")
    return any(hop.queue == work.name for hop in walked.hops)


def _find_shortened(context: Context) -> Iterator[Hit]:
    for one in context.dead_lettering:
        declared = context.snapshot.declared.queue(one.name)
        stated, holds = declared.message_ttl_ms if declared else None, one.message_ttl_ms
        if stated is not None and holds is not None and holds < stated:
            times = f"{time_of(holds)} instead of {time_of(stated)}"
            evidence = context.evidence(one, TTL, f"Messages leave “{one.name}” after {times}.")
            yield Hit(evidence.set_by, evidence)


DISCARDED = rule("F03", _find_discarding)
DELETED_BEFORE = rule("F05", _find_deleted_early)
NOT_RENEWED = rule("F06", _find_unrenewed)
EXPIRING_DEAD_LETTERS = rule("F07", _find_expiring_dead_letters)
BOUNDED = rule("F19", _find_bounded)
PRIORITISED = rule("F20", _find_prioritised)
SHORTENED = rule("F21", _find_shortened)
WITHOUT_END = rule("F32", _find_without_end)
KEPT_FOR_A_TIME = rule("F29", _find_retention)
