"""Where dead letters go: to an exchange, from there to a queue, at least once or at most once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from topology.definitions import Queue
from topology.findings.context import Context, Death, state_unless
from topology.findings.finding import rule
from topology.findings.hit import MAXIMUM_LENGTH, Admin, Hit, name_dead_letter_queue
from topology.routing.cycle import Reason
from topology.routing.matching.delayed_exchange import kind_of
from topology.routing.matching.match import FORESEEABLE, Unknown
from topology.routing.outcome import RouteOutcome, Walk
from topology.routing.walk import stores_stuck_messages

EXCHANGE, KEY = "x-dead-letter-exchange", "x-dead-letter-routing-key"
DEFAULT = "(default exchange)"
_HOW: Mapping[Reason, str] = {
    "rejected": "rejected",
    "expired": "expired",
    "maxlen": "from a full queue",
    "delivery_limit": "over the delivery limit",
}
STRATEGY = "x-dead-letter-strategy"
BYTES = "x-max-length-bytes"
LENGTHS = ("x-max-length", BYTES)
_STORING = (
    "Raise the length limit of the second queue. It dead-letters at least once itself: with the "
    "overflow drop-head RabbitMQ would delete the dead letters that it stores."
)


def _find_missing_exchanges(context: Context) -> Iterator[Hit]:
    for one in context.dead_lettering:
        if _is_missing(context, one) and not stores_stuck_messages(one):
            name = one.dead_letter_exchange or ""
            sentence = f"RabbitMQ drops each message that dies in “{one.name}”."
            # For every key, until a person binds other queues.
            repair = context.declare_bound(name, "topic", key="#")
            yield Hit(name, context.evidence(one, EXCHANGE, sentence), repair)


def _is_missing(context: Context, one: Queue) -> bool:
    return bool(one.dead_letter_exchange) and (
        one.dead_letter_exchange not in context.index.exchanges
    )


def _find_unrouted(context: Context) -> Iterator[Hit]:
    for one, key, how, unless in _list_unroutable(context):
        name = one.dead_letter_exchange or ""
        if _is_missing(context, one) or stores_stuck_messages(one):
            continue
        argument = KEY if one.dead_letter_routing_key is not None else EXCHANGE
        evidence = context.evidence(one, argument, _describe_loss(one, key, how))
        repair = _bind(context.admin, name, key)
        yield Hit(name or DEFAULT, evidence, repair, unless)


def _describe_loss(one: Queue, key: str | None, how: str) -> str:
    if key is None:
        return f"No queue is bound to the dead-letter exchange of “{one.name}”."
    return f"No queue gets a message that dies in “{one.name}”{how} with the routing key “{key}”."


def _bind(admin: Admin, exchange: str, key: str | None) -> tuple[str, ...]:
    """What is missing behind the default exchange is a queue, which is no binding."""
    if not exchange:
        return (admin.declare_queue(Queue(key)),) if key else ()
    return (admin.bind(exchange) if key is None else admin.bind(exchange, key=key),)


def _list_unroutable(context: Context) -> Iterator[tuple[Queue, str | None, str, str]]:
    """Each queue with a key that no queue gets; None where nothing is bound for any key.

    The third says for which reasons to die, where a headers exchange tells them apart; the fourth
    which messages are routed nevertheless.
    """
    reasons: dict[tuple[Queue, str], list[Reason]] = {}
    unless: dict[tuple[Queue, str], frozenset[Unknown]] = {}
    for death in context.deaths:
        place = (death.queue, death.routing_key)
        for end in find_unrouted(death.walk):
            reasons.setdefault(place, []).append(death.reason)
            unless[place] = unless.get(place, frozenset()) | end.unless
    for (one, key), found in reasons.items():
        is_always = len(found) == len(context.reasons(one))
        how = "" if is_always else f" ({' or '.join(map(_HOW.__getitem__, found))})"
        yield one, key, how, state_unless(unless[one, key])
    for one in context.dead_lettering:
        if context.keys(one) is None and _leads_nowhere(context, one):
            yield one, None, "", ""


def find_unrouted(walk: Walk) -> Sequence[RouteOutcome]:
    """The ends of a message that dies where the dead-letter exchange has no queue for it."""
    return [end for end in walk.outcomes if end.cause == "no_route" and len(end.hops) == 1]


def _leads_nowhere(context: Context, one: Queue) -> bool:
    """Whether its exchange has no way on at all; fresh delay levels have no destination yet."""
    target = context.index.exchanges.get(one.dead_letter_exchange or "")
    if target is None:
        return _is_missing(context, one)
    if kind_of(target) not in FORESEEABLE or one.name in context.level_queues:
        return False
    is_bound = bool(context.index.definitions.leaving(target.name))
    return not is_bound and target.arguments.text("alternate-exchange") is None


def _find_stuck(context: Context) -> Iterator[Hit]:
    for one, key, _, unless in _list_unroutable(context):
        if stores_stuck_messages(one):
            name = one.dead_letter_exchange or ""
            sentence = f"“{one.name}” stores each message that dies in it until a queue accepts it."
            repair = _bind(context.admin, name, key)
            yield Hit(name or DEFAULT, context.evidence(one, EXCHANGE, sentence), repair, unless)


def _find_old_streams(context: Context) -> Iterator[Hit]:
    seen = set()
    for death in context.deaths:
        for end in death.walk.outcomes:
            place = (death.queue.name, end.why)
            # Where another queue gets it too, the message is not lost.
            is_lost = end.cause == "old_stream" and not death.walk.delivered
            if is_lost and len(end.hops) == 1 and place not in seen:
                seen.add(place)
                sentence = f"A message dies in “{death.queue.name}”: {end.why}."
                evidence = context.evidence(death.queue, EXCHANGE, sentence)
                repair = _give_other_queue(context, death)
                yield Hit("", evidence, repair, state_unless(end.unless))


def _give_other_queue(context: Context, death: Death) -> tuple[str, ...]:
    """A classic queue for these dead letters: bound beside the stream, or named in the key."""
    queue, one = name_dead_letter_queue(death.queue.name), death.queue
    declare = context.declare_missing(queue)
    if one.dead_letter_exchange:
        return (*declare, context.admin.bind(one.dead_letter_exchange, queue, death.routing_key))
    led = context.redeclare(one, {EXCHANGE: "", KEY: queue})
    return (*declare, *led) if led else ()


MISSING_EXCHANGE = rule("F01", _find_missing_exchanges)
NO_ROUTE = rule("F02", _find_unrouted)
OLD_STREAM = rule("F12", _find_old_streams)
HELD = rule("F15", _find_stuck)


def _find_fallbacks(context: Context) -> Iterator[Hit]:
    for one in context.dead_lettering:
        asks = one.type == "quorum" and one.arguments.text(STRATEGY) == "at-least-once"
        if asks and not stores_stuck_messages(one):
            sentence = f"“{one.name}” dead-letters at most once."
            repair = context.give_policy(one, overflow="reject-publish")
            yield Hit("", context.evidence(one, "x-overflow", sentence), repair)


def _find_stuck_behind_full(context: Context) -> Iterator[Hit]:
    for one, target, has_others, unless in _list_full_targets(context):
        if stores_stuck_messages(one) and has_others:
            sentence = f"When “{target.name}” is full, messages that died stay in “{one.name}”."
            evidence = context.evidence(target, "x-overflow", sentence)
            if stores_stuck_messages(target):
                yield Hit(target.name, evidence, (), unless, remedy=_STORING)
                continue
            # A policy's overflow has no effect beside the argument of a classic queue.
            repair = context.redeclare(target, {"x-overflow": None})
            if target.type == "quorum":
                repair = context.give_policy(target, overflow="drop-head")
            yield Hit(target.name, evidence, repair, unless)


def _find_lost_at_full(context: Context) -> Iterator[Hit]:
    """A quorum queue takes dead letters beyond its limit (tried, 3.10.8 to 4.3.6)."""
    for one, target, has_others, unless in _list_full_targets(context):
        if target.type == "classic" and not stores_stuck_messages(one):
            lost = "its copies of messages" if has_others else "messages"
            sentence = (
                f"When “{target.name}” is full, RabbitMQ drops {lost} that die in “{one.name}”."
            )
            repair = context.redeclare(target, dict.fromkeys((*LENGTHS, "x-overflow")))
            evidence = context.evidence(target, "x-overflow", sentence)
            yield Hit(target.name, evidence, repair, unless)


def _list_full_targets(context: Context) -> Iterator[tuple[Queue, Queue, bool, str]]:
    """Each queue with another that refuses its dead letters when full; whether they go to more,
    and which messages do not come there."""
    seen = set()
    for death in context.deaths:
        ends = {end.hops[1].queue: end for end in death.walk.outcomes if len(end.hops) > 1}
        for name, end in sorted(ends.items(), key=lambda item: item[0]):
            target = context.index.queues[name]
            if limit_that_refuses(target) and (death.queue.name, name) not in seen:
                seen.add((death.queue.name, name))
                yield death.queue, target, len(ends) > 1, state_unless(end.unless)


def limit_that_refuses(target: Queue) -> str:
    """The argument that limits a queue which refuses messages when it is full; "" for none."""
    if target.arguments.text("x-overflow") != "reject-publish":
        return ""
    return next((name for name in LENGTHS if name in target.arguments), "")


def _find_unbounded(context: Context) -> Iterator[Hit]:
    for one in context.dead_lettering:
        if stores_stuck_messages(one) and not any(limit in one.arguments for limit in LENGTHS):
            sentence = f"“{one.name}” grows without a limit while its target accepts nothing."
            repair = context.give_policy(one, max_length=MAXIMUM_LENGTH)
            yield Hit("", context.evidence(one, "x-max-length", sentence), repair)


def _find_unsafe(context: Context) -> Iterator[Hit]:
    for one in context.dead_lettering:
        asks = one.arguments.text(STRATEGY) == "at-least-once"
        if one.type == "quorum" and one.message_ttl_ms is not None and not asks:
            sentence = f"RabbitMQ deletes a message of “{one.name}” before the target accepts it."
            safe = {"dead_letter_strategy": "at-least-once", "overflow": "reject-publish"}
            repair = () if STRATEGY in one.arguments else context.give_policy(one, **safe)
            yield Hit("", context.evidence(one, STRATEGY, sentence), repair)


FALLEN_BACK = rule("F09", _find_fallbacks)
REFUSING = rule("F16", _find_stuck_behind_full)
REFUSED = rule("F13", _find_lost_at_full)
UNBOUNDED = rule("F24", _find_unbounded)
UNSAFE = rule("F25", _find_unsafe)
