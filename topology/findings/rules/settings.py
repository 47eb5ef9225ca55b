"""Settings of exchanges and queues that do not do what they say, or do not last; sets and taps."""

from __future__ import annotations

from collections.abc import Iterator

from topology.definitions import DELAYED_TYPE, Exchange, Queue, is_tap, show_value
from topology.findings.context import Context, state_unless
from topology.findings.finding import rule
from topology.findings.hit import Hit, Severity
from topology.findings.rules.dead_letter_routes import LENGTHS
from topology.routing.matching.match import Unknown

# First version on which the plugin does not run: an import ends at its exchange (tried, 4.3.6).
WITHOUT_PLUGIN = (4, 3)
# Arguments beside which the value of a policy has no effect.
_ARGUMENT_WINS = ("x-dead-letter-exchange", "x-dead-letter-routing-key")


def _find_transient_targets(context: Context) -> Iterator[Hit]:
    for one in context.dead_lettering:
        target = context.index.exchanges.get(one.dead_letter_exchange or "")
        if one.durable and target is not None and not _lasts(target):
            yield _make_hit(context, one, target, "binding")
    yield from _find_transient_queues(context)


def _find_transient_queues(context: Context) -> Iterator[Hit]:
    """Find dead-letter targets that do not last, unless one of several does, or the queue itself
    does not last either.
    """
    seen = set()
    for death in context.deaths:
        one, ends = death.queue, death.walk.outcomes
        targets = [context.index.queues[end.hops[1].queue] for end in ends if len(end.hops) > 1]
        is_lasting = _lasts(one) and "x-expires" not in one.arguments
        if is_lasting and targets and one.name not in seen and not any(map(_lasts, targets)):
            seen.add(one.name)
            others = frozenset[Unknown]().union(*(end.others for end in ends))
            yield _make_hit(context, one, targets[0], "consumer", state_unless(others))


def _make_hit(
    context: Context, one: Queue, target: Exchange | Queue, user: str, unless: str = ""
) -> Hit:
    when = f"after the last {user} is removed" if target.durable else "when the broker restarts"
    sentence = (
        f"RabbitMQ deletes “{target.name}” {when}. It then drops the messages that die in "
        f"“{one.name}”."
    )
    repair = context.make_lasting(target)
    evidence = context.evidence(one, "x-dead-letter-exchange", sentence)
    return Hit(target.name, evidence, repair, unless)


def _lasts(target: Exchange | Queue) -> bool:
    return target.durable and not target.auto_delete


def _find_missing_alternates(context: Context) -> Iterator[Hit]:
    for one in sorted(context.index.exchanges.values(), key=lambda exchange: exchange.name):
        name = one.arguments.text("alternate-exchange")
        if name and name not in context.index.exchanges:
            sentence = f"RabbitMQ drops what no binding of “{one.name}” takes."
            evidence = context.evidence_of(one.identity, "alternate-exchange", name, sentence)
            yield Hit(name, evidence, context.declare_bound(name, "fanout", key=""))


def _find_ignored_overflow(context: Context) -> Iterator[Hit]:
    for one in context.queues:
        is_ignored = one.arguments.text("x-overflow") == "reject-publish-dlx"
        is_bounded = any(name in one.arguments for name in LENGTHS)
        if one.type == "quorum" and is_ignored and is_bounded:
            sentence = f"“{one.name}” drops its oldest message when it is full."
            # For a quorum queue the policy's overflow wins.
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
            severity = None
            if context.version >= WITHOUT_PLUGIN:
                sentence = f"RabbitMQ refuses “{one.name}”, and any file of definitions with it."
                severity = Severity.REFUSED
            evidence = context.evidence_of(one.identity, "type", one.type, sentence)
            yield Hit("", evidence, severity=severity)


TRANSIENT = rule("F08", _find_transient_targets)
MISSING_ALTERNATE = rule("F10", _find_missing_alternates)
NOT_REFUSING = rule("F11", _find_ignored_overflow)
WITHOUT_EFFECT = rule("F28", _find_settings_without_effect)
DELAYED_EXCHANGE = rule("F30", _find_delayed_exchanges)


def _find_incomplete(context: Context) -> Iterator[Hit]:
    for use in context.levels:
        if use.missing:
            obj = ("topology", use.name)
            for sentence in use.missing:
                yield Hit(use.name, context.evidence_of(obj, "levels", "incomplete", sentence))


INCOMPLETE = rule("F22", _find_incomplete)


def _tap_alone(context: Context) -> Iterator[Hit]:
    declared = context.snapshot.declared
    for one in declared.exchanges:
        bound = declared.leaving(one.name)
        if not bound or not all(is_tap(each.destination) for each in bound):
            continue
        for tap in sorted({each.destination for each in bound}):
            sentence = f"Only the tap “{tap}” is bound to the exchange “{one.name}”."
            if alternate := one.arguments.text("alternate-exchange"):
                sentence += f" The alternate exchange “{alternate}” gets no message that it takes."
            keys = [each.routing_key for each in declared.leads(one.name, tap)]
            bind = [context.admin.bind(one.name, key=key) for key in keys]
            unbind = [context.admin.unbind(one.name, tap, key) for key in keys]
            evidence = context.evidence_of(one.identity, "bindings", str(len(bound)), sentence)
            yield Hit(one.name, evidence, (*bind, *unbind))


TAP_ALONE = rule("F14", _tap_alone)
