"""Moves all messages of a queue with RabbitMQ's shovel plugin, where a shovel keeps each of them.

A shovel acknowledges a message after the confirm, but it ignores returns, keeps x-death, and
requeues what the destination rejects. `explain_refusal` refuses each move in which this loses
messages (rabbitmq-server #16993).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from analytics.events import clean
from delayboard.dead_letters.parked import park_request
from delayboard.dead_letters.parked.consume import MARGIN
from delayboard.dead_letters.queues.peek import find_costs
from delayboard.dead_letters.replay.options import OptionError, Options
from delayboard.dead_letters.replay.verdicts import BrokerUnknown, MessageChecker, poll_broker
from delayboard.models import DeadLetterQueue, TargetMode
from topology import audit
from topology.broker.errors import NotFound, Refused, Unsupported
from topology.broker.management.client import Management, Shovels
from topology.broker.management.refresh import read_queue
from topology.definitions import Queue
from topology.models import Broker
from topology.routing.context import delivery_limit

# Prefetch of a shovel: a crash costs each message on the way one delivery.
PREFETCH = 100
# First version whose cycle rule does not read the x-death of published messages.
IGNORES_X_DEATH = (4, 0)
PARK = "Park the queue and replay the parked messages instead."
NO_PLUGIN = f"This broker has no shovel plugin (rabbitmq_shovel_management). {PARK}"


class MoveRefused(Exception):
    """Nothing was changed; the message says why, and what to do instead."""


class Move(NamedTuple):
    """The shovel of a queue. `target` is "" while it starts, `remaining` None before 4.3."""

    state: str
    target: str
    remaining: int | None
    reason: str


def read_move(broker: Broker, queue: str) -> Move | None:
    """The running or failed move of this queue. Raises MoveRefused without plugin, BrokerError."""
    with Shovels(broker.address) as shovels:
        try:
            rows = shovels.read_status()
        except NotFound as error:
            raise MoveRefused(NO_PLUGIN) from error
    found = next((row for row in rows if row.get("name") == _name_shovel(queue)), None)
    if found is None:
        return None
    remaining = found.get("remaining")
    return Move(
        clean(str(found.get("state", ""))),
        clean(str(found.get("dest_queue", ""))),
        remaining if isinstance(remaining, int) else None,
        clean(str(found.get("reason", ""))),
    )


def start_move(user: Any, broker: Broker, queue: str, target: str) -> None:
    """Move what is in the queue now to the queue `target`. Raises MoveRefused, BrokerError."""
    if read_move(broker, queue) is not None:
        raise MoveRefused("A shovel of Delayboard for this queue exists already. Stop it first.")
    with Shovels(broker.address) as shovels:
        _check(shovels, broker, queue, target)
        with audit.recorded(
            user, "queue move started", broker=broker, what=queue, details={"target": target}
        ):
            shovels.create(_name_shovel(queue), queue, target, prefetch=PREFETCH)


def stop_move(user: Any, broker: Broker, queue: str) -> None:
    """Delete the shovel; unconfirmed messages stay in the queue. Raises BrokerError."""
    with (
        Shovels(broker.address) as shovels,
        audit.recorded(user, "queue move stopped", broker=broker, what=queue),
    ):
        shovels.delete(_name_shovel(queue))


def explain_refusal(
    sources: Sequence[Queue], targets: Sequence[Queue], version: tuple[int, ...]
) -> str:
    """Why a shovel may lose messages; "" when it keeps them. Pure.

    `sources` and `targets` are each queue as it may be in force now, with its policies.
    """
    if not targets:
        return "The broker has no queue with the name of the destination. Enter an existing queue."
    if version < IGNORES_X_DEATH:
        return (
            "A shovel keeps x-death, and RabbitMQ before 4.0 can drop such a message when it "
            f"expires again. {PARK}"
        )
    for target in targets:
        if {"x-max-length", "x-max-length-bytes"} & set(target.arguments):
            return f"“{target.name}” has a maximum length, so RabbitMQ could drop messages. {PARK}"
    costly = (explain_costly(source, version) for source in sources)
    return next(filter(None, costly), "")


def explain_costly(queue: Queue, version: tuple[int, ...]) -> str:
    """Why requeueing its messages can destroy them; "" when it cannot.

    From 4.3 on only a crash costs a delivery, before that each message that is put back.
    """
    limit = delivery_limit(queue, version)
    is_costly = limit is not None and (find_costs(queue, version) is not None or limit <= MARGIN)
    if not is_costly:
        return ""
    return (
        f"“{queue.name}” has the delivery limit {limit}. Each stop or crash of the shovel costs "
        f"its messages a delivery, and after the last one RabbitMQ drops them. {PARK}"
    )


def _check(shovels: Management, broker: Broker, queue: str, target: str) -> None:
    try:
        snapshot = poll_broker(broker).snapshot
    except BrokerUnknown as error:
        raise MoveRefused(str(error)) from error
    found = {name: snapshot.definitions.queue(name) for name in (queue, target)}
    row = DeadLetterQueue.objects.filter(broker=broker, queue=queue).first()
    if why := park_request.refusal(row, found[queue]):
        raise MoveRefused(why)

    def read_in_force(known: Queue | None) -> tuple[Queue, ...]:
        try:
            return read_queue(shovels, known.name) if known else ()
        except (Refused, Unsupported):
            return (known,) if known else ()

    sources, targets = read_in_force(found[queue]), read_in_force(found[target])
    if why := explain_refusal(sources, targets, snapshot.version_tuple):
        raise MoveRefused(why)
    try:
        options = Options(mode=TargetMode.TYPED, key=target)
        checked = MessageChecker(broker, options, snapshot).check_queue(queue)
    except OptionError as error:
        raise MoveRefused(str(error)) from error
    if checked is not None and not checked.is_good:
        raise MoveRefused(checked.verdict)


def _name_shovel(queue: str) -> str:
    return f"delayboard move {queue}"
