"""Editing one item of a draft, and what leaves instead of the message, which stays as it was."""

from __future__ import annotations

import difflib
import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from delayboard.dead_letters.parked import store
from delayboard.dead_letters.replay.batch_items import CheckedTarget, Routes
from delayboard.dead_letters.replay.batch_state import BatchError, record_action
from delayboard.dead_letters.replay.content import prepare_replay, read_contents
from delayboard.dead_letters.replay.edit_headers import (
    EditError,
    HeaderRow,
    Typed,
    edit_headers,
    make_header_rows,
    read_headers,
)
from delayboard.dead_letters.replay.options import OptionError, read_batch_options
from delayboard.dead_letters.replay.targets import find_delay_route
from delayboard.dead_letters.replay.verdicts import MessageChecker, poll_broker
from delayboard.models import (
    Body,
    ItemState,
    ParkedMessage,
    ReplayBatch,
    ReplayEdit,
    ReplayItem,
    TargetMode,
)
from topology import redaction
from topology.broker.properties.field_values import FieldError
from topology.broker.properties.raw import is_excluded
from topology.broker.properties.read import read_properties
from topology.content import bodies
from topology.message import Properties, Route
from topology.patterns.pattern import ParamsError
from topology.redaction import NOTHING, Redaction

LARGEST_BODY = 8_000_000
EXCLUDED = "It is excluded as a possible repeat. Include possible repeats, then edit it."
HIDDEN = "It is hidden from you. Only people who may see it can change it."
EDITED_MEANWHILE = "This message was edited meanwhile. Open it again, then repeat your changes."
# Text in place of the message id, which is made when the message is published.
NEW_ID = "a new id"
MOST_LINES, CONTEXT_LINES, MOST_CHARACTERS = 1000, 2, 300


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
    checked = _check_again(item, parked_message, raw)
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
        changed = {"headers": sorted(wanted), "dropped": sorted(drop_headers)}
        _record(user, "replay message edited", item, **changed, body=body is not None)
    return made


def undo_edit(user: Any, item: ReplayItem, *, version: str | None = None) -> None:
    """The item is the message again. Raises EditError; nothing happens where it was not edited."""
    parked_message = _find_parked_message(item)
    found = read_version(item)
    if not found:
        return
    version = found if version is None else version
    checked = _check_again(item, parked_message, bytes(parked_message.properties))
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


def _check_again(item: ReplayItem, parked_message: ParkedMessage, raw: bytes) -> CheckedTarget:
    """The target and verdict of the message with these properties. Raises EditError."""
    batch = item.batch
    try:
        snapshot, options = poll_broker(batch.broker).snapshot, read_batch_options(batch)
        checker = MessageChecker(batch.broker, options, snapshot, batch.conventions)
    except (BatchError, OptionError) as error:
        raise EditError({"": str(error)}) from error
    return checker.check_message(
        parked_message.group_id, parked_message.queue, raw, parked_message.pk
    )


def _lock_draft(item: ReplayItem, version: str) -> None:
    """Raises EditError where it is no draft's item any more, or has another version."""
    batch = ReplayBatch.objects.select_for_update().get(pk=item.batch_id)
    if not batch.is_draft:
        raise EditError({"": "Only a draft can be edited: this replay was started or has ended."})
    if read_batch_options(batch) != read_batch_options(item.batch):
        raise EditError({"": "The replay got other options at this moment: try again."})
    if read_version(item) != version:
        raise EditError({"": EDITED_MEANWHILE})
    # Nobody approves what was not seen.
    ReplayBatch.objects.filter(pk=batch.pk).update(requested_by=None)


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


class Change(NamedTuple):
    """One part of the message; None where it has no such part."""

    part: str
    before: str | None
    after: str | None


class Line(NamedTuple):
    """A line of the body: in both, only in what was parked, only in what leaves, or a gap."""

    mark: Literal["same", "gone", "new", "gap"]
    text: str


@dataclass(frozen=True)
class SentDiff:
    """`stripped` are the headers that every replay removes; `note` is of the body."""

    item: ReplayItem
    changes: tuple[Change, ...]
    stripped: tuple[str, ...]
    body: tuple[Line, ...]
    note: str


def diff_first(batch: ReplayBatch, rules: Redaction, *, hides_targets: bool) -> SentDiff | None:
    """The same of the first message that a draft would send."""
    rows = batch.items.filter(state=ItemState.PENDING, parked_message__isnull=False)
    item = rows.select_related("parked_message", "route").order_by("position").first()
    if item is None:
        return None
    item.batch = batch
    return diff_sent(item, rules, hides_targets=hides_targets)


def diff_sent(item: ReplayItem, rules: Redaction, *, hides_targets: bool) -> SentDiff | None:
    """None where its message cannot be read. Without a target it says nothing of addresses."""
    parked = item.parked_message
    if parked is None:
        return None
    sent = read_contents([(item.pk, parked.pk)], item.batch)[item.pk]
    try:
        path = _find_route(item)
        after = prepare_replay(path, sent.properties, sent.body, NEW_ID).properties
    except (FieldError, OptionError, ParamsError):
        return None
    before = parked.message.properties
    is_addressed = not hides_targets and (path.exchange or path.routing_key)
    addresses = [
        ("exchange", *(name or "(default exchange)" for name in (parked.exchange, path.exchange))),
        ("routing key", *(key or "(empty)" for key in (parked.routing_key, path.routing_key))),
    ]
    addressed = [
        Change(part, _shorten(was), _shorten(is_now))
        for part, was, is_now in addresses
        if is_addressed and was != is_now
    ]
    body, note = _diff_bodies(
        _show(before, bytes(parked.body.data), rules), _show(after, sent.body, rules)
    )
    if body == () and note == "" and bytes(parked.body.data) != sent.body:
        note = (
            "A redaction rule hides the change of the body."
            if rules.body_paths
            else "Only the spaces of the body change."
        )
    return SentDiff(
        item,
        (
            *addressed,
            *_diff_values("property", before.stated(), after.stated()),
            *_diff_headers(before.headers, after.headers, rules),
        ),
        tuple(name for name in before.headers if is_excluded(name)),
        body,
        note,
    )


def _find_route(item: ReplayItem) -> Route:
    """Where it is published, as the sender works it out. Raises OptionError and ParamsError."""
    if item.route is None:
        return Route("", "")
    if item.batch.mode == TargetMode.DELAY and item.route.routing_key:
        return find_delay_route(item.batch, item.route.routing_key)
    return Route(item.route.exchange, item.route.routing_key)


def _diff_headers(
    before: Mapping[str, Any], after: Mapping[str, Any], rules: Redaction
) -> Iterator[Change]:
    """Compared as they are, shown as the rules let them be seen."""
    kept = {name: value for name, value in before.items() if not is_excluded(name)}
    changed = {
        name
        for name in kept.keys() | after.keys()
        if name not in kept or name not in after or kept[name] != after[name]
    }
    shown = ({k: v for k, v in one.items() if k in changed} for one in (kept, after))
    yield from _diff_values("header", *map(rules.headers, shown), is_changed=True)


def _diff_values(
    kind: str, before: Mapping[str, Any], after: Mapping[str, Any], *, is_changed: bool = False
) -> Iterator[Change]:
    first, second = (
        {row.name: row.text for row in make_header_rows(values)} for values in (before, after)
    )
    for name in dict.fromkeys((*first, *second)):
        was, is_now = first.get(name), second.get(name)
        if is_changed or was != is_now:
            yield Change(f"{kind} {name}", _shorten(was), _shorten(is_now))


def _shorten(text: str | None) -> str | None:
    if text is None or len(text) <= MOST_CHARACTERS:
        return text
    return f"{text[:MOST_CHARACTERS]}…"


def _show(properties: Properties, body: bytes, rules: Redaction) -> bodies.Body:
    kind, encoding = properties.content_type or "", properties.content_encoding or ""
    if rules.body_paths:
        return bodies.show_body(rules.body(body))
    return bodies.show_body(body, kind, encoding)


def _diff_bodies(before: bodies.Body, after: bodies.Body) -> tuple[tuple[Line, ...], str]:
    """The lines that differ with those around them, or a sentence where lines say nothing."""
    if before == after or (before.form == after.form and before.text == after.text):
        is_same = before.size == after.size or not (before.is_cut or after.is_cut)
        return (), "" if is_same else _compare_sizes(before, after)
    texts = [one.text.split("\n") if one.form != "empty" else [] for one in (before, after)]
    is_long = any(one.is_cut for one in (before, after)) or max(map(len, texts)) > MOST_LINES
    if is_long or "hex" in (before.form, after.form):
        return (), _compare_sizes(before, after)
    return tuple(_diff_lines(*texts)), ""


def _compare_sizes(before: bodies.Body, after: bodies.Body) -> str:
    return (
        f"The body changes, from {before.size:,} to {after.size:,} bytes. It is binary or too long "
        "to be compared here."
    )


def _diff_lines(before: list[str], after: list[str]) -> Iterator[Line]:
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=True)
    for number, group in enumerate(matcher.get_grouped_opcodes(CONTEXT_LINES)):
        if number:
            yield Line("gap", "…")
        for tag, first, until, from_new, until_new in group:
            if tag == "equal":
                yield from (Line("same", text) for text in before[first:until])
            else:
                yield from (Line("gone", text) for text in before[first:until])
                yield from (Line("new", text) for text in after[from_new:until_new])
