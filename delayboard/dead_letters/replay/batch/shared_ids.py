"""Replay ids that several items carry, because their messages may be one message.

A message, its possible repeats and their repeats are one family. What is published of a family is
published under one replay id, so that a consumer can drop all but the first. So is a message of
which an earlier replay did not learn whether it was published.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from django.db.models import BooleanField, F, Func, Q
from django.db.models.expressions import RawSQL

from delayboard.models import ItemState, ParkedMessage, ReplayBatch, ReplayItem
from delayboard.models.replay import OPEN, parse_replay_id, replay_id
from topology.database.select_keys import match_keys

# Each link of a chain is one crash while the same message was parked.
LONGEST_CHAIN = 100
# The very words of the index items_by_shared_replay_id.
_IS_SHARED = RawSQL("shared_replay_id > ''", (), output_field=BooleanField())


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


def find_sharing(broker: int, names: Collection[str]) -> dict[str, list[ReplayItem]]:
    """The items that were published under each of these replay ids, where several share it.

    With their batches, in the order of their keys: the item that has the id of its own is first.
    """
    # Anybody can write the header: PostgreSQL takes no NUL, for one.
    real = {name for name in names if parse_replay_id(name) is not None}
    rows = ReplayItem.objects.filter(
        _IS_SHARED, batch__broker=broker, shared_replay_id__in=real, attempts__gt=0
    )
    found: dict[str, list[ReplayItem]] = {}
    for item in rows.select_related("batch").defer("batch__parked_messages").order_by("pk"):
        found.setdefault(item.shared_replay_id, []).append(item)
    return {name: [*_find_owner(broker, name), *items] for name, items in found.items()}


def _find_owner(broker: int, name: str) -> Iterable[ReplayItem]:
    """The item whose own replay id this is, if it was published; one at most."""
    parsed = parse_replay_id(name)
    if parsed is None:
        return ()
    rows = ReplayItem.objects.filter(
        batch__broker=broker, batch__uid=parsed[0], position=parsed[1], attempts__gt=0
    )
    return rows.filter(shared_replay_id="").select_related("batch").defer("batch__parked_messages")


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
