"""Choosing what is replayed: a draft, frozen at once if it is small, else by the worker.

Everything here raises BatchError with a sentence, or OptionError for options that fit no message,
and then nothing was changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from threading import Event
from typing import Any

from django.db import transaction
from django.db.models import Max, Sum
from django.utils import timezone

from analytics.events import clean
from delayboard.dead_letters.parked import park_request as parking
from delayboard.dead_letters.parked.edit_groups import lock_members
from delayboard.dead_letters.replay import claims
from delayboard.dead_letters.replay.batch_items import (
    Routes,
    find_selection,
    find_unindexed,
    insert_items,
    read_items,
    reroute_items,
    search_parked,
)
from delayboard.dead_letters.replay.batch_state import KIND_PREPARE, BatchError, record_action
from delayboard.dead_letters.replay.options import OptionError, Options, read_batch_options
from delayboard.dead_letters.replay.targets import ALL_UNKNOWN_TARGETS
from delayboard.dead_letters.replay.verdicts import (
    BrokerState,
    BrokerUnknown,
    MessageChecker,
    poll_broker,
)
from delayboard.dead_letters.search import QueryError
from delayboard.dead_letters.search.index import add_missing
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
from topology.models import Broker, Work, WorkState

ONLY_A_DRAFT = "Only a draft can be changed: this replay was started or has ended."
# Most messages for which a search reads them one by one at once; with more it is left to the
# worker.
FEW = 5000
MOST_CHOSEN = 10_000
# Query of all parked messages: a batch of a group without it would select everything once the group
# is deleted.
EVERYTHING = "state:parked"
# Most messages frozen while the page waits; more are left to the worker.
AT_ONCE = 1000
# Messages of one transaction: it writes for some hundredths of a second, then others may.
CHUNK = 500
CHECK_AGAIN_AFTER = timedelta(seconds=1)
PARKS = "The chosen messages are parked first."
NOTHING = (
    "There is no message to replay. The selected messages are discarded, replayed, deleted, or "
    "part of another replay."
)
NOT_FOUND = "They are no longer in the queue: they were parked before, consumed, or expired."


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
    batch = _make_batch(user, broker, sentence, options, parked_messages=chosen)
    return _freeze_selection(user, batch, options)


def draft_group(
    user: Any, group: MessageGroup, options: Options, newest: int | None = None
) -> ReplayBatch:
    """All of the group that are parked, up to the message `newest`."""
    newest = _find_newest(group.broker) if newest is None else newest
    # Its cause may be hidden from who reads this.
    sentence = f"the group {group.pk}{_describe_limit(options)}"
    batch = _make_batch(user, group.broker, sentence, options, group=group, newest=newest)
    return _freeze_selection(user, batch, options)


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
    batch = _make_batch(user, broker, sentence, options, query=text, newest=newest)
    parked = ParkedMessage.objects.filter(broker=broker, state=ParkedState.PARKED)
    is_long = search.reads_messages and parked[: FEW + 1].count() > FEW
    return _freeze_selection(user, batch, options, by_worker=is_long)


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
        batch = _make_batch(user, broker, sentence, options, parking=parks)
        _leave_to_worker(user, batch, number)
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
    items = read_items(batch, 0, AT_ONCE) if batch.selected <= AT_ONCE else []
    checked = checker.check_rows(items)
    values = {**asdict(options), "limit": batch.limit, "requested_by": None}
    with transaction.atomic():
        locked = ReplayBatch.objects.select_for_update().get(pk=batch.pk)
        if not locked.is_draft:
            raise BatchError(ONLY_A_DRAFT)
        if _read_edits(batch) != edits:
            raise BatchError("A message was edited at this moment: try again.")
        locked.routes.update(items_number=0)
        if items:
            reroute_items(items, checked, Routes(locked))
            if why := _explain_no_route(locked):
                raise BatchError(why)
            values["state_why"] = explain_draft(locked, found)
            values["excluded"] = checked.count(None)
        else:
            values["work"] = _create_work(user, batch, batch.selected)
            values |= {"state": BatchState.PREPARING, "prepared_to": 0}
        ReplayBatch.objects.filter(pk=batch.pk).update(**values)
        record_action(user, "replay changed", batch, target=options.mode.value)
    batch.refresh_from_db()


def change_sending(user: Any, batch: ReplayBatch, options: Options) -> None:
    """How a draft is to be sent, its targets and verdicts as they are. Raises BatchError."""
    if options.checked_values != read_batch_options(batch).checked_values:
        raise BatchError("The targets changed: the draft has to be checked again.")
    drafts = ReplayBatch.objects.filter(pk=batch.pk, state=BatchState.DRAFT)
    with transaction.atomic():
        if not drafts.update(**asdict(options), requested_by=None):
            raise BatchError(ONLY_A_DRAFT)
        record_action(user, "replay changed", batch)
    batch.refresh_from_db()


def _read_edits(batch: ReplayBatch) -> list[tuple[int, datetime]]:
    rows = ReplayEdit.objects.filter(item__batch=batch).order_by("item")
    return list(rows.values_list("item_id", "edited_at"))


def _make_batch(
    user: Any, broker: Broker, sentence: str, options: Options, **choice: Any
) -> ReplayBatch:
    values = {**asdict(options), **choice, "created_by": user, "state_at": timezone.now()}
    return ReplayBatch(broker=broker, description=clean(sentence), **values)


def _freeze_selection(
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
    room = min(AT_ONCE + 1, chosen.count_room(0))
    # With more than these, none is frozen here.
    after = chosen.find_floor() if room <= AT_ONCE and not by_worker else 0
    rows = [] if by_worker else chosen.read_next(after, room)
    if by_worker or len(rows) > AT_ONCE:
        with transaction.atomic():
            if batch.group is not None and lock_members(batch.group) != members:
                raise BatchError("The merging of this group changed at this moment: try again.")
            _leave_to_worker(user, batch, _estimate_number(batch))
        return batch
    if not rows:
        raise BatchError(_explain_nothing(batch))
    checked = checker.check_rows(rows)
    batch.state = BatchState.DRAFT
    with transaction.atomic():
        batch.save()
        insert_items(batch, rows, checked, Routes(batch))
        batch.state_why = explain_draft(batch, seen)
        batch.save(update_fields=["selected", "prepared_to", "repeats", "excluded", "state_why"])
        _record_draft(user, batch, len(rows))
    return batch


def _leave_to_worker(user: Any, batch: ReplayBatch, number: int) -> None:
    """Leave the draft to the worker, in the caller's transaction; `number` is about how many, 0
    where nobody has counted.
    """
    batch.save()
    batch.work = _create_work(user, batch, number)
    batch.save(update_fields=["work"])
    _record_draft(user, batch, number)


def _create_work(user: Any, batch: ReplayBatch, number: int) -> Work:
    return work.create(KIND_PREPARE, batch.pk, broker=batch.broker, user=user, total=number)


def _record_draft(user: Any, batch: ReplayBatch, number: int) -> None:
    details: dict[str, Any] = {"messages": number, "target": batch.mode}
    if batch.group_id is not None:
        details["group"] = batch.group_id
    if batch.query:
        details["query"] = batch.query
    record_action(user, "replay prepared", batch, **details)


def _estimate_number(batch: ReplayBatch) -> int:
    """About how many it will have, 0 where counting them takes long."""
    number = len(batch.parked_messages or ())
    if batch.group is not None:
        groups = MessageGroup.objects.filter(pk__in=batch.group.member_ids)
        number = groups.aggregate(parked=Sum("parked", default=0))["parked"]
    if batch.limit is None or batch.parked_messages:
        return number
    return min(number or batch.limit, batch.limit)


def prepare_draft(claimed: Work, *, stop: Event, alive: Callable[[], None]) -> None:
    """Prepare a batch to its draft, or check the items of a changed one again.

    Raises as `work.attempt` expects: Later while its messages are still being parked, and while
    the broker does not answer.
    """
    rows = ReplayBatch.objects.select_related("broker", "group", "created_by", "parking__work")
    batch = rows.get(pk=claimed.subject)
    if batch.parking is not None and not batch.parking.is_ended:
        raise work.Later(PARKS, after=CHECK_AGAIN_AFTER)
    _Preparing(batch, claimed, work.lease_of(claimed), stop, alive, claimed.done).run()


@dataclass
class _Preparing:
    """One claim of the work: each chunk is one transaction, with the lease's pulse in it."""

    batch: ReplayBatch
    claimed: Work
    lease: work.Lease
    stop: Event
    alive: Callable[[], None]
    done: int
    seen: BrokerState | None = None

    def run(self) -> None:
        """Raises Stopped and Later."""
        try:
            if self.batch.selected and not self.batch.prepared_to:
                self._check_again()
            else:
                batch, chosen = self.batch, find_selection(self.batch)
                self.done = batch.selected
                if not batch.prepared_to:
                    add_missing(find_unindexed(batch), self._pulse)
                checker, routes = self._make_checker(), Routes(batch)
                after = batch.prepared_to or chosen.find_floor(self._pulse)
                while number := min(CHUNK, chosen.count_room(batch.selected)):
                    self._pulse()
                    rows = chosen.read_next(after, number, self._pulse)
                    if not rows:
                        break
                    checked = checker.check_rows(rows)
                    with transaction.atomic():
                        self._advance(len(rows))
                        insert_items(batch, rows, checked, routes)
                        counted = ("selected", "prepared_to", "repeats", "excluded")
                        self._write(**{name: getattr(batch, name) for name in counted})
                    after = batch.prepared_to
                if not batch.selected:
                    raise BatchError(_explain_nothing(batch))
                self._end()
        except BrokerUnknown as error:
            raise work.Later(str(error)) from error
        except (BatchError, OptionError, QueryError) as error:
            # Rights, redaction rules and topologies may have changed since.
            self._fail(str(error))

    def _check_again(self) -> None:
        """How far it got is in the work alone: the items were all frozen before."""
        batch = self.batch
        checker, routes = self._make_checker(), Routes(batch)
        while items := read_items(batch, self.done, CHUNK):
            self._pulse()
            checked = checker.check_rows(items)
            batch.excluded += checked.count(None) - sum(item.is_excluded for item in items)
            with transaction.atomic():
                self._advance(items[-1].position - self.done)
                reroute_items(items, checked, routes)
                self._write(excluded=batch.excluded)
        last = batch.items.aggregate(last=Max("parked_message"))["last"]
        self._end(prepared_to=last or 1)

    def _fail(self, why: str) -> None:
        """What was frozen is cancelled; nothing of it was ever claimed."""
        is_left = True
        while is_left:
            with transaction.atomic():
                self.lease.pulse(self.done, self.claimed.total)
                is_left = bool(claims.release_chunk(self.batch))
            self.alive()
        with transaction.atomic():
            if self.lease.end(WorkState.FAILED, why):
                self._write(state=BatchState.FAILED, state_at=timezone.now(), state_why=why)

    def _make_checker(self) -> MessageChecker:
        self.seen = poll_broker(self.batch.broker)
        batch, snapshot = self.batch, self.seen.snapshot
        return MessageChecker(batch.broker, read_batch_options(batch), snapshot, batch.conventions)

    def _pulse(self) -> None:
        """Check between chunks whether to go on. Raises Ending when the worker ends, Stopped when
        it was cancelled.
        """
        if self.stop.is_set():
            raise work.Ending
        self.alive()
        self.lease.pulse(self.done, self.claimed.total)

    def _advance(self, number: int) -> None:
        self.done += number
        self.lease.pulse(self.done, max(self.done, self.claimed.total))

    def _end(self, **values: Any) -> None:
        assert self.seen is not None
        why = explain_draft(self.batch, self.seen)
        with transaction.atomic():
            self.lease.pulse(self.done, self.done)
            self._write(state=BatchState.DRAFT, state_at=timezone.now(), state_why=why, **values)
            self.lease.end(WorkState.DONE)

    def _write(self, **values: Any) -> None:
        """Raises Stopped where somebody has cancelled the batch."""
        preparing = ReplayBatch.objects.filter(state=BatchState.PREPARING, work=self.claimed)
        if not preparing.filter(pk=self.batch.pk).update(**values):
            raise work.Stopped("It is no longer being prepared.")


def explain_draft(batch: ReplayBatch, seen: BrokerState) -> str:
    """What to know of it beside its verdicts, with the age of what is known of the broker."""
    sentences = (_explain_no_route(batch), _describe_missing(batch), seen.age_sentence)
    return " ".join(filter(None, sentences))


def _explain_no_route(batch: ReplayBatch) -> str:
    """Why none of its items has a target; "" when one has, or all are excluded."""
    used = batch.routes.filter(items_number__gt=0)
    if used.exclude(exchange="", routing_key="").exists():
        return ""
    verdicts = set(used.values_list("verdict", flat=True)[:2])
    return ALL_UNKNOWN_TARGETS if len(verdicts) > 1 else "".join(verdicts)


def _describe_missing(batch: ReplayBatch) -> str:
    """How many selected messages are missing; "" for none, or when they were not counted."""
    number = 0
    why = "are excluded: they are discarded, replayed, deleted, or part of another replay"
    if batch.parking is not None:
        number = (batch.parking.requested or 0) - batch.selected
        error = batch.parking.work.error if batch.parking.work else ""
        why = f"could not be parked: {error.rstrip('.')}" if error else "are no longer in the queue"
    elif batch.parked_messages is not None:
        number = len(set(batch.parked_messages)) - batch.selected
    return f"{count_text(number)} of the chosen messages {why}." if number > 0 else ""


def _explain_nothing(batch: ReplayBatch) -> str:
    """Why there is nothing in it."""
    if batch.parking is None:
        return NOTHING
    error = batch.parking.work.error if batch.parking.work else ""
    return f"None of the chosen messages could be parked. {error or NOT_FOUND}"
