"""Carrying a started batch out, from the worker: every step committed before the next."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone

from analytics import facts
from delayboard.dead_letters.replay.batch import close_cancelled
from delayboard.models import ItemState, ReplayBatch, ReplayItem
from delayboard.models.replay import OPEN
from topology import work
from topology.broker.address import AddressError
from topology.broker.consumer import getter
from topology.broker.errors import BrokerError, Nacked, Returned
from topology.broker.fields import FieldError
from topology.broker.management import Management
from topology.broker.observe import observe
from topology.broker.properties import strip_for_replay
from topology.broker.publisher import publisher
from topology.definitions import TAP_PREFIX, Definitions
from topology.message import REPLAY_HEADER, REPLAYS_HEADER, Message, Publish
from topology.models import Work, WorkState
from topology.models.secrets import DecryptionError
from topology.routing.walk import walk
from topology.transfer.move import Moved, Step, move

LIMIT = 2000
HOLDING = timedelta(seconds=10)
RETRY_AFTER = timedelta(seconds=5)


def replay(claimed: Work) -> None:
    """Do the batch of a claimed Work to its end, or give it back when the broker fails."""
    lease = work.lease_of(claimed)
    batch = ReplayBatch.objects.select_related("broker").get(pk=claimed.subject)
    try:
        while _pass(batch, lease):
            pass
    except work.Stopped as stopped:
        if lease.end(WorkState.CANCELLED, str(stopped)):
            close_cancelled(batch)
    except (BrokerError, AddressError, DecryptionError) as error:
        lease.give_back(str(error), after=RETRY_AFTER)
    else:
        _close_missing(batch)
        lease.end(WorkState.DONE)


def _pass(batch: ReplayBatch, lease: work.Lease) -> bool:
    """Go through the queue from its head; whether another pass could find more."""
    address = batch.broker.address
    with Management(address) as management:
        journal = ItemJournal(batch, management)
        lease.pulse(journal.settled, journal.total)
        if journal.is_complete():
            return False
        moved = _move(batch, journal, lease)
    return not moved.is_exhausted and moved.taken > 0


def _move(batch: ReplayBatch, journal: ItemJournal, lease: work.Lease) -> Moved:
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
            pulse=lambda: lease.pulse(journal.settled, journal.total),
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
        self._tapped = tapped_exchanges(observe(management).definitions)
        self._open: dict[str, list[ReplayItem]] = {}
        self._messages: dict[int, Message] = {}
        for item in batch.items.filter(state__in=OPEN):
            self._open.setdefault(item.content_id, []).append(item)
        self.total = batch.items.count()

    @property
    def settled(self) -> int:
        return self.total - sum(len(items) for items in self._open.values())

    def is_complete(self) -> bool:
        return self.settled == self.total

    def decide(self, message: Message) -> Step | None:
        """The next open item of this content; one that was confirmed before is only acked."""
        waiting = self._open.get(message.content_id)
        if not waiting:
            return None
        item = waiting.pop(0)
        self._messages[item.pk] = message
        if item.state == ItemState.CONFIRMED:
            return Step(item.pk, None)
        if item.state == ItemState.PUBLISHING:
            ReplayItem.objects.filter(pk=item.pk).update(may_be_duplicated=True)
        try:
            return Step(item.pk, _publish_of(item, message))
        except FieldError as error:
            self._end(item.pk, ItemState.FAILED, f"Its properties cannot be edited: {error}.")
            return None

    def check(self, publish: Publish) -> None:
        """At an exchange with a tap of ours a confirm may be the tap's alone, so look again."""
        if publish.exchange not in self._tapped:
            return
        definitions = observe(self._management).definitions.without_taps()
        walked = walk(
            definitions, publish.exchange, publish.routing_key, headers=publish.properties.headers
        )
        if not walked.is_routed:
            raise Returned(f"No queue but Delayboard's own tap took it: {walked.outcomes[0].why}.")

    def publishing(self, key: int) -> None:
        self._set(key, state=ItemState.PUBLISHING)

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


def tapped_exchanges(definitions: Definitions) -> frozenset[str]:
    """The exchanges from which a tap of ours can be reached."""
    sources = {b.source for b in definitions.bindings if b.destination.startswith(TAP_PREFIX)}
    while True:
        wider = sources | {b.source for b in definitions.bindings if b.destination in sources}
        if wider == sources:
            return frozenset(sources)
        sources = wider


def _publish_of(item: ReplayItem, message: Message) -> Publish:
    """The same message without what dying added, with our replay id and the count of replays."""
    before = message.headers.get(REPLAYS_HEADER)
    replays = before + 1 if isinstance(before, int) and not isinstance(before, bool) else 1
    properties = strip_for_replay(
        message.properties,
        {REPLAY_HEADER: str(item.replay_id), REPLAYS_HEADER: replays},
    )
    return Publish(item.target_exchange, item.target_key, properties, message.body)
