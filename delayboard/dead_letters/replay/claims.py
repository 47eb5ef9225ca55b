"""The claims of a batch on its messages: a message is in one replay at a time, and in no other.

A message, its possible repeats and their repeats are one family. What is published of a family is
published under one replay id, so that a consumer can drop all but the first. So is a message of
which an earlier replay did not learn whether it was published.

Everything here is in the caller's transaction, and locks messages, then groups, then the batch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from django.db.models import Count, F, Func, Q
from django.utils import timezone

from delayboard.dead_letters.parked.store import change_each, change_parked_messages
from delayboard.models import ItemState, ParkedMessage, ParkedState, ReplayBatch, ReplayItem
from delayboard.models.replay import OPEN, ReplayOutcome, replay_id
from topology.database.select_keys import match_keys

CHUNK = 2500
FREE = (ParkedState.PARKED, ParkedState.DELAYED)
_STATES_AFTER: Mapping[str, ParkedState] = {
    ReplayOutcome.DELAYED: ParkedState.DELAYED,
    ReplayOutcome.DELIVERED: ParkedState.REPLAYED,
    ReplayOutcome.DIED: ParkedState.REPLAYED,
}

MAYBE_PUBLISHED = "Cancelled before RabbitMQ confirmed its publish: it may have been published."
DELETED = "The parked message was deleted."
DISCARDED = "It was discarded."
# Longest chain of repeats that is followed: each link is one crash while the same message was
# parked.
LONGEST_CHAIN = 100


def claim_chunk(batch: ReplayBatch, number: int = CHUNK) -> int:
    """Claim the messages of the next items; returns how many items were read, 0 at the end.

    An item whose message is not available is cancelled with a reason. `state_why` summarizes them.
    Items whose messages may be copies of one message, or may be published already, share a replay
    id.
    """
    last = min(batch.claimed_to + number, batch.selected)
    number_read = last - batch.claimed_to
    if not number_read:
        return 0
    rows = batch.items.filter(
        position__gt=batch.claimed_to, position__lte=last, state=ItemState.PENDING
    )
    columns = rows.values_list("pk", "position", "parked_message_id")
    items = [Claimed(pk, position, key or 0) for pk, position, key in columns]
    at = timezone.now()
    keys = {one.parked_message for one in items if one.parked_message}
    families = find_families(keys)
    lock_families(families, keys)
    by = batch.started_by_id
    taken = {*change_parked_messages(keys, FREE, ParkedState.REPLAYING, by=by, at=at)}
    claimed = [one for one in items if one.parked_message in taken]
    missed = [one for one in items if one.parked_message not in taken]
    marked = assign_ids(batch, claimed, families)
    if missed:
        _cancel_items(batch, missed, at)
    batch.claimed_to = last
    batch.cancelled += len(missed)
    changes: dict[str, Any] = {"claimed_to": last}
    if marked:
        changes["doubled"] = F("doubled") + marked
    if missed:
        changes["cancelled"] = F("cancelled") + len(missed)
    if last == batch.selected and batch.cancelled:
        # All items are read for it, so not for each chunk.
        batch.state_why = changes["state_why"] = describe_unavailable(batch)
    ReplayBatch.objects.filter(pk=batch.pk).update(**changes)
    return number_read


def release_chunk(batch: ReplayBatch, after: int = 0, number: int = CHUNK) -> int:
    """Cancel the next so many open items beyond the position `after`, and let go of their messages.

    The position of the last of them, 0 when there is none.
    """
    rows = batch.items.filter(state__in=OPEN, position__gt=after).order_by("position")
    found = list(rows.values_list("pk", "parked_message_id", "state", "position")[:number])
    if not found:
        return 0
    at = timezone.now()
    claimed = [
        parked_message
        for _, parked_message, _, position in found
        if parked_message and position <= batch.claimed_to
    ]
    parked = dict.fromkeys(claimed, ParkedState.PARKED)
    states = {**parked, **find_earlier_states(batch, claimed)}
    change_each(states, (ParkedState.REPLAYING,), by=batch.started_by_id, at=at)
    items = ReplayItem.objects.filter(pk__in=[item for item, _, _, _ in found])
    # Items that the worker began meanwhile keep their mark, whatever was read here.
    open_items = items.filter(state__in=OPEN).order_by("pk").select_for_update()
    now = list(open_items.values_list("pk", "state", "may_be_duplicated"))
    pending = [item for item, state, _ in now if state == ItemState.PENDING]
    begun = [item for item, state, _ in now if state == ItemState.PUBLISHING]
    items.filter(pk__in=pending).update(state=ItemState.CANCELLED, ended_at=at)
    items.filter(pk__in=begun).update(
        state=ItemState.CANCELLED, may_be_duplicated=True, error=MAYBE_PUBLISHED, ended_at=at
    )
    marked = sum(state == ItemState.PUBLISHING and not known for _, state, known in now)
    batch.cancelled += len(now)
    ReplayBatch.objects.filter(pk=batch.pk).update(
        cancelled=F("cancelled") + len(now), doubled=F("doubled") + marked
    )
    return found[-1][3]


def find_earlier_states(
    batch: ReplayBatch, parked_messages: Collection[int]
) -> dict[int, ParkedState]:
    """The states of those that another replay had given to a delay before this one claimed them.

    Replayed are those of them that came out of it since, be it to die again.
    """
    if not parked_messages:
        return {}
    earlier = ReplayItem.objects.filter(parked_message__in=parked_messages, state=ItemState.DONE)
    others = earlier.filter(outcome__in=_STATES_AFTER).exclude(batch=batch.pk).order_by()
    found: dict[int, ParkedState] = {}
    for parked_message, outcome in others.values_list("parked_message_id", "outcome"):
        if parked_message is not None and found.get(parked_message) != ParkedState.REPLAYED:
            found[parked_message] = _STATES_AFTER[outcome]
    return found


def describe_unavailable(batch: ReplayBatch) -> str:
    """How many of its messages it could not have, and why; "" when it has all."""
    if not batch.cancelled:
        return ""
    rows = batch.items.filter(state=ItemState.CANCELLED).exclude(error__in=("", MAYBE_PUBLISHED))
    counted = rows.order_by().values_list("error").annotate(Count("pk")).order_by("error")
    reasons = [f"{number} with “{error}”" for error, number in counted]
    return f"Excluded messages: {', '.join(reasons)}." if reasons else ""


def _cancel_items(batch: ReplayBatch, missed: Collection[Claimed], at: datetime) -> None:
    why = _find_reasons(batch, {one.parked_message for one in missed if one.parked_message})
    by_reason: dict[str, list[int]] = {}
    for one in missed:
        by_reason.setdefault(why.get(one.parked_message, DELETED), []).append(one.item)
    for error, items in by_reason.items():
        ReplayItem.objects.filter(pk__in=items).update(
            state=ItemState.CANCELLED, error=error, ended_at=at
        )


def _find_reasons(batch: ReplayBatch, parked_messages: set[int]) -> dict[int, str]:
    """Why each of these messages is not free; none for one that is no longer there."""
    rows = ParkedMessage.objects.filter(pk__in=parked_messages).order_by()
    states = dict(rows.values_list("pk", "state"))
    others = (
        ReplayItem.objects.filter(parked_message__in=parked_messages)
        .exclude(batch=batch.pk)
        .order_by("pk")
    )
    # Nothing of a draft, or of what is not claimed yet, is in a replay.
    claimed = others.filter(state__in=OPEN, batch__claimed_to__gte=F("position"))
    done = others.filter(state=ItemState.DONE)
    inside = {
        **dict(done.values_list("parked_message_id", "batch_id")),
        **dict(claimed.values_list("parked_message_id", "batch_id")),
    }
    return {
        parked_message: _describe_reason(state, inside.get(parked_message))
        for parked_message, state in states.items()
    }


def _describe_reason(state: str, other: int | None) -> str:
    where = f"replay {other}" if other is not None else "another replay"
    match state:
        case ParkedState.DISCARDED:
            return DISCARDED
        case ParkedState.REPLAYED:
            return f"The message was already replayed in {where}."
    return f"The message is in {where}."


class Claimed(NamedTuple):
    """An item that is claimed, with its message; 0 for one that was deleted."""

    item: int
    position: int
    parked_message: int


class Published(NamedTuple):
    """An item of a family that was published, or is claimed to be."""

    parked_message: int
    batch: int
    replay_id: str


def find_families(parked_messages: Collection[int]) -> dict[int, int]:
    """The first message of the family of each of these messages and of each relative.

    Messages without a relative are omitted.
    """
    if not parked_messages:
        return {}
    parents: dict[int, int] = {}
    known: set[int] = set()
    fresh = set(parked_messages)
    for _ in range(LONGEST_CHAIN):
        links = _find_links(fresh)
        parents |= links
        known |= fresh
        fresh = {*links, *links.values()} - known
        if not fresh:
            break
    return {
        parked_message: _find_first(parked_message, parents)
        for parked_message in {*parents, *parents.values()}
    }


def lock_families(families: Mapping[int, int], parked_messages: Collection[int]) -> None:
    """Keep other replays from claiming relatives of these messages in this transaction."""
    if families:
        rows = ParkedMessage.objects.filter(match_keys({*families, *parked_messages})).order_by(
            "pk"
        )
        # A parker that names one as an earlier repeat must not wait for it: it holds the group.
        list(rows.select_for_update(no_key=True).values_list("pk"))


def assign_ids(batch: ReplayBatch, claimed: Sequence[Claimed], families: Mapping[int, int]) -> int:
    """Give these items the replay ids of their families, in the transaction that claims them.

    A message that an earlier replay may have published keeps its replay id, and is marked as
    possibly duplicated. Returns how many were marked.

    The first item of a family in this batch gets the newest id of the family, the others get the
    id of the first. A message that is no repeat and was published before gets a new id: an
    operator sends it again on purpose.
    """
    unsettled = _find_unsettled(batch, claimed)
    related = [
        one for one in claimed if one.parked_message in families or one.parked_message in unsettled
    ]
    published = _find_published(families) if families else {}
    changed = []
    for one in sorted(related, key=lambda one: one.position):
        first = families.get(one.parked_message, one.parked_message)
        family = published.setdefault(first, [])
        here = [other for other in family if other.batch == batch.pk]
        is_sent_again = first == one.parked_message and any(
            other.parked_message == one.parked_message for other in family
        )
        is_marked = one.parked_message in unsettled
        shared = ""
        if here:
            shared = here[0].replay_id
        elif is_marked:
            shared = unsettled[one.parked_message]
        elif family and not is_sent_again:
            shared = family[-1].replay_id
        if shared:
            changed.append(
                ReplayItem(pk=one.item, shared_replay_id=shared, may_be_duplicated=is_marked)
            )
        name = shared or replay_id(batch.uid, one.position)
        family.append(Published(one.parked_message, batch.pk, name))
    if changed:
        ReplayItem.objects.bulk_update(changed, ["shared_replay_id", "may_be_duplicated"])
    return len(unsettled)


def _find_links(parked_messages: Collection[int]) -> dict[int, int]:
    """What each of these is a repeat of, and which are repeats of them."""
    found: dict[int, int] = {}
    of: Q | Func
    for of in (match_keys(parked_messages), match_keys(parked_messages, "repeat_of")):
        rows = ParkedMessage.objects.filter(of, repeat_of__isnull=False).order_by()
        found |= {key: earlier for key, earlier in rows.values_list("pk", "repeat_of") if earlier}
    return found


def _find_first(parked_message: int, parents: Mapping[int, int]) -> int:
    for _ in range(LONGEST_CHAIN):
        if parked_message not in parents:
            break
        parked_message = parents[parked_message]
    return parked_message


def _find_unsettled(batch: ReplayBatch, claimed: Sequence[Claimed]) -> dict[int, str]:
    """The replay ids under which these messages may have been published, without a confirm."""
    if not claimed:
        return {}
    rows = ReplayItem.objects.filter(
        Q(attempts__gt=0) | Q(may_be_duplicated=True),
        match_keys([one.parked_message for one in claimed], "parked_message"),
    ).exclude(batch=batch.pk)
    columns = ("parked_message_id", "may_be_duplicated", "state", "shared_replay_id")
    found: dict[int, str] = {}
    for parked_message, is_marked, state, shared, uid, position in rows.order_by(
        "ended_at", "pk"
    ).values_list(*columns, "batch__uid", "position"):
        assert parked_message is not None
        found.pop(parked_message, None)
        if state == ItemState.UNKNOWN or (is_marked and state != ItemState.DONE):
            found[parked_message] = shared or replay_id(uid, position)
    return found


def _find_published(families: Mapping[int, int]) -> dict[int, list[Published]]:
    """What was published of each family, or is claimed to be, the oldest item first."""
    is_claimed = Q(state__in=OPEN, position__lte=F("batch__claimed_to"))
    rows = ReplayItem.objects.filter(
        Q(attempts__gt=0) | is_claimed, match_keys(families, "parked_message")
    )
    columns = ("parked_message_id", "batch_id", "shared_replay_id", "batch__uid", "position")
    found: dict[int, list[Published]] = {}
    for parked_message, batch, shared, uid, position in rows.order_by("pk").values_list(*columns):
        assert parked_message is not None
        one = Published(parked_message, batch, shared or replay_id(uid, position))
        found.setdefault(families[parked_message], []).append(one)
    return found
