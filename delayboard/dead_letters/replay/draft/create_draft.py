"""Choosing what is replayed: a draft, frozen at once if it is small, else by the worker.

Everything here raises BatchError with a sentence, or OptionError for options that fit no message,
and then nothing was changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from django.db import transaction
from django.db.models import Max

from delayboard.dead_letters.parking import park_request as parking
from delayboard.dead_letters.replay.batch.change_state import BatchError
from delayboard.dead_letters.replay.batch.options import OptionError, Options
from delayboard.dead_letters.replay.batch.routes import CheckedTarget, Routes
from delayboard.dead_letters.replay.batch.selection import search_parked
from delayboard.dead_letters.replay.check.message_checker import MessageChecker, poll_broker
from delayboard.dead_letters.replay.draft.freeze_selection import (
    freeze_selection,
    leave_to_worker,
    make_batch,
    record_draft,
)
from delayboard.dead_letters.replay.move_queue.delivery_limit import explain_costly
from delayboard.dead_letters.replay.move_queue.outgoing_message import DELAY
from delayboard.dead_letters.search import QueryError
from delayboard.models import (
    BatchState,
    DeadLetterQueue,
    MessageGroup,
    Order,
    ParkedMessage,
    ParkedState,
    ReplayBatch,
    Source,
    TargetMode,
)
from topology.broker.amqp.depths import live_depths
from topology.broker.errors import BrokerError
from topology.content.text import count_of, count_text
from topology.models import Broker

# With more messages than this, a search that reads them one by one is left to the worker.
FEW = 5000
MOST_CHOSEN = 10_000
# A batch of a group without it would select everything once the group is deleted.
EVERYTHING = "state:parked"


def draft_messages(
    user: Any, broker: Broker, ids: Collection[int], options: Options
) -> ReplayBatch:
    """These messages, where they are parked or sent to a delay."""
    chosen = sorted(set(ids))
    if not chosen:
        raise BatchError("No parked message was chosen.")
    if len(chosen) > MOST_CHOSEN:
        raise BatchError(
            f"Choose at most {count_text(MOST_CHOSEN)} parked messages, or a group or a search."
        )
    sentence = count_of(len(chosen), "chosen parked message")
    return freeze_selection(
        user, make_batch(user, broker, sentence, options, parked_messages=chosen), options
    )


def draft_group(
    user: Any, group: MessageGroup, options: Options, newest: int | None = None
) -> ReplayBatch:
    """All of the group that are parked, up to the message `newest`."""
    newest = _find_newest(group.broker) if newest is None else newest
    # Its cause may be hidden from who reads this.
    sentence = f"the group {group.pk}{_describe_limit(options)}"
    batch = make_batch(user, group.broker, sentence, options, group=group, newest=newest)
    return freeze_selection(user, batch, options)


def draft_query(
    user: Any, broker: Broker, query: str, options: Options, newest: int | None = None
) -> ReplayBatch:
    """All parked messages that match, up to the message `newest`."""
    text = query.strip() or EVERYTHING
    try:
        search = search_parked(user, broker, text)
    except QueryError as error:
        raise BatchError(str(error)) from error
    newest = _find_newest(broker) if newest is None else newest
    sentence = f"what a search found{_describe_limit(options)}"
    batch = make_batch(user, broker, sentence, options, query=text, newest=newest)
    parked = ParkedMessage.objects.filter(broker=broker, state=ParkedState.PARKED)
    is_long = search.reads_messages and parked[: FEW + 1].count() > FEW
    return freeze_selection(user, batch, options, by_worker=is_long)


def draft_peeked(
    user: Any, broker: Broker, queue: str, handles: Sequence[str], options: Options
) -> ReplayBatch:
    """Messages of a live queue, named as a look has named them: they are parked first."""
    snapshot = poll_broker(broker).snapshot
    MessageChecker(broker, options, snapshot)
    with transaction.atomic():
        try:
            parks = parking.park_these(user, broker, queue, snapshot, handles)
        except parking.ParkError as error:
            raise BatchError(str(error)) from error
        number = len(parks.handles or ())
        sentence = f"{count_of(number, 'chosen message')} of {queue}"
        batch = make_batch(user, broker, sentence, options, parking=parks)
        leave_to_worker(user, batch, number)
    return batch


def draft_queue(user: Any, broker: Broker, queue: str, options: Options) -> ReplayBatch:
    """All that lies in a live queue, as a queue move: nothing is frozen or parked."""
    snapshot = poll_broker(broker).snapshot
    row = DeadLetterQueue.objects.filter(broker=broker, queue=queue).first()
    found = snapshot.definitions.queue(queue)
    if why := parking.refusal(row, found):
        raise BatchError(why)
    assert found is not None
    if why := explain_costly(found, snapshot.version_tuple):
        raise BatchError(why)
    refuse_delay(options)
    checker = MessageChecker(broker, options, snapshot)
    checked = check_whole_queue(checker, queue)
    if not checked.has_target and checked.ending == "refused":
        raise BatchError(checked.verdict)
    depth = _count_messages(broker, queue)
    if not depth:
        raise BatchError(f"There is no message in “{queue}” now that could be taken.")
    number = depth if options.limit is None else min(depth, options.limit)
    sentence = (
        f"all messages of {queue} (move queue)"
        if number == depth
        else (f"{count_text(number)} messages of {queue} (move queue)")
    )
    batch = make_batch(
        user, broker, sentence, options, source=Source.QUEUE, queue=queue, selected=number
    )
    batch.state, batch.state_why = BatchState.DRAFT, parking.warning(found, snapshot)
    with transaction.atomic():
        batch.save()
        Routes(batch).add(Counter({checked: number}))
        record_draft(user, batch, number)
    return batch


def check_whole_queue(checker: MessageChecker, queue: str) -> CheckedTarget:
    """The verdict on all messages in a queue, without a peek."""
    sentence = (
        "Delayboard finds the target of each message during the move. What cannot be sent stays "
        "queued."
    )
    return checker.check_queue(queue) or CheckedTarget(
        "", "", "each message's own", sentence, "", True, 0
    )


def refuse_delay(options: Options) -> None:
    if options.mode == TargetMode.DELAY:
        raise OptionError({"mode": DELAY})


def _count_messages(broker: Broker, queue: str) -> int:
    try:
        return live_depths(broker.address, [queue]).get(queue, 0)
    except BrokerError as error:
        raise BatchError(f"The messages of “{queue}” cannot be counted. {error}") from error


def _find_newest(broker: Broker) -> int:
    return ParkedMessage.objects.filter(broker=broker).aggregate(newest=Max("pk"))["newest"] or 0


def _describe_limit(options: Options) -> str:
    if options.limit is None:
        return ""
    first = "newest" if options.order == Order.NEWEST else "oldest"
    return f", the {first} {count_text(options.limit)}"
