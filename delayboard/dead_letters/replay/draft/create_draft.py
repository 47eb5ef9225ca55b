"""Choosing what is replayed: a draft, frozen at once if it is small, else by the worker.

Everything here raises BatchError with a sentence, or OptionError for options that fit no message,
and then nothing was changed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import Max

from delayboard.dead_letters.parking import park_request as parking
from delayboard.dead_letters.replay.batch.change_state import (
    KIND_PREPARE,
    BatchError,
    record_action,
)
from delayboard.dead_letters.replay.batch.items import Routes, read_items, reroute_items
from delayboard.dead_letters.replay.batch.options import Options, read_batch_options
from delayboard.dead_letters.replay.batch.selection import search_parked
from delayboard.dead_letters.replay.check.message_checker import MessageChecker, poll_broker
from delayboard.dead_letters.replay.draft.freeze_selection import (
    AT_ONCE,
    freeze_selection,
    leave_to_worker,
    make_batch,
)
from delayboard.dead_letters.replay.draft.missing_messages import describe_missing, explain_no_route
from delayboard.dead_letters.search import QueryError
from delayboard.models import (
    BatchState,
    MessageGroup,
    Order,
    ParkedMessage,
    ParkedState,
    ReplayBatch,
    ReplayEdit,
)
from topology import work
from topology.content.text import count_of, count_text
from topology.models import Broker

ONLY_A_DRAFT = "Only a draft can be changed: this replay was started or has ended."
# Messages above which a search that reads them one by one is left to the worker.
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


def _find_newest(broker: Broker) -> int:
    return ParkedMessage.objects.filter(broker=broker).aggregate(newest=Max("pk"))["newest"] or 0


def _describe_limit(options: Options) -> str:
    if options.limit is None:
        return ""
    first = "newest" if options.order == Order.NEWEST else "oldest"
    return f", the {first} {count_text(options.limit)}"


def change_options(user: Any, batch: ReplayBatch, options: Options) -> None:
    """What was frozen stays; targets and verdicts are made again, at once if these are few."""
    found = poll_broker(batch.broker, is_late_good=True)
    checker = MessageChecker(batch.broker, options, found.snapshot, batch.conventions)
    edits = _read_edits(batch)
    is_small = batch.selected <= AT_ONCE
    items = read_items(batch, 0, AT_ONCE) if is_small else []
    checked = checker.check_rows(items)
    values = {**asdict(options), "limit": batch.limit}
    if items:
        values["state_why"] = " ".join(filter(None, (describe_missing(batch), found.age_sentence)))
        values["excluded"] = checked.count(None)
    with transaction.atomic():
        locked = ReplayBatch.objects.select_for_update().get(pk=batch.pk)
        if not locked.is_draft:
            raise BatchError(ONLY_A_DRAFT)
        if _read_edits(batch) != edits:
            raise BatchError("A message was edited at this moment: try again.")
        locked.routes.update(items_number=0)
        if items:
            reroute_items(items, checked, Routes(locked))
            if why := explain_no_route(locked):
                raise BatchError(why)
        else:
            asked = work.create(
                KIND_PREPARE, batch.pk, broker=batch.broker, user=user, total=batch.selected
            )
            values |= {"state": BatchState.PREPARING, "prepared_to": 0, "work": asked}
        ReplayBatch.objects.filter(pk=batch.pk).update(**values)
        record_action(user, "replay changed", batch, target=options.mode.value)
    batch.refresh_from_db()


def change_sending(user: Any, batch: ReplayBatch, options: Options) -> None:
    """How a draft is to be sent, its targets and verdicts as they are. Raises BatchError."""
    if options.checked_values != read_batch_options(batch).checked_values:
        raise BatchError("The targets changed: the draft has to be checked again.")
    drafts = ReplayBatch.objects.filter(pk=batch.pk, state=BatchState.DRAFT)
    with transaction.atomic():
        if not drafts.update(**asdict(options)):
            raise BatchError(ONLY_A_DRAFT)
        record_action(user, "replay changed", batch)
    batch.refresh_from_db()


def _read_edits(batch: ReplayBatch) -> list[tuple[int, datetime]]:
    rows = ReplayEdit.objects.filter(item__batch=batch).order_by("item")
    return list(rows.values_list("item_id", "edited_at"))
