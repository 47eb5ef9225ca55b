"""Which items of a replay were seen again: arriving, by taps, or dead; by replay id and content."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from operator import itemgetter
from typing import NamedTuple
from uuid import UUID

import orjson
from django.db import connection, transaction
from django.db.models import BooleanField, F, QuerySet
from django.db.models.expressions import RawSQL

from analytics.models import Firehose, ScheduledMessage
from analytics.models.scheduled_message import LEFT, REPLAYED
from delayboard.dead_letters.parked.store import ReturnedMessage, change_parked_messages
from delayboard.dead_letters.replay import claims
from delayboard.dead_letters.replay.content import Content, make_sent, read_contents
from delayboard.dead_letters.replay.options import OptionError
from delayboard.dead_letters.replay.targets import find_delay_route
from delayboard.models import ItemState, ParkedState, ReplayBatch, ReplayItem, TargetMode
from delayboard.models.replay import OPEN, ReplayOutcome, parse_replay_id, replay_id
from topology.broker.properties.read import read_properties
from topology.deaths import read_history
from topology.definitions import DELAY_HEADER
from topology.message import ATTEMPT_HEADER, Headers, Properties, content_id, kept_by_streams
from topology.models import Broker, State, Topology
from topology.patterns.pattern import ParamsError

_NAMES = ("outcome", "outcome_at", "died_as_id")
_FIELDS = {field.attname: field for field in ReplayItem._meta.concrete_fields}
CHUNK = 500
OPEN_OUTCOMES = ("", ReplayOutcome.DELAYED)
_SEEN = (
    "tracking_id",
    "message_id",
    "content_id",
    "size",
    "entered_at",
    "due_at",
    "left_at",
    "caught_up",
    "headers_json",
    "topology_id",
    "attempt",
)
# Condition in the exact words of the index items_to_follow: with values apart SQLite does not use
# it.
_IS_FOLLOWED = RawSQL(
    "state IN ('done', 'unknown') AND outcome IN ('', 'delayed')", (), output_field=BooleanField()
)


# Condition in the exact words of the index items_by_shared_replay_id.
_IS_SHARED = RawSQL("shared_replay_id > ''", (), output_field=BooleanField())


class Item(NamedTuple):
    """The columns of an item that are needed."""

    pk: int
    position: int
    parked_message_id: int | None
    outcome: str
    message_id: str
    size: int
    shared_replay_id: str
    state: str


def is_recorded(batch: ReplayBatch) -> bool:
    """Whether anything on its broker records what passes."""
    if Firehose.objects.filter(broker=batch.broker_id).exists():
        return True
    applied = Topology.objects.filter(broker=batch.broker_id, state=State.APPLIED)
    return any(row.has_tap for row in applied)


def read_open_items(batch: ReplayBatch, after: int) -> list[Item]:
    """The next ones behind that position of which nothing more was seen, at most CHUNK."""
    rows = batch.items.filter(_IS_FOLLOWED, position__gt=after).order_by("position")
    return [Item(*values) for values in rows.values_list(*Item._fields)[:CHUNK]]


def record_arrivals(batch: ReplayBatch, items: Iterable[Item]) -> int:
    """Write down which of these were seen to arrive; how many."""
    named: dict[str, list[Item]] = {}
    for item in items:
        name = item.shared_replay_id or replay_id(batch.uid, item.position)
        named.setdefault(f"{REPLAYED}{name}", []).append(item)
    moments = {item.pk: at for item, at in _find_arrived(batch, named)}
    if not moments:
        return 0
    unsettled = {
        item.parked_message_id
        for some in named.values()
        for item in some
        if item.pk in moments
        and item.parked_message_id
        and (item.outcome == ReplayOutcome.DELAYED or item.state == ItemState.UNKNOWN)
    }
    with transaction.atomic():
        mark_replayed(batch, unsettled, max(moments.values()))
        rows = ReplayItem.objects.filter(pk__in=moments, outcome__in=OPEN_OUTCOMES)
        fresh = list(rows.order_by("pk").select_for_update().values_list("pk", flat=True))
        write_marks([Mark(item, ReplayOutcome.DELIVERED, moments[item]) for item in fresh])
        count_arrived(batch.pk, fresh)
        ReplayBatch.objects.filter(pk=batch.pk).update(delivered=F("delivered") + len(fresh))
    return len(fresh)


def _find_arrived(
    batch: ReplayBatch, named: Mapping[str, Sequence[Item]]
) -> list[tuple[Item, datetime]]:
    """Which of these came out of a delay or past every one, or were refused by a consumer.

    What names an item and is another message is passed over.
    """
    rows = ScheduledMessage.objects.filter(broker=batch.broker_id, tracking_id__in=named)
    arrived: dict[str, list[tuple[datetime, ScheduledMessage]]] = {}
    # Written as the index has it, or the database does not use the index.
    for row in rows.exclude(tracking_id="").only(*_SEEN):
        if (at := _find_arrival_time(row)) is not None:
            arrived.setdefault(row.tracking_id, []).append((at, row))
    found: list[tuple[Item, datetime]] = []
    nameless: list[tuple[Item, datetime, ScheduledMessage]] = []
    for item, at, row in _pair_items(batch, named, arrived):
        if (row.message_id, row.size) != (item.message_id, item.size):
            continue
        if item.message_id:
            found.append((item, at))
        else:
            nameless.append((item, at, row))
    return found + _match_contents(batch, nameless)


def _pair_items(
    batch: ReplayBatch,
    named: Mapping[str, Sequence[Item]],
    arrived: Mapping[str, Sequence[tuple[datetime, ScheduledMessage]]],
) -> Iterator[tuple[Item, datetime, ScheduledMessage]]:
    """Each item with what was seen under its replay id.

    Of items that share one, as many have arrived as were seen in one round of one topology. Those
    of which the end is known already are among them.
    """
    texts = [text.removeprefix(REPLAYED) for text in arrived]
    sharing = _find_sharing(batch.broker_id, texts) if texts else {}
    for text, seen in arrived.items():
        if text.removeprefix(REPLAYED) not in sharing:
            yield from ((named[text][0], at, row) for at, row in seen)
            continue
        items = sharing[text.removeprefix(REPLAYED)]
        known = sum(item.outcome in (ReplayOutcome.DELIVERED, ReplayOutcome.DIED) for item in items)
        rounds: dict[tuple[int | None, int], list[tuple[datetime, ScheduledMessage]]] = {}
        for at, row in seen:
            rounds.setdefault((row.topology_id, row.attempt), []).append((at, row))
        most = max(map(len, rounds.values()))
        largest = next(some for some in rounds.values() if len(some) == most)
        fresh = sorted(largest, key=itemgetter(0))[known:]
        yield from ((item, *one) for item, one in zip(named[text], fresh, strict=False))


def _match_contents(
    batch: ReplayBatch, seen: Sequence[tuple[Item, datetime, ScheduledMessage]]
) -> list[tuple[Item, datetime]]:
    """The items without a message id all of whose content is what was sent."""
    if not seen:
        return []
    steering = find_steering_headers(batch)
    sent = read_contents([(item.pk, item.parked_message_id) for item, _, _ in seen], batch)
    return [
        (item, at)
        for item, at, row in seen
        if item.pk in sent
        and is_arrival(sent[item.pk], row.content_id, orjson.loads(row.headers_json), steering)
    ]


def _find_arrival_time(row: ScheduledMessage) -> datetime | None:
    """None as long as it was only recorded on its way into its delay.

    A replay begins without deaths, so a failure in its history proves that a consumer had it.
    """
    if row.ending == LEFT:
        return row.left_at
    has_failed = read_history(orjson.loads(row.headers_json)).first_failure
    return row.entered_at if has_failed else None


def mark_replayed(batch: ReplayBatch, parked_messages: Iterable[int], at: datetime) -> None:
    """These messages were sent to a delay, or may have arrived, and have. In the caller's
    transaction.
    """
    change_parked_messages(
        parked_messages, claims.FREE, ParkedState.REPLAYED, by=batch.started_by_id, at=at
    )


class Mark(NamedTuple):
    """`died_as` is the id of a message."""

    item: int
    outcome: str
    at: datetime
    died_as: int | None = None


def write_marks(marks: Sequence[Mark]) -> None:
    """Write the marks in the caller's transaction, which has locked the items."""
    if not marks:
        return
    quoted = connection.ops.quote_name
    sets = ", ".join(f"{quoted(str(_FIELDS[name].column))} = %s" for name in _NAMES)
    table, key = quoted(ReplayItem._meta.db_table), quoted("id")
    moment = connection.ops.adapt_datetimefield_value
    with connection.cursor() as cursor:
        cursor.executemany(
            f"UPDATE {table} SET {sets} WHERE {key} = %s",  # noqa: S608
            [(one.outcome, moment(one.at), one.died_as, one.item) for one in marks],
        )


def count_arrived(batch: int, items: Collection[int]) -> None:
    """What may have arrived has: these items count as done. In the caller's transaction, which has
    locked them.
    """
    unknown = ReplayItem.objects.filter(pk__in=items, state=ItemState.UNKNOWN)
    if number := unknown.update(state=ItemState.DONE):
        rows = ReplayBatch.objects.filter(pk=batch)
        rows.update(done=F("done") + number, unknown=F("unknown") - number)


def _find_sharing(broker: int, names: Collection[str]) -> dict[str, list[ReplayItem]]:
    """The items that were published under each of these replay ids, where several share it.

    With their batches, in the order of their keys: the item that has the id of its own is first.
    """
    # Anybody can write the header: PostgreSQL takes no NUL, for one.
    real = {name: parsed for name in names if (parsed := parse_replay_id(name)) is not None}
    sent = ReplayItem.objects.filter(batch__broker=broker, attempts__gt=0)
    sent = sent.select_related("batch").defer("batch__parked_messages")
    found: dict[str, list[ReplayItem]] = {}
    for item in sent.filter(_IS_SHARED, shared_replay_id__in=real).order_by("pk"):
        found.setdefault(item.shared_replay_id, []).append(item)
    for name, items in found.items():
        uid, position = real[name]
        owner = sent.filter(batch__uid=uid, position=position, shared_replay_id="")
        items[:0] = owner
    return found


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
    sharing = _find_sharing(broker.pk, [name for name, _ in named])
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
    """Position, sha256 of the body, and properties of each item as they were sent."""
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
    """Whether two messages with equal bodies are equal."""
    if sent.message_id and sent.message_id == came.message_id:
        return True
    return content_id(_drop_headers(sent, ignored_headers), b"") == content_id(
        _drop_headers(came, ignored_headers), b""
    )


def _drop_headers(properties: Properties, headers: Collection[str]) -> Properties:
    others = {name: value for name, value in properties.headers.items() if name not in headers}
    return replace(properties, headers=others)
