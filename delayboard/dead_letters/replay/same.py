"""Whether a message that names a replay is what it sent: anybody can write the header."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple
from uuid import UUID

from django.db.models import QuerySet

from delayboard.dead_letters.replay.content import Content
from delayboard.dead_letters.replay.options import OptionError
from delayboard.dead_letters.replay.target import way_of
from delayboard.models import ReplayBatch, ReplayItem, TargetMode
from delayboard.models.replay import parse_replay_id
from topology.broker.properties import read_properties
from topology.definitions import DELAY_HEADER
from topology.message import ATTEMPT_HEADER, Headers, Properties, content_id, kept_by_streams
from topology.patterns.pattern import ParamsError


class Came(NamedTuple):
    """A message that names a replay; `letter` is the id of its row, if it was parked."""

    properties: Properties
    content_id: str
    sha256: str
    letter: int | None = None


def by_position(named: Iterable[tuple[str, Came]]) -> dict[UUID, dict[int, list[Came]]]:
    """What names an item, by its batch's uid and its position, in the order it came; pure."""
    found: dict[UUID, dict[int, list[Came]]] = {}
    for text, came in named:
        if (parsed := parse_replay_id(text)) is not None:
            uid, position = parsed
            found.setdefault(uid, {}).setdefault(position, []).append(came)
    return found


def sent_by(batch: ReplayBatch, came: Mapping[int, Sequence[Came]]) -> dict[int, int | None]:
    """The positions of which one of these messages is what was sent, and the first one's letter.

    What dying and a replay change does not matter, nor what steers it through a delay, nor how
    often a consumer says that it failed. Libraries write into the headers of what they publish to
    an error queue: the same body under the same message id is the same message too. Of an item
    whose letter is no longer kept nothing is known, and nothing counts.
    """
    items = ReplayItem.objects.filter(batch=batch.pk, attempts__gt=0).order_by()
    plain = items.filter(position__in=came, edit=None)
    found: dict[int, int | None] = {}
    for position, content in plain.values_list("position", "letter__content_id"):
        for one in came[position]:
            if one.content_id == content:
                found.setdefault(position, one.letter)
    left = came.keys() - found.keys()
    if not left:
        return found
    steering = steering_headers(batch)
    for position, key, properties in _sent(items.filter(position__in=left)):
        for one in came[position]:
            if one.sha256 == key and _is_same(properties, one.properties, steering):
                found.setdefault(position, one.letter)
    return found


def is_arrival(content: Content, seen_id: str, headers: Headers, steering: Collection[str]) -> bool:
    """Whether what a tap saw, with these headers and this content id, is this content."""
    steered = {name: headers[name] for name in steering if name in headers}
    sent = _without(content.properties, steering)
    properties = kept_by_streams(replace(sent, headers={**sent.headers, **steered}))
    return content_id(properties, content.body) == seen_id


def steering_headers(batch: ReplayBatch) -> frozenset[str]:
    """The headers that say where or when a message goes, or how often it failed."""
    names = {ATTEMPT_HEADER, DELAY_HEADER}
    if batch.target_mode == TargetMode.DELAY:
        for key in batch.routes.values_list("routing_key", flat=True)[:1]:
            try:
                way = way_of(batch, key)
            except (OptionError, ParamsError):
                continue
            names |= {*way.headers, way.due_header} - {""}
    return frozenset(names)


def _sent(items: QuerySet[ReplayItem]) -> Iterator[tuple[int, str, Properties]]:
    """By position: the body's sha256 and the properties, of the edit where there is one."""
    columns = ("letter__body", "letter__properties", "edit__body", "edit__properties")
    for position, key, raw, edited_key, edited in items.values_list("position", *columns):
        if edited is not None:
            key, raw = edited_key, edited
        if key is not None:
            # PostgreSQL's driver hands out memory.
            yield position, key, read_properties(bytes(raw))


def _is_same(sent: Properties, came: Properties, left_out: Collection[str]) -> bool:
    """Of two with equal bodies."""
    if sent.message_id and sent.message_id == came.message_id:
        return True
    return content_id(_without(sent, left_out), b"") == content_id(_without(came, left_out), b"")


def _without(properties: Properties, headers: Collection[str]) -> Properties:
    kept = {name: value for name, value in properties.headers.items() if name not in headers}
    return replace(properties, headers=kept)
