"""What people change of a group: merging, the undo of it, and a note with an owner and a link.

A merged group keeps its row, messages and counts, and new messages of its cause are still added to
it; only `merged_into` names the group that shows them. So an undo restores every group exactly. The
note, owner, link and redirect of the remaining group apply to all; those of the others are unused
until the undo.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from urllib.parse import urlsplit

from django.contrib.auth import get_user_model
from django.db import transaction
from django.db.models import Q

from analytics.events import clean
from delayboard.models import BatchState, MessageGroup, ParkedChange, ReplayBatch
from topology import audit
from topology.content.text import count_text
from topology.models import Broker, Grant
from topology.models.work import ENDED

MOST_MERGED = 50
LONGEST_NAME = 100
LONGEST_NOTE = 10_000
LONGEST_LINK = 500


class MergeError(ValueError):
    """Nothing was changed; the message says why."""


def merge_groups(
    user: Any, broker: Broker, keys: Collection[int], into: int, name: str
) -> MessageGroup:
    """Shows the messages of these groups in the group `into`; its row. Raises MergeError.

    Groups are locked by their ids, as everywhere (`change_each` in `store.py`).
    """
    name = " ".join(clean(name).split())
    if len(name) > LONGEST_NAME:
        raise MergeError(f"The name is longer than {LONGEST_NAME} characters.")
    with transaction.atomic():
        found = _lock(MessageGroup.objects.filter(broker=broker, pk__in={*keys, into}))
        others = [group for group in found.values() if group.pk != into]
        if into not in found or not others or len(found) != len({*keys, into}):
            raise MergeError("Select two or more groups of this broker and the target group.")
        _check_members(found, into)
        group = found[into]
        MessageGroup.objects.filter(pk__in=[one.pk for one in others]).update(merged_into=into)
        MessageGroup.objects.filter(pk=into).update(name=name)
        _record(user, group, "groups merged", [one.pk for one in others])
    group.name = name
    return group


def restore_groups(user: Any, group: MessageGroup) -> int:
    """Restores the groups that were merged into this one; how many. Raises MergeError."""
    with transaction.atomic():
        found = _lock(MessageGroup.objects.filter(Q(pk=group.pk) | Q(merged_into=group.pk)))
        merged = [pk for pk in found if pk != group.pk]
        if not merged:
            raise MergeError("This group contains no merged groups.")
        _check_pending(found)
        MessageGroup.objects.filter(pk__in=merged).update(merged_into=None)
        MessageGroup.objects.filter(pk=group.pk).update(name="")
        _record(user, group, "merge of groups undone", merged)
    return len(merged)


def lock_members(group: MessageGroup) -> list[int]:
    """Returns the group's `member_ids`, which stay so until the caller's transaction ends.

    To be called where no message is locked later: elsewhere they are locked before groups.
    """
    list(MessageGroup.objects.select_for_update(no_key=True).filter(pk=group.pk).values_list("pk"))
    return group.member_ids


def _lock(rows: Any) -> dict[int, MessageGroup]:
    # In one order, as everywhere: two merges of the same groups do not wait in a circle.
    return {group.pk: group for group in rows.select_for_update().order_by("pk")}


def _check_members(found: dict[int, MessageGroup], into: int) -> None:
    keys = [pk for pk in found if pk != into]
    if any(group.merged_into_id is not None for group in found.values()):
        raise MergeError("One of these groups is already merged. Undo that merge first.")
    if MessageGroup.objects.filter(merged_into__in=keys).exists():
        raise MergeError(
            "One of these groups contains merged groups. Select that group as the target, or undo "
            "the merge first."
        )
    number = MessageGroup.objects.filter(merged_into=into).count()
    if number + len(found) > MOST_MERGED:
        raise MergeError(f"At most {MOST_MERGED} groups can be merged into one.")
    _check_pending(found)


def _check_pending(found: Collection[int]) -> None:
    """A group must not change while the worker carries out a request on it."""
    is_changing = ParkedChange.objects.filter(group__in=found, work__isnull=False).exclude(
        work__state__in=ENDED
    )
    is_preparing = ReplayBatch.objects.filter(group__in=found, state=BatchState.PREPARING)
    if is_changing.exists() or is_preparing.exists():
        raise MergeError(
            "A replay, discard or restore of one of these groups is running. Wait until it ends."
        )


def _record(user: Any, group: MessageGroup, action: str, others: list[int]) -> None:
    details = {"group": group.pk, "merged": others}
    audit.record(user, action, broker=group.broker, what=str(group), details=details)


class NoteError(ValueError):
    """Nothing was saved; the message says what is wrong."""


def find_owners(broker: Broker) -> list[Any]:
    """The accounts that may see the broker, by name."""
    granted = Grant.objects.filter(Q(broker=broker) | Q(broker=None)).values("user")
    accounts = get_user_model().objects.filter(is_active=True)
    readers = accounts.filter(Q(pk__in=granted) | Q(is_superuser=True))
    return list(readers.order_by("username"))


def write_note(user: Any, group: MessageGroup, *, note: str, owner: str, link: str) -> None:
    """Save all three, and who did it. Raises NoteError."""
    note, link = clean(note.strip().replace("\r\n", "\n")), clean(link.strip())
    if len(note) > LONGEST_NOTE:
        raise NoteError(f"The note is longer than {count_text(LONGEST_NOTE)} characters.")
    if link:
        try:
            parts = urlsplit(link)
            # A host of the own network has no dot.
            is_whole = parts.scheme in ("http", "https") and parts.hostname and link.isprintable()
        except ValueError:
            is_whole = False
        if len(link) > LONGEST_LINK or " " in link or not is_whole:
            raise NoteError(
                f"The link must begin with http:// or https:// and have at most {LONGEST_LINK} "
                "characters."
            )
    named = {one.get_username(): one for one in find_owners(group.broker)}
    # Who lost the role since stays the owner until somebody changes it.
    if group.owner is not None:
        named.setdefault(group.owner.get_username(), group.owner)
    if owner and owner not in named:
        raise NoteError(f"“{clean(owner)[:150]}” has no access to {group.broker.name}.")
    with transaction.atomic():
        changed = {"note": note, "owner": named.get(owner), "link": link}
        MessageGroup.objects.filter(pk=group.pk).update(**changed)
        audit.record(
            user,
            "dead-letter group described",
            broker=group.broker,
            what=str(group),
            details={"group": group.pk, "note": note[:1000], "owner": owner, "link": link},
        )
