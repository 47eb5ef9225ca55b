"""Discarding messages and restoring them: a state of the row, undone as long as it is kept."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from threading import Event
from typing import Any

from django.db import transaction
from django.db.models import Max, QuerySet
from django.utils import timezone

from analytics import facts
from delayboard.dead_letters.parked.edit_groups import lock_members
from delayboard.dead_letters.parked.store import change_parked_messages
from delayboard.dead_letters.search import QueryError, index, search_by
from delayboard.models import MessageGroup, ParkedChange, ParkedMessage, ParkedState
from topology import audit, work
from topology.database.select_keys import match_keys
from topology.models import Broker, Work

KIND = "parked_messages"
# Messages of one transaction: it writes for some hundredths of a second, then others may.
CHUNK = 500
# Most messages that are changed while the page waits; more are left to the worker.
AT_ONCE = 5000

ParkedMessages = QuerySet[ParkedMessage]


class ChangeError(Exception):
    """Nothing was changed; the message says why."""


@dataclass(frozen=True)
class Kind:
    """One of the two changes; `done` and `fact` name it in the audit log and the event log."""

    before: ParkedState
    after: ParkedState
    done: str
    fact: Any


DISCARD = Kind(ParkedState.PARKED, ParkedState.DISCARDED, "parked messages discarded", "discarded")
RESTORE = Kind(ParkedState.DISCARDED, ParkedState.PARKED, "parked messages restored", "restored")
KINDS = {kind.after: kind for kind in (DISCARD, RESTORE)}


def change_these(user: Any, broker: Broker, kind: Kind, keys: Collection[int]) -> int:
    """Change these messages of the broker; how many were in the state before."""
    rows = ParkedMessage.objects.filter(broker=broker, pk__in=keys)
    with transaction.atomic():
        changed = _change(user, kind, _split_chunks(rows, kind))
        _record(user, broker, kind, {"parked_messages": changed, "chosen": len(keys)})
    return changed


def in_replays(broker: Broker, keys: Collection[int]) -> int:
    """How many of these messages are in a replay or in a delay, and so can be neither discarded
    nor restored.
    """
    states = (ParkedState.REPLAYING, ParkedState.DELAYED)
    return ParkedMessage.objects.filter(broker=broker, pk__in=keys, state__in=states).count()


def count_chosen(
    user: Any,
    broker: Broker,
    kind: Kind,
    *,
    keys: Collection[int] | None = None,
    group: MessageGroup | None = None,
    query: str = "",
) -> int | None:
    """How many `change_all` would state as requested: None where it does not count them.

    Raises what the query's reader does.
    """
    if keys is not None:
        before = ParkedMessage.objects.filter(broker=broker, state=kind.before)
        return before.filter(pk__in=keys).count()
    change = ParkedChange(broker=broker, group=group, query=query, created_by=user)
    _measure(change, kind)
    return change.requested


def change_all(
    user: Any,
    broker: Broker,
    kind: Kind,
    *,
    group: MessageGroup | None = None,
    query: str = "",
    newest: int | None = None,
) -> ParkedChange:
    """Change all of a group, or all that match, up to the message `newest`.

    Many are left to the worker: then the row has a Work. They are not counted where a count reads
    every message. Raises what the query's reader does, and ChangeError when the group was merged
    meanwhile.
    """
    members = group.member_ids if group else []
    change = ParkedChange(
        broker=broker, to_state=kind.after, group=group, query=query, created_by=user
    )
    found = _measure(change, kind, newest)
    details: dict[str, Any] = {
        "parked_messages": change.requested,
        "newest": change.newest,
        "query": query,
    }
    if group is not None:
        details["group"] = group.pk
    with transaction.atomic():
        is_large = change.requested is None or change.requested > AT_ONCE
        if group is not None and is_large and lock_members(group) != members:
            raise ChangeError("The members of this group changed during the request. Try again.")
        change.save()
        if is_large:
            total = change.requested or 0
            change.work = work.create(KIND, change.pk, broker=broker, user=user, total=total)
        else:
            change.changed = _change(user, kind, _split_chunks(found, kind))
        change.save(update_fields=["work", "changed"])
        _record(user, broker, kind, details)
    return change


def _measure(change: ParkedChange, kind: Kind, newest: int | None = None) -> ParkedMessages:
    """Set `newest`, and `requested` where a count reads few messages; the messages up to it."""
    rows, is_slow = _select_messages(change, timezone.now())
    before = ParkedMessage.objects.filter(broker=change.broker, state=kind.before)
    is_uncounted = is_slow and before[: AT_ONCE + 1].count() > AT_ONCE
    if newest is None:
        seen = before if is_uncounted else rows
        newest = seen.aggregate(newest=Max("pk"))["newest"] or 0
    change.newest = newest
    found = rows.filter(pk__lte=newest)
    if not is_uncounted and not _find_unsearched(change, kind).exists():
        change.requested = found.filter(state=kind.before).count()
    return found


def run(claimed: Work, *, stop: Event, alive: Callable[[], None]) -> None:
    """Do a claimed change to its end, a chunk in each transaction.

    Raises as `work.attempt` expects.
    """
    lease = work.lease_of(claimed)
    change = ParkedChange.objects.select_related("broker", "group", "created_by").get(
        pk=claimed.subject
    )
    kind = KINDS[ParkedState(change.to_state)]
    try:
        if change.created_by is None:
            raise QueryError("The account that requested this change no longer exists.")
        rows = _select_messages(change, change.created_at)[0].filter(pk__lte=change.newest)

        def pulse() -> None:
            if stop.is_set():
                raise work.Ending
            lease.pulse(change.changed, change.requested or 0)
            alive()

        index.add_missing(_find_unsearched(change, kind), pulse)
        while not stop.is_set():
            chunk = _read_next(rows, kind, change.position)
            if not chunk:
                return
            with transaction.atomic():
                change.changed += _change(change.created_by, kind, [chunk])
                change.position = chunk[-1]
                change.save(update_fields=["changed", "position"])
                lease.pulse(change.changed, max(change.requested or 0, change.changed))
            alive()
        raise work.Ending
    except QueryError as error:
        # Rights and redaction rules may have changed since.
        raise work.Failed(str(error)) from error


def cancel(user: Any, change: ParkedChange) -> None:
    """What was changed stays so. Raises ChangeError when it has ended."""
    if change.work is None or change.is_ended:
        raise ChangeError("This change is not running.")
    work.cancel(change.work)
    audit.record(
        user, "change of parked messages cancelled", broker=change.broker, what=str(change.pk)
    )


def _select_messages(change: ParkedChange, now: datetime) -> tuple[ParkedMessages, bool]:
    """What it is about, ages counted from `now`; and whether each must be looked at for that."""
    if change.group is not None:
        return ParkedMessage.objects.filter(group__in=change.group.member_ids), False
    assert change.created_by is not None
    search = search_by(change.created_by, change.broker, change.query, now)
    return search.messages(), search.reads_each


def _find_unsearched(change: ParkedChange, kind: Kind) -> ParkedMessages:
    """The messages that it may mean and that no search finds yet."""
    if change.group is not None:
        return ParkedMessage.objects.none()
    search = search_by(None, change.broker, change.query, change.created_at)
    return search.not_indexed().filter(pk__lte=change.newest, state=kind.before)


def _split_chunks(rows: ParkedMessages, kind: Kind) -> Iterator[list[int]]:
    last = 0
    while chunk := _read_next(rows, kind, last):
        yield chunk
        last = chunk[-1]


def _read_next(rows: ParkedMessages, kind: Kind, after: int) -> list[int]:
    found = rows.filter(pk__gt=after, state=kind.before).order_by("pk")
    return list(found.values_list("pk", flat=True)[:CHUNK])


def _change(user: Any, kind: Kind, chunks: Iterable[Collection[int]]) -> int:
    """Change those that are still as before and state it, in the caller's transaction."""
    keys, at = chain.from_iterable(chunks), timezone.now()
    changed = change_parked_messages(keys, (kind.before,), kind.after, by=user, at=at)
    for start in range(0, len(changed), CHUNK):
        rows = ParkedMessage.objects.filter(match_keys(changed[start : start + CHUNK]))
        parked_messages = list(rows.select_related("broker").order_by("pk"))
        facts.state_all(
            broker=parked_messages[0].broker,
            kind=kind.fact,
            of=(
                (parked_message.queue, _stated(parked_message))
                for parked_message in parked_messages
            ),
            at=at,
        )
    return len(changed)


def _stated(parked_message: ParkedMessage) -> facts.Stated:
    """The fact of a message, without its body, which may be large and is read only where the
    content id needs it.
    """
    message = parked_message.without_body
    content = facts.id_of(
        message.properties, parked_message.content_id, lambda: bytes(parked_message.body.data)
    )
    return facts.Stated(message, content, parked_message.size)


def _record(user: Any, broker: Broker, kind: Kind, details: dict[str, Any]) -> None:
    audit.record(user, kind.done, broker=broker, details=details)
