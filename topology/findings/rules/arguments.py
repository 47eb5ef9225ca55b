"""Arguments with a value that RabbitMQ refuses: the queue, and the rest of a file behind it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from topology.definitions import (
    MAXIMUM_TTL_MS,
    Arguments,
    ArgumentValue,
    Identity,
    Queue,
    show_value,
)
from topology.findings.context import Context
from topology.findings.finding import rule
from topology.findings.hit import Evidence, Hit

_TYPES: Mapping[type, str] = {bool: "a yes or no", int: "a whole number", str: "a text"}
_SHOWN = {bool: "a yes or no", int: "a number", float: "a fraction", str: "text"}


@dataclass(frozen=True)
class Argument:
    """What RabbitMQ accepts: the type of the value, numbers in bounds or one of these texts, and
    on which types of queues ("" for any)."""

    type: type
    least: int = 0
    most: int | None = None
    texts: tuple[str, ...] = ()
    pattern: str = ""
    queues: tuple[str, ...] = ()

    def explain_refusal(self, value: ArgumentValue, queue_type: str) -> str:
        """ "" for what RabbitMQ accepts."""
        if self.queues and queue_type not in self.queues:
            return f"a {queue_type} queue has no such argument"
        if type(value) is not self.type:
            return f"it is {_SHOWN[type(value)]}, not {_TYPES[self.type]}"
        if isinstance(value, int) and value < self.least:
            return f"it is less than {self.least}"
        if isinstance(value, int) and self.most is not None and value > self.most:
            return f"it is more than {self.most}"
        if self.texts and value not in self.texts:
            return f"it is none of {', '.join(self.texts)}"
        if self.pattern and not re.fullmatch(self.pattern, str(value)):
            return "it is no number with a unit, such as 7D"
        return ""


_MESSAGES = ("classic", "quorum")
# Values of arguments that 3.10.8, 4.0.5 and 4.3.6 all refuse, tried with each type of queue. An
# argument that one of them accepts with any value, such as x-delivery-limit, is not here.
ARGUMENTS: Mapping[str, Argument] = {
    "x-dead-letter-exchange": Argument(str, queues=_MESSAGES),
    "x-dead-letter-routing-key": Argument(str, queues=_MESSAGES),
    "x-dead-letter-strategy": Argument(
        str, texts=("at-most-once", "at-least-once"), queues=("quorum",)
    ),
    "x-expires": Argument(int, least=1, most=MAXIMUM_TTL_MS, queues=_MESSAGES),
    "x-initial-cluster-size": Argument(int, least=1, queues=("stream",)),
    "x-max-age": Argument(str, pattern=r"0*[1-9][0-9]*[YMDhms]", queues=("stream",)),
    "x-max-in-memory-bytes": Argument(int, queues=("quorum",)),
    "x-max-in-memory-length": Argument(int, queues=("quorum",)),
    "x-max-length": Argument(int, queues=_MESSAGES),
    "x-max-length-bytes": Argument(int),
    "x-max-priority": Argument(int, most=255, queues=("classic",)),
    "x-message-ttl": Argument(int, most=MAXIMUM_TTL_MS, queues=_MESSAGES),
    "x-overflow": Argument(
        str, texts=("drop-head", "reject-publish", "reject-publish-dlx"), queues=_MESSAGES
    ),
    "x-queue-type": Argument(str),
    "x-quorum-initial-group-size": Argument(int, least=1, queues=("quorum",)),
    "x-single-active-consumer": Argument(bool, queues=_MESSAGES),
    "x-stream-max-segment-size-bytes": Argument(int, queues=("stream",)),
}


def _find_refused(context: Context) -> Iterator[Hit]:
    for queue in sorted(context.snapshot.declared.queues, key=lambda one: one.name):
        for name, value, why in _list_refused(queue):
            sentence = f"RabbitMQ refuses “{queue.name}” because of {name}: {why}."
            yield Hit("", Evidence(queue.identity, name, show_value(value), "argument", sentence))
    for name, given in sorted(context.snapshot.policy_arguments.items()):
        yield from _find_refused_policy(context, ("queue", name), given)


def _find_refused_policy(context: Context, queue: Identity, given: Arguments) -> Iterator[Hit]:
    """A key of a policy has the values of the argument, whatever the type of the queue is."""
    for argument, value in given.items():
        known = ARGUMENTS.get(argument)
        why = replace(known, queues=()).explain_refusal(value, "") if known else ""
        if why:
            named = (context.snapshot.policies, context.snapshot.operator_policies)
            policy = " or ".join(names[queue[1]] for names in named if queue[1] in names)
            key = argument.removeprefix("x-")
            sentence = f"RabbitMQ refuses the policy “{policy}” because of {key}: {why}."
            evidence = Evidence(queue, argument, show_value(value), f"policy {policy}", sentence)
            yield Hit("", evidence)


def _list_refused(queue: Queue) -> Iterator[tuple[str, ArgumentValue, str]]:
    for name, value in queue.arguments.items():
        known = ARGUMENTS.get(name)
        if known is not None and (why := known.explain_refusal(value, queue.type)):
            yield name, value, why
    key = queue.dead_letter_routing_key
    if key is not None and "x-dead-letter-exchange" not in queue.arguments:
        yield "x-dead-letter-routing-key", key, "it needs x-dead-letter-exchange"


REFUSED = rule("F31", _find_refused)
