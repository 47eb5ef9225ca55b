"""One followed batch: what taps and looks tell of its messages, until its time is over."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

import orjson
from django.db import transaction
from django.db.models import F, Q

from analytics.models import Firehose, ScheduledMessage
from analytics.models.scheduled_message import REPLAYED
from delayboard.dead_letters import browse
from delayboard.dead_letters.replay import marks, seeing
from delayboard.dead_letters.replay.marks import Mark
from delayboard.dead_letters.replay.seeing import Scene
from delayboard.dead_letters.states import change_letters
from delayboard.models import ItemState, LetterState, ReplayBatch, ReplayItem
from delayboard.models.replay import ENDED_BATCH, Outcome, Source, replay_id
from topology import latest
from topology.broker.errors import BrokerError
from topology.deaths import read_history
from topology.message import REPLAY_HEADER
from topology.models import State, Topology

# So long after its last publish a batch is followed at least, and so much longer than its
# messages may take to die again.
LEAST = timedelta(minutes=10)
SLACK = timedelta(minutes=1)
CHUNK = 500
# In one pass of one batch.
MOST_ITEMS = 5000
SCENE_LASTS = timedelta(seconds=30)
LOOK_EVERY = timedelta(seconds=30)
MOST_LOOKS = 3
OPEN_OUTCOMES = ("", Outcome.HANDED)


class Item(NamedTuple):
    pk: int
    position: int
    letter: int | None
    outcome: str


def open_batches() -> list[ReplayBatch]:
    """Those that were started and are followed still."""
    is_open = ~Q(state__in=ENDED_BATCH) | Q(followed_to=None) | Q(followed_to__lte=F("state_at"))
    rows = ReplayBatch.objects.filter(is_open, source=Source.JOURNAL, started_at__isnull=False)
    return list(rows.select_related("broker").defer("letters").order_by("pk"))


@dataclass
class Follower:
    """What is remembered of a batch between two passes; a new one finds it out again.

    `position` is how far its items were looked at in this round, `scene` what its broker was like.
    """

    position: int = 0
    scene: Scene | None = None
    scene_at: datetime | None = None
    looked_at: datetime | None = None
    _has_delays: bool | None = field(default=None)

    def arrivals(self, batch: ReplayBatch) -> int:
        """Write down which of the next open items were seen to arrive; how many."""
        if not _is_recorded(batch):
            return 0
        number = 0
        for _ in range(MOST_ITEMS // CHUNK):
            items = _open_items(batch, self.position)
            number += _arrived(batch, items)
            self.position = items[-1].position if len(items) == CHUNK else 0
            if not self.position:
                break
        return number

    def resolve(self, batch: ReplayBatch, now: datetime) -> None:
        """What was handed to a delay and died again has arrived: its letter is replayed."""
        if self._has_delays is None:
            self._has_delays = batch.routes.filter(after_ms__gt=0).exists()
        if not self._has_delays:
            return
        died = batch.items.filter(
            outcome=Outcome.DIED, letter__state=LetterState.HANDED, route__after_ms__gt=0
        )
        letters = [key for key in died.values_list("letter_id", flat=True)[:CHUNK] if key]
        if letters:
            with transaction.atomic():
                _replayed(batch, letters, now)

    def looked(self, batch: ReplayBatch, now: datetime) -> set[str]:
        """Replay ids in its dead-letter queues that nobody parks, where looks are free."""
        if self.looked_at is not None and now - self.looked_at < LOOK_EVERY:
            return set()
        scene = self._scene(batch, now)
        self.looked_at = now
        found: set[str] = set()
        living = batch.items.filter(state=ItemState.DONE).exclude(outcome=Outcome.DIED)
        if scene is None or not living.exists():
            return found
        queues = seeing.free_to_look(batch.broker, scene)
        full = [queue for queue in queues if scene.snapshot.numbers[queue.name].messages]
        for queue in full[:MOST_LOOKS]:
            try:
                look = browse.look(batch.broker, queue, scene.snapshot)
            except BrokerError:
                continue
            found |= {letter.message.tag(REPLAY_HEADER) for letter in look.letters}
        return found - {""}

    def is_over(self, batch: ReplayBatch, now: datetime) -> bool:
        """Whether nothing more can be expected of its messages, as far as anybody knows."""
        if not batch.is_ended or now < batch.state_at + LEAST:
            return False
        scene = self._scene(batch, now)
        if scene is None:
            return now > batch.state_at + seeing.LONGEST_ROUND + SLACK
        return now > batch.state_at + seeing.round_of(batch, scene) + SLACK

    def _scene(self, batch: ReplayBatch, now: datetime) -> Scene | None:
        """None while the broker does not answer."""
        if self.scene_at is None or now - self.scene_at > SCENE_LASTS:
            self.scene_at = now
            known = latest.fresh(batch.broker)
            snapshot = known.snapshot if known.is_reachable else None
            self.scene = seeing.scene(batch, snapshot) if snapshot else None
        return self.scene


def close(batch: ReplayBatch, now: datetime) -> None:
    """Its time is over: of what was not seen nothing more is expected.

    What was handed to a delay stays so: that is all that is known of it.
    """
    for start in range(0, batch.selected, MOST_ITEMS):
        batch.items.filter(
            position__gt=start,
            position__lte=start + MOST_ITEMS,
            state=ItemState.DONE,
            outcome="",
        ).update(outcome=Outcome.UNSEEN, outcome_at=now)
    ReplayBatch.objects.filter(pk=batch.pk).update(followed_to=now)


def _is_recorded(batch: ReplayBatch) -> bool:
    if Firehose.objects.filter(broker=batch.broker_id).exists():
        return True
    applied = Topology.objects.filter(broker=batch.broker_id, state=State.APPLIED)
    return any(row.has_tap for row in applied)


def _open_items(batch: ReplayBatch, after: int) -> list[Item]:
    rows = batch.items.filter(
        position__gt=after, state=ItemState.DONE, outcome__in=OPEN_OUTCOMES
    ).order_by("position")
    columns = rows.values_list("pk", "position", "letter_id", "outcome")
    return [Item(*values) for values in columns[:CHUNK]]


def _arrived(batch: ReplayBatch, items: Iterable[Item]) -> int:
    named = {f"{REPLAYED}{replay_id(batch.uid, item.position)}": item for item in items}
    moments = {named[name].pk: at for name, at in _seen(batch, named)}
    if not moments:
        return 0
    handed = {
        item.letter
        for item in named.values()
        if item.pk in moments and item.letter and item.outcome == Outcome.HANDED
    }
    with transaction.atomic():
        _replayed(batch, handed, max(moments.values()))
        rows = ReplayItem.objects.filter(pk__in=moments, outcome__in=OPEN_OUTCOMES)
        fresh = list(rows.order_by("pk").select_for_update().values_list("pk", flat=True))
        marks.write([Mark(item, Outcome.DELIVERED, moments[item]) for item in fresh])
        ReplayBatch.objects.filter(pk=batch.pk).update(delivered=F("delivered") + len(fresh))
    return len(fresh)


def _seen(batch: ReplayBatch, named: Mapping[str, Item]) -> Iterator[tuple[str, datetime]]:
    """Which of these came out of a delay or past every one, or were refused by a consumer."""
    rows = ScheduledMessage.objects.filter(broker=batch.broker_id, tracking_id__in=named)
    columns = ("tracking_id", "entered_at", "left_at", "headers_json")
    # Said as the index has it, or the index is not used.
    for name, entered, left, headers in rows.exclude(tracking_id="").values_list(*columns):
        if left is not None:
            yield name, left
        elif entered is not None and _has_failed(headers):
            yield name, entered


def _has_failed(headers_json: str) -> bool:
    """Whether a consumer had it, who refused it: a replay begins without deaths."""
    return read_history(orjson.loads(headers_json)).first_failure is not None


def _replayed(batch: ReplayBatch, letters: Iterable[int], at: datetime) -> None:
    change_letters(
        letters, (LetterState.HANDED,), LetterState.REPLAYED, by=batch.started_by_id, at=at
    )
