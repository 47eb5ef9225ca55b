"""Choosing what is replayed: a draft, frozen at once if it is small, else by the worker.

Everything here raises BatchError with a sentence, or OptionError for options that fit no message,
and then nothing was changed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from django.db import transaction
from django.db.models import Max

from delayboard.dead_letters.parking import park_request as parking
from delayboard.dead_letters.replay.batch.change_state import BatchError
from delayboard.dead_letters.replay.batch.options import Options
from delayboard.dead_letters.replay.batch.selection import search_parked
from delayboard.dead_letters.replay.check.message_checker import MessageChecker, poll_broker
from delayboard.dead_letters.replay.draft.freeze_selection import (
    freeze_selection,
    leave_to_worker,
    make_batch,
)
from delayboard.dead_letters.search import QueryError
from delayboard.models import (
    MessageGroup,
    Order,
    ParkedMessage,
    ParkedState,
    ReplayBatch,
)
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


def _find_newest(broker: Broker) -> int:
    return ParkedMessage.objects.filter(broker=broker).aggregate(newest=Max("pk"))["newest"] or 0


def _describe_limit(options: Options) -> str:
    if options.limit is None:
        return ""
    first = "newest" if options.order == Order.NEWEST else "oldest"
    return f", the {first} {count_text(options.limit)}"
