"""What dead-lettering at least once needs and costs, and what at most once loses."""

from __future__ import annotations

from collections.abc import Iterator

from topology.definitions import Queue
from topology.findings.commands import MAXIMUM_LENGTH
from topology.findings.context import Context, state_unless
from topology.findings.evidence import Hit
from topology.findings.finding import rule
from topology.routing.walk import stores_stuck_messages

STRATEGY = "x-dead-letter-strategy"
BYTES = "x-max-length-bytes"
LENGTHS = ("x-max-length", BYTES)


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
            # A policy's overflow has no effect beside the argument of a classic queue.
            repair = context.redeclare(target, {"x-overflow": None})
            if target.type == "quorum":
                repair = context.give_policy(target, overflow="drop-head")
            evidence = context.evidence(target, "x-overflow", sentence)
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
