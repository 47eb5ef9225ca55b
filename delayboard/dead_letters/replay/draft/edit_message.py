"""Editing one item of a draft: what is sent instead of the message, which stays as it was."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from django.db import transaction
from django.utils import timezone

from delayboard.dead_letters.parked import store
from delayboard.dead_letters.replay.batch.change_state import BatchError
from delayboard.dead_letters.replay.batch.options import OptionError, of_batch
from delayboard.dead_letters.replay.batch.routes import Judged, Routes, leave
from delayboard.dead_letters.replay.check.check_full_queues import finish
from delayboard.dead_letters.replay.check.checker import Desk, seen
from delayboard.dead_letters.replay.publish.edit_headers import (
    EditError,
    Header,
    Typed,
    edited,
    headers_of,
)
from delayboard.models import Body, ItemState, ParkedMessage, ReplayBatch, ReplayEdit, ReplayItem
from topology import audit, redaction
from topology.broker.properties.read import read_properties
from topology.redaction import NOTHING, Redaction

__all__ = ["EditError", "Header", "Typed", "edit", "shown_headers", "undo"]

LARGEST_BODY = 8_000_000
EXCLUDED = "It is excluded as a possible repeat. Include possible repeats, then edit it."
HIDDEN = "It is hidden from you: only who may see it may change it."


def edit(
    user: Any,
    item: ReplayItem,
    *,
    set_headers: Mapping[str, Typed] | None = None,
    drop_headers: Collection[str] = (),
    body: bytes | None = None,
) -> ReplayEdit | None:
    """Change an item of a draft, from what it was edited to before; it is judged anew.

    `body` None leaves the body. Headers keep their AMQP types, and their bytes where they are not
    changed. None when it is the message again. Raises EditError.
    """
    parked_message, wanted = _parked_message(item), dict(set_headers or {})
    earlier = ReplayEdit.objects.filter(item=item).first()
    _refuse_hidden(user, item, wanted, drop_headers, body)
    raw = edited(bytes((earlier or parked_message).properties), wanted, drop_headers)
    key = (earlier or parked_message).body_id if body is None else hashlib.sha256(body).hexdigest()
    if raw == bytes(parked_message.properties) and key == parked_message.body_id:
        undo(user, item)
        return None
    desk = _desk(item.batch)
    judged = desk.parked_message(parked_message.group_id, parked_message.queue, raw)
    with transaction.atomic():
        _lock(item)
        if body is not None:
            row = {"sha256": key, "data": body, "size": len(body)}
            store.insert(Body(), [row], ignore_conflicts=True)
        values = {"properties": raw, "body_id": key, "edited_by": user}
        made, _ = ReplayEdit.objects.update_or_create(
            item=item, defaults={**values, "edited_at": timezone.now()}
        )
        size = Body.objects.values_list("size", flat=True).get(pk=key)
        _put(item, judged, size)
        details = {
            **_what(item),
            "headers": sorted(wanted),
            "dropped": sorted(drop_headers),
            "body": body is not None,
        }
        _record(user, "replay message edited", item.batch, details)
    finish(item.batch, desk)
    return made


def undo(user: Any, item: ReplayItem) -> None:
    """The item is the message again. Raises EditError; nothing happens where it was not edited."""
    parked_message = _parked_message(item)
    if not ReplayEdit.objects.filter(item=item).exists():
        return
    desk = _desk(item.batch)
    judged = desk.parked_message(
        parked_message.group_id, parked_message.queue, bytes(parked_message.properties)
    )
    with transaction.atomic():
        _lock(item)
        if ReplayEdit.objects.filter(item=item).delete()[0]:
            _put(item, judged, parked_message.size)
            _record(user, "replay message no longer edited", item.batch, _what(item))
    finish(item.batch, desk)


def shown_headers(item: ReplayItem, hidden: Redaction = NOTHING) -> tuple[Header, ...]:
    """The headers as they are edited now; what is hidden is locked. Raises EditError."""
    raw = _raw(item)
    names = hidden_headers(raw, hidden)
    return tuple(
        header._replace(text=redaction.HIDDEN, lock=HIDDEN) if header.name in names else header
        for header in headers_of(raw)
    )


def hidden_headers(raw: bytes, hidden: Redaction) -> frozenset[str]:
    """The headers of which a rule hides anything."""
    headers = read_properties(raw).headers
    shown = hidden.headers(headers)
    return frozenset(name for name, value in headers.items() if shown[name] != value)


def _raw(item: ReplayItem) -> bytes:
    source = ReplayEdit.objects.filter(item=item).first() or _parked_message(item)
    return bytes(source.properties)


def _parked_message(item: ReplayItem) -> ParkedMessage:
    if item.parked_message is None:
        raise EditError({"": "Its parked message was deleted from the journal."})
    if item.state == ItemState.EXCLUDED:
        raise EditError({"": EXCLUDED})
    return item.parked_message


def _refuse_hidden(
    user: Any,
    item: ReplayItem,
    wanted: Mapping[str, Typed],
    dropped: Collection[str],
    body: bytes | None,
) -> None:
    """What is hidden from somebody is not theirs to replace."""
    hidden = NOTHING if user is None else redaction.rules_for(user, item.batch.broker)
    names = hidden_headers(_raw(item), hidden)
    problems = {
        name: HIDDEN for name in (*wanted, *dropped) if name in names or hidden.hides_header(name)
    }
    if body is not None and hidden.body_paths:
        problems["body"] = (
            "Parts of it are hidden from you: only who may see all of it may edit it."
        )
    if body is not None and len(body) > LARGEST_BODY:
        problems["body"] = f"It has more than {LARGEST_BODY // 1_000_000} MB."
    if problems:
        raise EditError(problems)


def _desk(batch: ReplayBatch) -> Desk:
    try:
        return Desk(batch.broker, of_batch(batch), seen(batch.broker))
    except (BatchError, OptionError) as error:
        raise EditError({"": str(error)}) from error


def _lock(item: ReplayItem) -> None:
    """Raises EditError where it is no draft's item any more."""
    batch = ReplayBatch.objects.select_for_update().get(pk=item.batch_id)
    if not batch.is_draft:
        raise EditError({"": "Only a draft can be edited: this replay was started or has ended."})
    if of_batch(batch) != of_batch(item.batch):
        raise EditError({"": "The replay got other options at this moment: try again."})


def _put(item: ReplayItem, judged: Judged, size: int) -> None:
    leave(ReplayItem.objects.values_list("route", flat=True).get(pk=item.pk))
    keys = Routes(item.batch).add(Counter([judged]))
    item.route_id, item.size = keys[judged], size
    item.save(update_fields=["route", "size"])


def _what(item: ReplayItem) -> dict[str, Any]:
    return {
        "batch": item.batch_id,
        "position": item.position,
        "parked_message": item.parked_message_id,
    }


def _record(user: Any, action: str, batch: ReplayBatch, details: Mapping[str, Any]) -> None:
    audit.record(user, action, broker=batch.broker, what=batch.said, details=details)
