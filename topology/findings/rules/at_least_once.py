"""What dead-lettering at least once needs, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator

from topology.findings.context import Context
from topology.findings.evidence import Hit
from topology.findings.example import Example, binding, exchange, queue
from topology.findings.finding import Rule, Severity
from topology.routing.walk import stores_stuck_messages

STRATEGY = "x-dead-letter-strategy"
DOC = "https://www.rabbitmq.com/docs/quorum-queues#dead-lettering"
_SAFE = {"type": "quorum", "strategy": "at-least-once", "overflow": "reject-publish"}
_LENGTHS = ("x-max-length", "x-max-length-bytes")


def _fallen_back(context: Context) -> Iterator[Hit]:
    for one in context.dead_lettering:
        asks = one.type == "quorum" and one.arguments.text(STRATEGY) == "at-least-once"
        if asks and not stores_stuck_messages(one):
            sentence = f"“{one.name}” dead-letters at most once."
            yield Hit("", context.evidence(one, "x-overflow", sentence))


def _refusing(context: Context) -> Iterator[Hit]:
    seen = set()
    for death in context.deaths:
        one = death.queue
        targets = {end.hops[1].queue for end in death.walk.outcomes if len(end.hops) > 1}
        if not stores_stuck_messages(one) or len(targets) < 2:
            continue
        for name in sorted(targets):
            target = context.index.queues[name]
            limits = [limit for limit in _LENGTHS if limit in target.arguments]
            refuses = target.arguments.text("x-overflow") == "reject-publish"
            if limits and refuses and (one.name, name) not in seen:
                seen.add((one.name, name))
                sentence = f"When “{name}” is full, messages that died stay in “{one.name}”."
                yield Hit(name, context.evidence(target, "x-overflow", sentence))


def _unbounded(context: Context) -> Iterator[Hit]:
    for one in context.dead_lettering:
        if stores_stuck_messages(one) and not any(limit in one.arguments for limit in _LENGTHS):
            sentence = f"“{one.name}” grows without a limit while its target accepts nothing."
            yield Hit("", context.evidence(one, "x-max-length", sentence))


def _unsafe(context: Context) -> Iterator[Hit]:
    for one in context.dead_lettering:
        asks = one.arguments.text(STRATEGY) == "at-least-once"
        if one.type == "quorum" and one.message_ttl_ms is not None and not asks:
            sentence = f"“{one.name}” forgets a message before its target has it."
            yield Hit("", context.evidence(one, STRATEGY, sentence))


FALLEN_BACK = Rule(
    "F09",
    Severity.LOSS,
    "At-least-once dead-lettering is not in force",
    "Dead-lettering at least once needs the overflow reject-publish. Without it RabbitMQ "
    "dead-letters at most once, and a message is lost when its target is down.",
    DOC,
    "Set the overflow of the queue to reject-publish, by the argument or by a policy.",
    _fallen_back,
    failing=Example(
        queues=(
            queue(
                "f09-wait",
                type="quorum",
                ttl=60_000,
                dlx="",
                key="f09-work",
                strategy="at-least-once",
            ),
            queue("f09-work"),
        )
    ),
    passing=Example(
        queues=(queue("f09-wait", ttl=60_000, dlx="", key="f09-work", **_SAFE), queue("f09-work"))
    ),
)

REFUSING = Rule(
    "F14",
    Severity.STUCK,
    "A copy can block at-least-once dead letters",
    "An at-least-once dead letter leaves its queue only when every queue that it is routed to has "
    "accepted it. If one of them is full and refuses it, all wait.",
    DOC,
    "Set the overflow of the second queue to drop-head.",
    _refusing,
    failing=Example(
        queues=(
            queue("f14-wait", ttl=60_000, dlx="f14-return", **_SAFE),
            queue("f14-work"),
            queue("f14-copy", max_length=1000, overflow="reject-publish"),
        ),
        exchanges=(exchange("f14-return", "fanout"),),
        bindings=(binding("f14-return", "f14-work"), binding("f14-return", "f14-copy")),
    ),
    passing=Example(
        queues=(
            queue("f14-wait", ttl=60_000, dlx="f14-return", **_SAFE),
            queue("f14-work"),
            queue("f14-copy", max_length=1000),
        ),
        exchanges=(exchange("f14-return", "fanout"),),
        bindings=(binding("f14-return", "f14-work"), binding("f14-return", "f14-copy")),
    ),
)

UNBOUNDED = Rule(
    "F22",
    Severity.STYLE,
    "At-least-once dead-lettering without a length limit",
    "While a target accepts nothing, an at-least-once queue stores its dead letters beside its "
    "messages. Without x-max-length nothing stops the growth but the disk.",
    DOC,
    "Set a maximum length. RabbitMQ then refuses new messages while the queue is full.",
    _unbounded,
    failing=Example(
        queues=(queue("f22-wait", ttl=60_000, dlx="", key="f22-work", **_SAFE), queue("f22-work"))
    ),
    passing=Example(
        queues=(
            queue("f22-wait", ttl=60_000, dlx="", key="f22-work", max_length=100_000, **_SAFE),
            queue("f22-work"),
        )
    ),
)

UNSAFE = Rule(
    "F23",
    Severity.STYLE,
    "Quorum delay queue dead-letters at most once",
    "A quorum queue publishes a dead letter without a confirm unless its strategy is "
    "at-least-once. A message is lost if the node of its target fails at that moment.",
    DOC,
    "Set the strategy at-least-once and the overflow reject-publish.",
    _unsafe,
    failing=Example(
        queues=(
            queue("f23-wait", type="quorum", ttl=60_000, dlx="", key="f23-work"),
            queue("f23-work"),
        )
    ),
    passing=Example(
        queues=(queue("f23-wait", ttl=60_000, dlx="", key="f23-work", **_SAFE), queue("f23-work"))
    ),
)
