"""Carrying a started batch out, from the worker: every step committed before the next."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from analytics import facts
from delayboard.dead_letters.replay.batch import close_cancelled
from delayboard.dead_letters.replay.verdict import given_back
from delayboard.models import ItemState, ReplayBatch, ReplayItem
from delayboard.models.replay import OPEN
from topology import work
from topology.broker.consumer import getter
from topology.broker.errors import BrokerError, Nacked, Returned
from topology.broker.fields import FieldError
from topology.broker.management import PATIENCE_SECONDS, Management
from topology.broker.nearby import look_along
from topology.broker.observe import observe
from topology.broker.properties import strip_for_replay
from topology.broker.publisher import publisher
from topology.definitions import Definitions
from topology.message import REPLAY_HEADER, REPLAYS_HEADER, Message, Publish
from topology.models import Work, WorkState
from topology.provisioning.taps import breaks_stream_taps, lost_without_taps, tapped_exchanges
from topology.transfer.move import Moved, Step, move

LIMIT = 2000
HOLDING = timedelta(seconds=10)
RETRY_AFTER = timedelta(seconds=5)
LOOKS = 4
LOOK_AGAIN_AFTER = timedelta(seconds=2)
# So often a broken connection may leave the same message unsettled before it is given up.
TRIES = 3

GIVEN_UP = (
    f"The connection broke {TRIES} times while it was published, so it is left in the queue: "
    "it may have been published, or not."
)


def replay(claimed: Work, *, alive: Callable[[], None] = lambda: None) -> None:
    """Do the batch of a claimed Work to its end, or give it back when the broker fails.

    `alive` is called after each message.
    """
    lease = work.lease_of(claimed)
    batch = ReplayBatch.objects.select_related("broker").get(pk=claimed.subject)
    try:
        while _pass(batch, lease, alive):
            pass
    except work.Stopped as stopped:
        if lease.end(WorkState.CANCELLED, str(stopped)):
            close_cancelled(batch)
    except BrokerError as error:
        lease.give_back(str(error), after=RETRY_AFTER)
    else:
        _settle(batch, claimed, lease)


def _settle(batch: ReplayBatch, claimed: Work, lease: work.Lease) -> None:
    """End it, or look again a few times: another reader may hold a message for a moment."""
    missing = batch.items.filter(state__in=OPEN).count()
    if missing and claimed.attempts < LOOKS:
        said = f"{missing} of the chosen messages were not found yet; they are looked for again."
        lease.give_back(said, after=LOOK_AGAIN_AFTER)
        return
    _close_missing(batch)
    lease.end(WorkState.DONE)


def _pass(batch: ReplayBatch, lease: work.Lease, alive: Callable[[], None]) -> bool:
    """Go through the queue from its head; whether another pass could find more."""
    address = batch.broker.address
    with Management(address, seconds=PATIENCE_SECONDS) as management:
        journal = ItemJournal(batch, management)
        lease.pulse(journal.settled, journal.total)
        if journal.is_complete():
            return False

        def pulse() -> None:
            alive()
            lease.pulse(journal.settled, journal.total)

        moved = _move(batch, journal, pulse)
    return not moved.is_exhausted and moved.taken > 0


def _move(batch: ReplayBatch, journal: ItemJournal, pulse: Callable[[], None]) -> Moved:
    address = batch.broker.address
    with (
        publisher(address, f"replay {batch.pk}") as channel,
        getter(address, batch.queue) as source,
    ):
        return move(
            source,
            channel,
            journal,
            limit=LIMIT,
            holding=HOLDING,
            pulse=pulse,
        )


def _close_missing(batch: ReplayBatch) -> None:
    """What was looked for and not found: a confirmed one that is gone was acked by us."""
    now = timezone.now()
    batch.items.filter(state=ItemState.CONFIRMED).update(state=ItemState.DONE, ended_at=now)
    batch.items.filter(state=ItemState.PUBLISHING).update(
        state=ItemState.GONE,
        may_be_duplicated=True,
        ended_at=now,
        error="It left the queue while its publish was unsettled: it may have been published.",
    )
    batch.items.filter(state=ItemState.PENDING).update(
        state=ItemState.GONE,
        ended_at=now,
        error="It was not found near the head of the queue.",
    )


class ItemJournal:
    """The items of a batch as the journal of the move; every change is one commit."""

    def __init__(self, batch: ReplayBatch, management: Management) -> None:
        self._batch = batch
        self._management = management
        self._definitions = observe(management).definitions
        self._tapped = tapped_exchanges(self._definitions)
        self._open: dict[str, list[ReplayItem]] = {}
        self._messages: dict[int, Message] = {}
        self._own_replays = {str(key) for key in batch.items.values_list("replay_id", flat=True)}
        for item in batch.items.filter(state__in=OPEN):
            self._open.setdefault(item.content_id, []).append(item)
        self.total = batch.items.count()

    @property
    def settled(self) -> int:
        return self.total - sum(len(items) for items in self._open.values())

    def is_complete(self) -> bool:
        return self.settled == self.total

    def decide(self, message: Message) -> Step | None:
        """The next open item of this content.

        One that was begun before is published again with the same replay id, also when it was
        confirmed: this may be another message of equal content, and nothing is ever taken from
        the queue that this pass did not publish. What this batch itself sent is left alone.
        """
        waiting = self._open.get(message.content_id)
        if not waiting or message.tag(REPLAY_HEADER) in self._own_replays:
            return None
        item = waiting.pop(0)
        self._messages[item.pk] = message
        if item.state != ItemState.PENDING:
            self._set(item.pk, may_be_duplicated=True)
        if item.attempts >= TRIES:
            self._end(item.pk, ItemState.FAILED, GIVEN_UP)
            return None
        try:
            publish = _publish_of(item, message)
        except FieldError as error:
            self._end(item.pk, ItemState.FAILED, f"Its properties cannot be edited: {error}.")
            return None
        if why := breaks_stream_taps(self._definitions, publish) or given_back(
            self._definitions, publish
        ):
            self._end(item.pk, ItemState.FAILED, why)
            return None
        return Step(item.pk, publish)

    def check(self, publish: Publish) -> None:
        """At an exchange with a tap of ours a confirm may be the tap's alone, so look again."""
        if publish.exchange not in self._tapped:
            return
        if why := lost_without_taps(self._way_of(publish.exchange), publish):
            raise Returned(f"No queue but Delayboard's own tap took it: {why}.")

    def _way_of(self, exchange: str) -> Definitions:
        return look_along(self._management, self._definitions, exchange)

    def publishing(self, key: int) -> None:
        self._set(key, state=ItemState.PUBLISHING, attempts=F("attempts") + 1)

    def confirmed(self, key: int) -> None:
        item = ReplayItem.objects.get(pk=key)
        with transaction.atomic():
            self._set(key, state=ItemState.CONFIRMED)
            facts.state(
                kind="replayed",
                broker=self._batch.broker,
                message=self._messages[key],
                exchange=item.target_exchange,
                routing_key=item.target_key,
                queue=self._batch.queue,
                replay_id=str(item.replay_id),
                at=timezone.now(),
            )

    def done(self, key: int) -> None:
        self._end(key, ItemState.DONE, "")

    def refused(self, key: int, error: BrokerError) -> None:
        states = {Returned: ItemState.RETURNED, Nacked: ItemState.NACKED}
        self._end(key, states.get(type(error), ItemState.FAILED), str(error))

    def _end(self, key: int, state: ItemState, error: str) -> None:
        self._set(key, state=state, error=error, ended_at=timezone.now())
        self._messages.pop(key, None)

    def _set(self, key: int, **values: Any) -> None:
        ReplayItem.objects.filter(pk=key).update(**values)


def _publish_of(item: ReplayItem, message: Message) -> Publish:
    """The same message without what dying added, with our replay id and the count of replays."""
    before = message.headers.get(REPLAYS_HEADER)
    replays = before + 1 if isinstance(before, int) and not isinstance(before, bool) else 1
    properties = strip_for_replay(
        message.properties,
        {REPLAY_HEADER: str(item.replay_id), REPLAYS_HEADER: replays},
    )
    return Publish(item.target_exchange, item.target_key, properties, message.body)
