"""Replays of numbered messages into a real queue, and what truly arrived there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial

from django.utils import timezone

from delayboard.dead_letters.replay import batch_state
from delayboard.models import ItemState, MessageGroup, ParkedMessage, ParkedState, ReplayBatch
from delayboard.models.replay import COUNTED, ReplayRoute
from delayboard.worker.supervise import keep_one_running
from delayboard.worker.tasks import replayer
from tests.brokers import Vhost
from tests.builders import address_of, eventually, make_broker, running
from tests.delayboard.builders import a_message, a_route, frozen, parked
from topology.broker.amqp.consumer import Consumer
from topology.broker.amqp.depths import live_depths
from topology.broker.management.client import Management
from topology.definitions import Arguments, ArgumentValue, Queue
from topology.models import Broker, Work

TARGET = "orders"


def declare(vhost: Vhost, kind: str, **arguments: ArgumentValue) -> None:
    """The queue that is replayed to."""
    stated = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    with Management(address_of(vhost)) as management:
        management.declare_queue(
            Queue(TARGET, arguments=Arguments({"x-queue-type": kind, **stated}))
        )


def parked_messages(broker: Broker, number: int, *, size: int = 1) -> list[ParkedMessage]:
    """m0, m1 and so on, some with equal bodies if they are small."""
    found = []
    for start in range(0, number, 1000):
        found += parked(
            broker,
            *[
                a_message(
                    b"%04d" % (count if size > 1 else count % 100) * size,
                    message_id=f"m{count}",
                    delivery_mode=2,
                )
                for count in range(start, min(number, start + 1000))
            ],
        )
    return found


def a_replay(
    vhost: Vhost,
    number: int,
    *targets: ReplayRoute,
    of: Sequence[ParkedMessage] = (),
    size: int = 1,
    **stated: object,
) -> ReplayBatch:
    """A started one, of new messages if `of` names none."""
    broker = of[0].broker if of else make_broker(vhost)
    found = of or parked_messages(broker, number, size=size)
    batch = frozen(None, broker, found, *(targets or (a_route("", TARGET),)), **stated)
    batch_state.start(None, batch, despite_verdict=True)
    return batch


@contextmanager
def replaying(number: int = 1) -> Iterator[None]:
    """So many replayers in threads, for the length of a block."""
    with ExitStack() as stack:
        for count in range(1, number + 1):
            task = replayer(f"test {count}", count)
            stack.enter_context(running(partial(keep_one_running, task)))
        yield


def fresh(batch: ReplayBatch) -> ReplayBatch:
    return ReplayBatch.objects.select_related("work").get(pk=batch.pk)


def has(batch: ReplayBatch, state: str) -> bool:
    return fresh(batch).state == state


def has_done(batch: ReplayBatch, number: int) -> bool:
    row = fresh(batch)
    return row.done + row.failed >= number


def depth(vhost: Vhost) -> int:
    """How many are in the target."""
    return live_depths(address_of(vhost), [TARGET])[TARGET]


def depth_at_rest(vhost: Vhost) -> int:
    """The same when what a dead process had sent has come."""
    seen = [depth(vhost)]

    def stands_still() -> bool:
        seen.append(depth(vhost))
        return seen[-1] == seen[-2]

    eventually(stands_still, "what was sent has come")
    return seen[-1]


def is_at(vhost: Vhost, number: int) -> bool:
    return depth(vhost) >= number


def unsettled(batch: ReplayBatch) -> int:
    return batch.items.filter(state=ItemState.PUBLISHING).count()


def forget_leases() -> None:
    """The next worker would wait until the dead one's lease has run out; a test does not."""
    Work.objects.update(leased_until_at=timezone.now() - timedelta(seconds=1))


def arrived(vhost: Vhost) -> Counter[str]:
    """What is taken out of the target, by message id."""
    names: Counter[str] = Counter()
    while depth(vhost):
        with Consumer(address_of(vhost), TARGET) as consumer:
            while found := consumer.batch(limit=1000, limit_bytes=10**8, wait=1.0):
                names.update(one.message.properties.message_id or "" for one in found)
                consumer.ack(through=found[-1].tag)
            # What has come meanwhile goes back and is taken in the next round.
            consumer.give_back()
    return names


def adds_up(batch: ReplayBatch) -> None:
    """Items, the counts of the batch, messages and the counts of groups all say the same."""
    row = fresh(batch)
    assert sum(row.counts().values()) == row.selected == batch.items.count()
    for state in COUNTED:
        assert batch.items.filter(state=state).count() == getattr(row, state), state
    assert batch.items.filter(may_be_duplicated=True).count() == row.doubled
    for group in MessageGroup.objects.all():
        for parked_message_state in ParkedState:
            rows = ParkedMessage.objects.filter(group=group, state=parked_message_state)
            assert rows.count() == getattr(group, parked_message_state), parked_message_state


def lost_nothing(batch: ReplayBatch, names: Counter[str]) -> None:
    """Each message arrived or is parked; one that is there twice is marked."""
    items = batch.items.select_related("parked_message")
    for item in items:
        assert item.parked_message is not None
        if item.state == ItemState.DONE:
            assert names[item.message_id] >= 1, item.message_id
            assert item.parked_message.state == ParkedState.REPLAYED
        else:
            assert item.parked_message.state in (ParkedState.PARKED, ParkedState.REPLAYING)
        sent = 1 if item.state == ItemState.DONE else 0
        assert names[item.message_id] <= sent or item.may_be_duplicated, item.message_id
