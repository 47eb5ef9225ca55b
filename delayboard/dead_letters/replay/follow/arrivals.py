"""Which messages of a replay taps saw arrive: past every delay, or failing in a consumer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from operator import itemgetter
from typing import NamedTuple

import orjson
from django.db import connection, transaction
from django.db.models import BooleanField, F
from django.db.models.expressions import RawSQL

from analytics.models import Firehose, ScheduledMessage
from analytics.models.scheduled_message import LEFT, REPLAYED
from delayboard.dead_letters.parked.states import change_parked_messages
from delayboard.dead_letters.replay.batch import claims, shared_ids
from delayboard.dead_letters.replay.content import read_contents
from delayboard.dead_letters.replay.follow import match_messages
from delayboard.models import ItemState, ParkedState, ReplayBatch, ReplayItem
from delayboard.models.replay import ReplayOutcome, replay_id
from topology.deaths import read_history
from topology.models import State, Topology

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
# The very words of the index items_to_follow: with values apart SQLite does not use it.
_IS_FOLLOWED = RawSQL(
    "state IN ('done', 'unknown') AND outcome IN ('', 'delayed')", (), output_field=BooleanField()
)


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
    sharing = shared_ids.find_sharing(batch.broker_id, texts) if texts else {}
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
    """Those that have no message id, and all of whose content is what was sent."""
    if not seen:
        return []
    steering = match_messages.find_steering_headers(batch)
    sent = read_contents([(item.pk, item.parked_message_id) for item, _, _ in seen], batch)
    return [
        (item, at)
        for item, at, row in seen
        if item.pk in sent
        and match_messages.is_arrival(
            sent[item.pk], row.content_id, orjson.loads(row.headers_json), steering
        )
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
    """In the caller's transaction, which has locked the items."""
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
