"""Settings of exchanges and queues that do not do what they say, or do not last."""

from __future__ import annotations

from collections.abc import Iterator

from topology.definitions import DELAYED_TYPE, Exchange, Queue, show_value
from topology.findings.context import Context
from topology.findings.evidence import Hit
from topology.findings.finding import Rule, Severity

_POLICIES = "https://www.rabbitmq.com/docs/parameters#policies"
# A policy's value has no effect beside the argument's.
_ARGUMENT_WINS = ("x-dead-letter-exchange", "x-dead-letter-routing-key")


def _find_transient_targets(context: Context) -> Iterator[Hit]:
    for one in context.dead_lettering:
        target = context.index.exchanges.get(one.dead_letter_exchange or "")
        if one.durable and target is not None and not _lasts(target):
            yield _make_hit(context, one, target, "binding")
    yield from _find_transient_queues(context)


def _find_transient_queues(context: Context) -> Iterator[Hit]:
    """Not where one of several targets lasts, nor what a queue that goes too dies into."""
    seen = set()
    for death in context.deaths:
        one, ends = death.queue, death.walk.outcomes
        targets = [context.index.queues[end.hops[1].queue] for end in ends if len(end.hops) > 1]
        is_lasting = _lasts(one) and "x-expires" not in one.arguments
        if is_lasting and targets and one.name not in seen and not any(map(_lasts, targets)):
            seen.add(one.name)
            yield _make_hit(context, one, targets[0], "consumer")


def _make_hit(context: Context, one: Queue, target: Exchange | Queue, user: str) -> Hit:
    when = f"after the last {user} is removed" if target.durable else "when the broker restarts"
    sentence = (
        f"RabbitMQ deletes “{target.name}” {when}. It then drops the messages that die in "
        f"“{one.name}”."
    )
    repair = context.redeclare(target, {}, lasting=True) if isinstance(target, Queue) else ()
    return Hit(target.name, context.evidence(one, "x-dead-letter-exchange", sentence), repair)


def _lasts(target: Exchange | Queue) -> bool:
    return target.durable and not target.auto_delete


def _find_missing_alternates(context: Context) -> Iterator[Hit]:
    for one in sorted(context.index.exchanges.values(), key=lambda exchange: exchange.name):
        name = one.arguments.text("alternate-exchange")
        if name and name not in context.index.exchanges:
            sentence = f"RabbitMQ drops what no binding of “{one.name}” takes."
            evidence = context.evidence_of(one.identity, "alternate-exchange", name, sentence)
            repair = (
                context.admin.declare_exchange(name, "fanout"),
                context.admin.bind(name, key=""),
            )
            yield Hit(name, evidence, repair)


def _find_ignored_overflow(context: Context) -> Iterator[Hit]:
    for one in context.queues:
        is_ignored = one.arguments.text("x-overflow") == "reject-publish-dlx"
        is_bounded = any(name in one.arguments for name in ("x-max-length", "x-max-length-bytes"))
        if one.type == "quorum" and is_ignored and is_bounded:
            sentence = f"“{one.name}” drops its oldest message when it is full."
            repair = context.give_policy(one, overflow="reject-publish")
            yield Hit("", context.evidence(one, "x-overflow", sentence), repair)


def _find_settings_without_effect(context: Context) -> Iterator[Hit]:
    for name, given in sorted(context.snapshot.policy_arguments.items()):
        declared, one = context.snapshot.declared.queue(name), context.index.queues.get(name)
        if declared is None or one is None:
            continue
        for argument in (*_ARGUMENT_WINS, "x-overflow"):
            stated, other = declared.arguments.get(argument), given.get(argument)
            if stated is None or other is None or stated == other:
                continue
            holds = one.arguments[argument]
            lost = show_value(other if holds == stated else stated)
            sentence = f"“{name}” has {argument} set twice. The value “{lost}” has no effect."
            policies = context.snapshot.policies.get(name, "")
            yield Hit(policies, context.evidence(one, argument, sentence))


def _find_delayed_exchanges(context: Context) -> Iterator[Hit]:
    for one in sorted(context.index.exchanges.values(), key=lambda exchange: exchange.name):
        if one.type == DELAYED_TYPE:
            sentence = f"“{one.name}” stores its delayed messages once, on one node."
            yield Hit("", context.evidence_of(one.identity, "type", one.type, sentence))


TRANSIENT = Rule(
    "F08",
    Severity.LOSS,
    "Dead-letter target does not last",
    "RabbitMQ can delete the exchange or the queue that gets the dead letters of this durable "
    "queue. It then drops the dead letters.",
    "https://www.rabbitmq.com/docs/queues#durability",
    "Declare the exchange and the queue as durable, without auto-delete.",
    _find_transient_targets,
)

MISSING_ALTERNATE = Rule(
    "F10",
    Severity.LOSS,
    "Alternate exchange missing",
    "An alternate exchange gets the messages that no binding takes. It does not exist, so RabbitMQ "
    "drops them.",
    "https://www.rabbitmq.com/docs/ae",
    "Declare the alternate exchange and bind a queue to it.",
    _find_missing_alternates,
)

NOT_REFUSING = Rule(
    "F11",
    Severity.LOSS,
    "Overflow reject-publish-dlx on a quorum queue",
    "Quorum queues do not support the overflow reject-publish-dlx and use drop-head instead. A "
    "full queue removes its oldest message and accepts the new one.",
    "https://www.rabbitmq.com/docs/maxlength",
    "Set the overflow to reject-publish.",
    _find_ignored_overflow,
)

WITHOUT_EFFECT = Rule(
    "F28",
    Severity.STYLE,
    "Setting without effect",
    "For a dead-letter exchange and key the argument wins over the policy, and for the overflow of "
    "a quorum queue the policy wins. A change of the other setting has no effect.",
    _POLICIES,
    "Remove the setting that has no effect.",
    _find_settings_without_effect,
)

DELAYED_EXCHANGE = Rule(
    "F30",
    Severity.STYLE,
    "Exchange of the archived delay plugin",
    "The plugin rabbitmq_delayed_message_exchange is archived and does not run on RabbitMQ 4.3. "
    "Its messages exist once, on one node, and nothing lists them.",
    "https://github.com/rabbitmq/rabbitmq-delayed-message-exchange",
    "Move to a delay by TTL and dead-lettering before you upgrade.",
    _find_delayed_exchanges,
)
