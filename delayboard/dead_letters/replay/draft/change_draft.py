"""Changing a draft: other options, with targets and verdicts made again where they depend on them.

Raises BatchError or OptionError, and then nothing was changed.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Any

from django.db import transaction

from delayboard.dead_letters.replay.batch.change_state import (
    KIND_PREPARE,
    BatchError,
    record_action,
)
from delayboard.dead_letters.replay.batch.items import read_items, reroute_items
from delayboard.dead_letters.replay.batch.options import Options, read_batch_options
from delayboard.dead_letters.replay.batch.routes import Routes
from delayboard.dead_letters.replay.check.message_checker import MessageChecker, poll_broker
from delayboard.dead_letters.replay.draft.freeze_selection import AT_ONCE
from delayboard.dead_letters.replay.draft.missing_messages import describe_missing, explain_no_route
from delayboard.models import BatchState, ReplayBatch, ReplayEdit
from topology import work

ONLY_A_DRAFT = "Only a draft can be changed: this replay was started or has ended."


def change_options(user: Any, batch: ReplayBatch, options: Options) -> None:
    """What was frozen stays; targets and verdicts are made again, at once if these are few."""
    found = poll_broker(batch.broker, is_late_good=True)
    checker = MessageChecker(batch.broker, options, found.snapshot)
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
