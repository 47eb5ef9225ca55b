"""A new batch: frozen while the page waits if it is small, else left to the worker."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from django.db import transaction
from django.db.models import Sum
from django.utils import timezone

from analytics.events import clean
from delayboard.dead_letters.parked.merge_groups import lock_members
from delayboard.dead_letters.replay.batch.change_state import (
    KIND_PREPARE,
    BatchError,
    record_action,
)
from delayboard.dead_letters.replay.batch.items import Routes, insert_items
from delayboard.dead_letters.replay.batch.options import Options
from delayboard.dead_letters.replay.batch.selection import (
    SelectedMessage,
    Selection,
    find_selection,
    find_unindexed,
)
from delayboard.dead_letters.replay.check.message_checker import MessageChecker, poll_broker
from delayboard.dead_letters.replay.draft.missing_messages import explain_draft, explain_nothing
from delayboard.dead_letters.search import QueryError
from delayboard.models import BatchState, MessageGroup, Order, ReplayBatch
from topology import work
from topology.models import Broker

# Messages frozen while the page waits; more are left to the worker.
AT_ONCE = 1000


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
