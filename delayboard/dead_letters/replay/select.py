"""Choosing what is replayed: a draft, frozen at once if it is small, else by the worker.

Everything here raises BatchError with a sentence, or OptionError for options that fit no message,
and then nothing was changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import Max

from delayboard.dead_letters.parking import park_request as parking
from delayboard.dead_letters.replay.batch import KIND_PREPARE, BatchError
from delayboard.dead_letters.replay.chosen import search_parked
from delayboard.dead_letters.replay.desk import Desk, Judged, look_anew, seen
from delayboard.dead_letters.replay.finish import finish
from delayboard.dead_letters.replay.freeze import (
    AT_ONCE,
    aimless_of,
    frozen_of,
    leave_to_worker,
    new_batch,
    record,
)
from delayboard.dead_letters.replay.items import count_excluded, frozen, reroute
from delayboard.dead_letters.replay.lacking import lacking
from delayboard.dead_letters.replay.options import OptionError, Options, columns, of_batch
from delayboard.dead_letters.replay.routes import Routes, clear
from delayboard.dead_letters.replay.straight_deciding import DELAY
from delayboard.dead_letters.replay.straight_limits import costly
from delayboard.dead_letters.search import QueryError
from delayboard.models import (
    BatchState,
    DeadLetterQueue,
    MessageGroup,
    Order,
    ParkedMessage,
    ParkedState,
    ReplayBatch,
    ReplayEdit,
    Source,
    TargetMode,
)
from topology import audit, work
from topology.broker.amqp.depths import live_depths
from topology.broker.errors import BrokerError
from topology.definitions import Queue
from topology.models import Broker

# With more messages than this, a search that reads them one by one is left to the worker.
FEW = 5000
MOST_CHOSEN = 10_000
# What a batch of a group must not have, lest it means everything when the group is gone.
EVERYTHING = "state:parked"

ONLY_A_DRAFT = "Only a draft can be changed: this replay was started or has ended."


def of_parked_messages(
    user: Any, broker: Broker, ids: Collection[int], options: Options
) -> ReplayBatch:
    """These messages, where they are parked or handed to a delay."""
    chosen = sorted(set(ids))
    if not chosen:
        raise BatchError("No parked message was chosen.")
    if len(chosen) > MOST_CHOSEN:
        raise BatchError(f"Choose at most {MOST_CHOSEN:,} parked messages, or a group or a search.")
    said = (
        "1 chosen parked message" if len(chosen) == 1 else f"{len(chosen):,} chosen parked messages"
    )
    return frozen_of(user, new_batch(user, broker, said, options, parked_messages=chosen), options)


def of_group(
    user: Any, group: MessageGroup, options: Options, newest: int | None = None
) -> ReplayBatch:
    """All of the group that are parked, up to the message `newest`."""
    newest = _newest(group.broker) if newest is None else newest
    # Its cause may be hidden from who reads this.
    said = f"the group {group.pk}{_limited(options)}"
    batch = new_batch(user, group.broker, said, options, group=group, newest=newest)
    return frozen_of(user, batch, options)


def of_query(
    user: Any, broker: Broker, query: str, options: Options, newest: int | None = None
) -> ReplayBatch:
    """All parked messages that match, up to the message `newest`."""
    text = query.strip() or EVERYTHING
    try:
        search = search_parked(user, broker, text)
    except QueryError as error:
        raise BatchError(str(error)) from error
    newest = _newest(broker) if newest is None else newest
    said = f"what a search found{_limited(options)}"
    batch = new_batch(user, broker, said, options, query=text, newest=newest)
    parked = ParkedMessage.objects.filter(broker=broker, state=ParkedState.PARKED)
    is_long = search.reads_messages and parked[: FEW + 1].count() > FEW
    return frozen_of(user, batch, options, by_worker=is_long)


def of_look(
    user: Any, broker: Broker, queue: str, handles: Sequence[str], options: Options
) -> ReplayBatch:
    """Messages of a live queue, named as a look has named them: they are parked first."""
    snapshot = seen(broker)
    Desk(broker, options, snapshot)
    with transaction.atomic():
        try:
            parks = parking.park_these(user, broker, queue, snapshot, handles)
        except parking.ParkError as error:
            raise BatchError(str(error)) from error
        number = len(parks.handles or ())
        said = f"{number:,} chosen message{'' if number == 1 else 's'} of {queue}"
        batch = new_batch(user, broker, said, options, parking=parks)
        leave_to_worker(user, batch, number)
    return batch


def of_queue(user: Any, broker: Broker, queue: str, options: Options) -> ReplayBatch:
    """All that lies in a live queue, straight through: nothing is frozen or kept in the journal."""
    snapshot = seen(broker)
    row = DeadLetterQueue.objects.filter(broker=broker, queue=queue).first()
    found = snapshot.definitions.queue(queue)
    if why := _not_straight(found) or parking.refusal(row, found):
        raise BatchError(why)
    assert found is not None
    if why := costly(found, snapshot.version_tuple):
        raise BatchError(why)
    _refuse_delay(options)
    desk = Desk(broker, options, snapshot)
    judged = whole_queue(desk, queue)
    if not judged.has_target and judged.ending == "refused":
        raise BatchError(judged.verdict)
    depth = _depth(broker, queue)
    if not depth:
        raise BatchError(f"There is no message in “{queue}” now that could be taken.")
    number = depth if options.limit is None else min(depth, options.limit)
    said = (
        f"all of {queue}, straight through"
        if number == depth
        else (f"{number:,} messages of {queue}, straight through")
    )
    batch = new_batch(
        user, broker, said, options, source=Source.QUEUE, queue=queue, selected=number
    )
    batch.state, batch.state_why = BatchState.DRAFT, parking.warning(found, snapshot)
    with transaction.atomic():
        batch.save()
        Routes(batch).add(Counter({judged: number}))
        finish(batch, desk)
        record(user, batch, number)
    return batch


def change(user: Any, batch: ReplayBatch, options: Options) -> None:
    """What was frozen stays; targets and verdicts are made anew, at once if these are few."""
    if batch.source == Source.QUEUE:
        _refuse_delay(options)
    found = look_anew(batch.broker, is_late_good=True)
    desk = Desk(batch.broker, options, found.snapshot)
    edits = _edits(batch)
    is_small = batch.selected <= AT_ONCE
    items = frozen(batch, 0, AT_ONCE) if is_small and batch.source == Source.JOURNAL else []
    judged = [
        desk.item(i.group, i.queue or "", i.edited or i.properties, is_repeat=i.is_repeat)
        for i in items
    ]
    if items and (why := aimless_of(judged)):
        raise BatchError(why)
    values = {**columns(options), "limit": batch.limit}
    if items:
        values["state_why"] = " ".join(filter(None, (lacking(batch), found.age_said)))
        values["excluded"] = count_excluded(judged)
    with transaction.atomic():
        locked = ReplayBatch.objects.select_for_update().get(pk=batch.pk)
        if not locked.is_draft:
            raise BatchError(ONLY_A_DRAFT)
        if _edits(batch) != edits:
            raise BatchError("A message was edited at this moment: try again.")
        clear(locked)
        if items:
            reroute(items, judged, Routes(locked))
            finish(locked, desk)
        elif locked.source == Source.QUEUE:
            Routes(locked).add(Counter({whole_queue(desk, locked.queue): locked.selected}))
            finish(locked, desk)
        else:
            asked = work.ask(
                KIND_PREPARE, batch.pk, broker=batch.broker, user=user, total=batch.selected
            )
            values |= {"state": BatchState.PREPARING, "prepared_to": 0, "work": asked}
        ReplayBatch.objects.filter(pk=batch.pk).update(**values)
        details = {"batch": batch.pk, "target": options.mode.value}
        audit.record(user, "replay changed", broker=batch.broker, what=batch.said, details=details)
    batch.refresh_from_db()


def steer(user: Any, batch: ReplayBatch, options: Options) -> None:
    """How a draft is to be sent, its targets and verdicts as they are. Raises BatchError."""
    if options.judged != of_batch(batch).judged:
        raise BatchError("Its targets are others now: it has to be judged again.")
    drafts = ReplayBatch.objects.filter(pk=batch.pk, state=BatchState.DRAFT)
    with transaction.atomic():
        if not drafts.update(**columns(options)):
            raise BatchError(ONLY_A_DRAFT)
        details = {"batch": batch.pk}
        audit.record(user, "replay changed", broker=batch.broker, what=batch.said, details=details)
    batch.refresh_from_db()


def whole_queue(desk: Desk, queue: str) -> Judged:
    """What is said of all that lies in a queue, where nobody has looked into it."""
    said = "Each message's own target is worked out as it goes; what cannot go stays in the queue."
    return desk.all_of(queue) or Judged("", "", "each message's own", said, "", True, 0)


def _refuse_delay(options: Options) -> None:
    if options.mode == TargetMode.DELAY:
        raise OptionError({"mode": DELAY})


def _edits(batch: ReplayBatch) -> list[tuple[int, datetime]]:
    rows = ReplayEdit.objects.filter(item__batch=batch).order_by("item")
    return list(rows.values_list("item_id", "edited_at"))


def _depth(broker: Broker, queue: str) -> int:
    try:
        return live_depths(broker.address, [queue]).get(queue, 0)
    except BrokerError as error:
        raise BatchError(f"How many messages “{queue}” has is not known: {error}") from error


def _not_straight(queue: Queue | None) -> str:
    """What is said otherwise of a parking."""
    if queue is not None and queue.type == "stream":
        return "A stream is not replayed: reading it takes nothing out."
    if queue is not None and queue.type not in ("classic", "quorum"):
        return f"What taking messages does to a queue of the type “{queue.type}” is not known."
    return ""


def _newest(broker: Broker) -> int:
    return ParkedMessage.objects.filter(broker=broker).aggregate(newest=Max("pk"))["newest"] or 0


def _limited(options: Options) -> str:
    if options.limit is None:
        return ""
    first = "newest" if options.order == Order.NEWEST else "oldest"
    return f", the {first} {options.limit:,}"
