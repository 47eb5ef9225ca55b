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
from django.db.models import Max, Sum
from django.utils import timezone

from analytics.events import clean
from delayboard.dead_letters.parked.merge_groups import lock_members
from delayboard.dead_letters.parking import park_request as parking
from delayboard.dead_letters.replay.batch.change_state import (
    KIND_PREPARE,
    BatchError,
    record_action,
)
from delayboard.dead_letters.replay.batch.items import (
    Routes,
    insert_items,
    read_items,
    reroute_items,
)
from delayboard.dead_letters.replay.batch.options import Options, read_batch_options
from delayboard.dead_letters.replay.batch.selection import (
    SelectedMessage,
    Selection,
    find_selection,
    find_unindexed,
    search_parked,
)
from delayboard.dead_letters.replay.check.message_checker import MessageChecker, poll_broker
from delayboard.dead_letters.replay.draft.prepare_draft import (
    describe_missing,
    explain_draft,
    explain_no_route,
    explain_nothing,
)
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
# Messages frozen while the page waits; more are left to the worker.
AT_ONCE = 1000


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


def make_batch(
    user: Any, broker: Broker, sentence: str, options: Options, **choice: Any
) -> ReplayBatch:
    return ReplayBatch(
        broker=broker,
        description=clean(sentence),
        created_by=user,
        state_at=timezone.now(),
        **asdict(options),
        **choice,
    )


def freeze_selection(
    user: Any, batch: ReplayBatch, options: Options, *, by_worker: bool = False
) -> ReplayBatch:
    """Freeze it now, or leave it to the worker. Raises BatchError, OptionError."""
    seen = poll_broker(batch.broker, is_late_good=True)
    checker = MessageChecker(batch.broker, options, seen.snapshot)
    members = batch.group.member_ids if batch.group else []
    try:
        chosen = find_selection(batch)
        by_worker = by_worker or find_unindexed(batch).exists()
    except QueryError as error:
        raise BatchError(str(error)) from error
    rows = [] if by_worker else _read_first(chosen, batch)
    if by_worker or len(rows) > AT_ONCE:
        with transaction.atomic():
            if batch.group is not None and lock_members(batch.group) != members:
                raise BatchError("The merging of this group changed at this moment: try again.")
            leave_to_worker(user, batch, _estimate_number(batch))
        return batch
    if not rows:
        raise BatchError(explain_nothing(batch))
    checked = checker.check_rows(rows)
    batch.state = BatchState.DRAFT
    with transaction.atomic():
        batch.save()
        insert_items(batch, rows, checked, Routes(batch))
        batch.selected, batch.prepared_to = len(rows), rows[-1].pk
        batch.repeats = sum(row.is_repeat for row in rows)
        batch.excluded = checked.count(None)
        batch.state_why = explain_draft(batch, seen.age_sentence)
        batch.save(update_fields=["selected", "prepared_to", "repeats", "excluded", "state_why"])
        record_draft(user, batch, len(rows))
    return batch


def leave_to_worker(user: Any, batch: ReplayBatch, number: int) -> None:
    """In the caller's transaction; `number` is about how many, 0 where nobody has counted."""
    batch.save()
    batch.work = work.create(KIND_PREPARE, batch.pk, broker=batch.broker, user=user, total=number)
    batch.save(update_fields=["work"])
    record_draft(user, batch, number)


def record_draft(user: Any, batch: ReplayBatch, number: int) -> None:
    details: dict[str, Any] = {"messages": number, "target": batch.mode}
    if batch.group_id is not None:
        details["group"] = batch.group_id
    if batch.query:
        details["query"] = batch.query
    record_action(user, "replay prepared", batch, **details)


def _read_first(chosen: Selection, batch: ReplayBatch) -> list[SelectedMessage]:
    """Those that it means, or more than are frozen at once."""
    most = min(AT_ONCE + 1, chosen.count_room(0))
    if batch.order == Order.NEWEST and chosen.limit is not None:
        return chosen.read_newest(most)
    found: list[SelectedMessage] = []
    while len(found) < most:
        some = chosen.read_next(found[-1].pk if found else 0, most - len(found))
        if not some:
            break
        found += some
    return found


def _estimate_number(batch: ReplayBatch) -> int:
    """About how many it will have, 0 where counting them takes long."""
    number = len(batch.parked_messages or ())
    if batch.group is not None:
        groups = MessageGroup.objects.filter(pk__in=batch.group.member_ids)
        number = groups.aggregate(parked=Sum("parked", default=0))["parked"]
    return (
        number
        if batch.limit is None or batch.parked_messages
        else min(number or batch.limit, batch.limit)
    )
