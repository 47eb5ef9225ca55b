"""Editing one item of a draft: what is sent instead of the message, which stays as it was."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from delayboard.dead_letters.parked import store
from delayboard.dead_letters.replay.batch.change_state import BatchError, record_action
from delayboard.dead_letters.replay.batch.items import CheckedTarget, Routes
from delayboard.dead_letters.replay.batch.options import OptionError, read_batch_options
from delayboard.dead_letters.replay.check.message_checker import MessageChecker, poll_broker
from delayboard.dead_letters.replay.draft.edit_headers import (
    EditError,
    HeaderRow,
    Typed,
    edit_headers,
    read_headers,
)
from delayboard.models import Body, ItemState, ParkedMessage, ReplayBatch, ReplayEdit, ReplayItem
from topology import redaction
from topology.broker.properties.read import read_properties
from topology.redaction import NOTHING, Redaction

LARGEST_BODY = 8_000_000
EXCLUDED = "It is excluded as a possible repeat. Include possible repeats, then edit it."
HIDDEN = "It is hidden from you. Only people who may see it can change it."
EDITED_MEANWHILE = "This message was edited meanwhile. Open it again, then repeat your changes."


def edit_message(
    user: Any,
    item: ReplayItem,
    *,
    set_headers: Mapping[str, Typed] | None = None,
    drop_headers: Collection[str] = (),
    body: bytes | None = None,
    version: str | None = None,
) -> ReplayEdit | None:
    """Change an item of a draft, from what it was edited to before; it is checked again.

    `body` None leaves the body. Headers keep their AMQP types, and their bytes where they are not
    changed. `version` is what `read_version` returned when the user opened the message. None when
    it is the message again. Raises EditError.
    """
    parked_message, wanted = _find_parked_message(item), dict(set_headers or {})
    earlier = ReplayEdit.objects.filter(item=item).first()
    version = _name_version(earlier) if version is None else version
    _refuse_hidden(user, item, wanted, drop_headers, body)
    raw = edit_headers(bytes((earlier or parked_message).properties), wanted, drop_headers)
    key = (earlier or parked_message).body_id if body is None else hashlib.sha256(body).hexdigest()
    is_same = set(read_headers(raw)) == set(read_headers(bytes(parked_message.properties)))
    if is_same and key == parked_message.body_id:
        undo_edit(user, item, version=version)
        return None
    checker = _make_checker(item.batch)
    checked = checker.check_message(
        parked_message.group_id, parked_message.queue, raw, parked_message.pk
    )
    with transaction.atomic():
        _lock_draft(item, version)
        if body is not None:
            row = {"sha256": key, "data": body, "size": len(body)}
            store.insert(Body(), [row], ignore_conflicts=True)
        values = {"properties": raw, "body_id": key, "edited_by": user}
        made, _ = ReplayEdit.objects.update_or_create(
            item=item, defaults={**values, "edited_at": timezone.now()}
        )
        size = Body.objects.values_list("size", flat=True).get(pk=key)
        _write_route(item, checked, size)
        _record(
            user,
            "replay message edited",
            item,
            headers=sorted(wanted),
            dropped=sorted(drop_headers),
            body=body is not None,
        )
    return made


def undo_edit(user: Any, item: ReplayItem, *, version: str | None = None) -> None:
    """The item is the message again. Raises EditError; nothing happens where it was not edited."""
    parked_message = _find_parked_message(item)
    found = read_version(item)
    if not found:
        return
    version = found if version is None else version
    checker = _make_checker(item.batch)
    checked = checker.check_message(
        parked_message.group_id,
        parked_message.queue,
        bytes(parked_message.properties),
        parked_message.pk,
    )
    with transaction.atomic():
        _lock_draft(item, version)
        if ReplayEdit.objects.filter(item=item).delete()[0]:
            _write_route(item, checked, parked_message.size)
            _record(user, "replay message no longer edited", item)


def read_version(item: ReplayItem) -> str:
    """Another text after each edit; "" without one."""
    return _name_version(ReplayEdit.objects.filter(item=item).first())


def _name_version(edit: ReplayEdit | None) -> str:
    return edit.edited_at.isoformat() if edit else ""


def read_shown_headers(item: ReplayItem, hidden: Redaction = NOTHING) -> tuple[HeaderRow, ...]:
    """The headers as they are edited now; what is hidden is locked. Raises EditError."""
    raw = _read_raw(item)
    names = find_hidden_headers(raw, hidden)
    return tuple(
        header._replace(text=redaction.HIDDEN, lock=HIDDEN) if header.name in names else header
        for header in read_headers(raw)
    )


def find_hidden_headers(raw: bytes, hidden: Redaction) -> frozenset[str]:
    """The headers of which a rule hides anything."""
    headers = read_properties(raw).headers
    shown = hidden.headers(headers)
    return frozenset(name for name, value in headers.items() if shown[name] != value)


def _read_raw(item: ReplayItem) -> bytes:
    source = ReplayEdit.objects.filter(item=item).first() or _find_parked_message(item)
    return bytes(source.properties)


def _find_parked_message(item: ReplayItem) -> ParkedMessage:
    if item.parked_message is None:
        raise EditError({"": "The parked message was deleted."})
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
    names = find_hidden_headers(_read_raw(item), hidden)
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


def _make_checker(batch: ReplayBatch) -> MessageChecker:
    try:
        snapshot = poll_broker(batch.broker).snapshot
        options = read_batch_options(batch)
        return MessageChecker(batch.broker, options, snapshot, batch.conventions)
    except (BatchError, OptionError) as error:
        raise EditError({"": str(error)}) from error


def _lock_draft(item: ReplayItem, version: str) -> None:
    """Raises EditError where it is no draft's item any more, or has another version."""
    batch = ReplayBatch.objects.select_for_update().get(pk=item.batch_id)
    if not batch.is_draft:
        raise EditError({"": "Only a draft can be edited: this replay was started or has ended."})
    if read_batch_options(batch) != read_batch_options(item.batch):
        raise EditError({"": "The replay got other options at this moment: try again."})
    if read_version(item) != version:
        raise EditError({"": EDITED_MEANWHILE})


def _write_route(item: ReplayItem, checked: CheckedTarget, size: int) -> None:
    route = ReplayItem.objects.values_list("route", flat=True).get(pk=item.pk)
    before = item.batch.routes.filter(pk=route or 0, items_number__gt=0)
    before.update(items_number=F("items_number") - 1)
    keys = Routes(item.batch).add(Counter([checked]))
    item.route_id, item.size = keys[checked], size
    item.save(update_fields=["route", "size"])


def _record(user: Any, action: str, item: ReplayItem, **details: Any) -> None:
    known = {"position": item.position, "parked_message": item.parked_message_id}
    record_action(user, action, item.batch, **known, **details)
