"""Whether a message that names a replay is what it sent: anybody can write the header."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from django.db.models import QuerySet

from delayboard.dead_letters.parked.store import ReturnedMessage
from delayboard.dead_letters.replay.batch import shared_ids
from delayboard.dead_letters.replay.batch.options import OptionError
from delayboard.dead_letters.replay.check.targets import find_delay_route
from delayboard.dead_letters.replay.content import Content, make_sent
from delayboard.models import ItemState, ReplayBatch, ReplayItem, TargetMode
from delayboard.models.replay import OPEN, ReplayOutcome, parse_replay_id
from topology.broker.properties.read import read_properties
from topology.definitions import DELAY_HEADER
from topology.message import ATTEMPT_HEADER, Headers, Properties, content_id, kept_by_streams
from topology.models import Broker
from topology.patterns.pattern import ParamsError


def group_by_position(
    named: Iterable[tuple[str, ReturnedMessage]],
) -> dict[UUID, dict[int, list[ReturnedMessage]]]:
    """What names an item, by its batch's uid and its position, in the order it came; pure."""
    found: dict[UUID, dict[int, list[ReturnedMessage]]] = {}
    for text, came in named:
        if (parsed := parse_replay_id(text)) is not None:
            uid, position = parsed
            found.setdefault(uid, {}).setdefault(position, []).append(came)
    return found


def find_sent(
    broker: Broker, named: Sequence[tuple[str, ReturnedMessage]]
) -> list[tuple[int, dict[int, int | None]]]:
    """The items that these messages, each with the replay id in its header, were sent as.

    Batches in the order of their keys, each with positions and messages as in `sent_by`. Several
    items under one replay id are each found once, because the message does not distinguish them.
    """
    sharing = shared_ids.find_sharing(broker.pk, [name for name, _ in named])
    plain = group_by_position(one for one in named if one[0] not in sharing)
    found: dict[int, dict[int, int | None]] = {}
    batches = ReplayBatch.objects.filter(broker=broker, uid__in=plain).defer("parked_messages")
    for batch in batches:
        if positions := find_sent_positions(batch, plain[batch.uid]):
            found[batch.pk] = positions
    for name, items in sharing.items():
        for item, parked_message in _assign_messages(
            [came for other, came in named if other == name], items
        ):
            found.setdefault(item.batch_id, {})[item.position] = parked_message
    return sorted(found.items())


def _assign_messages(
    came: Sequence[ReturnedMessage], items: Sequence[ReplayItem]
) -> Iterator[tuple[ReplayItem, int | None]]:
    """Each of the messages to one of the items that it may be of.

    An item that a look saw dead is the first to be found again, and one that ended without a
    confirm the last; one that is known to be parked again is none of these.
    """
    waiting = [item for item in items if item.died_as_id is None]
    sent = (*OPEN, ItemState.DONE)
    waiting.sort(key=lambda item: (item.outcome != ReplayOutcome.DIED, item.state not in sent))
    for one in came:
        for item in waiting:
            if item.position in find_sent_positions(item.batch, {item.position: [one]}):
                waiting.remove(item)
                yield item, one.parked_message
                break


def find_sent_positions(
    batch: ReplayBatch, came: Mapping[int, Sequence[ReturnedMessage]]
) -> dict[int, int | None]:
    """The positions of the items that one of these messages came from, with the first message.

    Changes by deaths and replays are ignored, as are headers that steer a delay or count a
    consumer's failures. Libraries add headers to what they publish to an error queue: the same body
    under the same message id is the same message too. An item whose message was deleted cannot
    match.
    """
    items = ReplayItem.objects.filter(batch=batch.pk, attempts__gt=0).order_by()
    plain = items.filter(position__in=came, edit=None)
    found: dict[int, int | None] = {}
    for position, content in plain.values_list("position", "parked_message__content_id"):
        for one in came[position]:
            if one.content_id == content:
                found.setdefault(position, one.parked_message)
    unmatched = came.keys() - found.keys()
    if not unmatched:
        return found
    steering = find_steering_headers(batch)
    unmatched_items = items.filter(position__in=unmatched)
    for position, key, properties in _read_sent(batch, unmatched_items):
        for one in came[position]:
            if one.sha256 == key and _is_equal(properties, one.properties, steering):
                found.setdefault(position, one.parked_message)
    return found


def is_arrival(content: Content, seen_id: str, headers: Headers, steering: Collection[str]) -> bool:
    """Whether what a tap saw, with these headers and this content id, is this content."""
    make_headers = {name: headers[name] for name in steering if name in headers}
    sent = _drop_headers(content.properties, steering)
    properties = kept_by_streams(replace(sent, headers={**sent.headers, **make_headers}))
    return content_id(properties, content.body) == seen_id


def find_steering_headers(batch: ReplayBatch) -> frozenset[str]:
    """The headers that determine where or when a message goes, or count its failures."""
    names = {ATTEMPT_HEADER, DELAY_HEADER}
    if batch.mode == TargetMode.DELAY:
        for key in batch.routes.values_list("routing_key", flat=True)[:1]:
            try:
                route = find_delay_route(batch, key)
            except (OptionError, ParamsError):
                continue
            names |= {*route.headers, route.due_header} - {""}
    return frozenset(names)


def _read_sent(
    batch: ReplayBatch, items: QuerySet[ReplayItem]
) -> Iterator[tuple[int, str, Properties]]:
    """By position: the body's sha256 and the properties as they were sent."""
    columns = (
        "parked_message__body",
        "parked_message__properties",
        "edit__body",
        "edit__properties",
        "parked_message__body__data",
    )
    for position, key, raw, edited_key, edited, body in items.values_list("position", *columns):
        if edited is not None:
            yield position, edited_key, read_properties(bytes(edited))
        elif key is not None:
            # PostgreSQL's driver hands out memory.
            properties = read_properties(bytes(raw))
            sent = make_sent(batch, properties, bytes(body))
            if sent is None:
                yield position, key, properties
            else:
                yield position, hashlib.sha256(sent[1]).hexdigest(), sent[0]


def _is_equal(sent: Properties, came: Properties, ignored_headers: Collection[str]) -> bool:
    """Of two with equal bodies."""
    if sent.message_id and sent.message_id == came.message_id:
        return True
    return content_id(_drop_headers(sent, ignored_headers), b"") == content_id(
        _drop_headers(came, ignored_headers), b""
    )


def _drop_headers(properties: Properties, headers: Collection[str]) -> Properties:
    others = {name: value for name, value in properties.headers.items() if name not in headers}
    return replace(properties, headers=others)
