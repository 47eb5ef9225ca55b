"""What leaves in a replay against what was parked, of one message of a draft."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from delayboard.dead_letters.replay.batch.options import OptionError
from delayboard.dead_letters.replay.check.targets import find_delay_route
from delayboard.dead_letters.replay.content import prepare_replay, read_contents
from delayboard.dead_letters.replay.draft.edit_headers import make_header_rows
from delayboard.models import ItemState, ParkedMessage, ReplayBatch, ReplayItem, TargetMode
from topology.broker.properties.field_values import FieldError
from topology.broker.properties.raw import is_excluded
from topology.content.bodies import Body, show_body
from topology.message import Properties, Route
from topology.patterns.pattern import ParamsError
from topology.redaction import Redaction

# It is made when the message is published.
NEW_ID = "a new id"
MOST_LINES, CONTEXT_LINES, MOST_CHARACTERS = 1000, 2, 300


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
    addressed = _diff_addresses(parked, path) if is_addressed else ()
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


def _diff_addresses(parked: ParkedMessage, path: Route) -> Iterator[Change]:
    for part, before, after in (
        (
            "exchange",
            parked.exchange or "(default exchange)",
            path.exchange or "(default exchange)",
        ),
        ("routing key", parked.routing_key or "(empty)", path.routing_key or "(empty)"),
    ):
        if before != after:
            yield Change(part, _shorten(before), _shorten(after))


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


def _show(properties: Properties, body: bytes, rules: Redaction) -> Body:
    kind, encoding = properties.content_type or "", properties.content_encoding or ""
    if rules.body_paths:
        return show_body(rules.body(body))
    return show_body(body, kind, encoding)


def _diff_bodies(before: Body, after: Body) -> tuple[tuple[Line, ...], str]:
    """The lines that differ with those around them, or a sentence where lines say nothing."""
    if before == after or (before.form == after.form and before.text == after.text):
        is_same = before.size == after.size or not (before.is_cut or after.is_cut)
        return (), "" if is_same else _compare_sizes(before, after)
    texts = [one.text.split("\n") if one.form != "empty" else [] for one in (before, after)]
    is_long = any(one.is_cut for one in (before, after)) or max(map(len, texts)) > MOST_LINES
    if is_long or "hex" in (before.form, after.form):
        return (), _compare_sizes(before, after)
    return tuple(_diff_lines(*texts)), ""


def _compare_sizes(before: Body, after: Body) -> str:
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
