"""What people write about a group: a note, who owns it, a link."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from django.contrib.auth import get_user_model
from django.db import transaction
from django.db.models import Q

from analytics.events import clean
from delayboard.models import MessageGroup
from topology import audit
from topology.content.text import count_text
from topology.models import Broker, Grant

LONGEST_NOTE = 10_000
LONGEST_LINK = 500


class NoteError(ValueError):
    """Nothing was saved; the message says what is wrong."""


def owners(broker: Broker) -> list[Any]:
    """The accounts that may see the broker, by name."""
    granted = Grant.objects.filter(Q(broker=broker) | Q(broker=None)).values("user")
    accounts = get_user_model().objects.filter(is_active=True)
    readers = accounts.filter(Q(pk__in=granted) | Q(is_superuser=True))
    return list(readers.order_by("username"))


def write(user: Any, group: MessageGroup, *, note: str, owner: str, link: str) -> None:
    """Save all three, and who did it. Raises NoteError."""
    note, link = clean(note.strip().replace("\r\n", "\n")), clean(link.strip())
    if len(note) > LONGEST_NOTE:
        raise NoteError(f"The note is longer than {count_text(LONGEST_NOTE)} characters.")
    if link:
        _check(link)
    named = {one.get_username(): one for one in owners(group.broker)}
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


def _check(link: str) -> None:
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
