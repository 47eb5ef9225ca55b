"""What tests of preparing share: messages, a broker known without being asked, works done here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from threading import Event
from typing import Any

from django.contrib.auth.models import User
from django.utils import timezone

from delayboard.dead_letters.replay import make_draft
from delayboard.dead_letters.replay.batch_state import KIND_PREPARE
from delayboard.dead_letters.replay.options import Options
from delayboard.models import (
    DeadLetterQueue,
    MessageGroup,
    ParkedMessage,
    ReplayBatch,
    ReplayItem,
    ReplayRoute,
    TargetMode,
)
from tests.delayboard.builders import TAPPED, a_death, a_message, deaths_header, parked, shop
from tests.topology.builders import a_queue, a_snapshot
from topology import snapshots, work
from topology.definitions import Definitions
from topology.models import Broker, Work
from topology.snapshot import QueueNumbers
from topology.snapshots import Latest

PLAIN = Options()
TYPED = Options(mode=TargetMode.TYPED, exchange="orders", key="orders")
FEW = Options(mode=TargetMode.TYPED, key="few")


def know(
    broker: Broker, definitions: Definitions = TAPPED, *, error: str = "", **more: Any
) -> None:
    """This process has seen the broker, for longer than any test takes."""
    at = datetime.now(UTC) + timedelta(days=1)
    snapshots._latest[broker.pk] = Latest(a_snapshot(definitions, **more), at, error)


@contextmanager
def known(broker: Broker, definitions: Definitions = TAPPED) -> Iterator[None]:
    know(broker, definitions)
    yield
    snapshots.forget(broker.pk)


def work_off(
    batch: ReplayBatch, *, stop: Event | None = None, alive: Callable[[], None] = lambda: None
) -> Work:
    """Let a worker do it once; the work as it is then, and the batch too."""
    claimed = work.claim((KIND_PREPARE,), "w1")
    assert claimed is not None
    assert claimed.subject == batch.pk
    work.attempt(make_draft.prepare_draft, claimed, stop=stop or Event(), alive=alive)
    batch.refresh_from_db()
    claimed.refresh_from_db()
    return claimed


def parked_messages_of(batch: ReplayBatch) -> list[int | None]:
    """In their positions, which must be 1, 2, 3."""
    rows = list(batch.items.values_list("position", "parked_message"))
    assert [position for position, _ in rows] == list(range(1, len(rows) + 1))
    return [parked_message for _, parked_message in rows]


def routes_of(batch: ReplayBatch) -> dict[tuple[str, str, str], int]:
    """How many items each route has, by exchange, key and ending; it counts them rightly."""
    found = {}
    for route in batch.routes.filter(items_number__gt=0):
        assert route.items_number == ReplayItem.objects.filter(route=route).count()
        found[route.exchange, route.routing_key, route.ending] = route.items_number
    return found


def some(broker: Broker, number: int, **headers: object) -> list[int]:
    messages = [
        a_message(str(place).encode(), {**deaths_header(a_death()), **headers})
        for place in range(number)
    ]
    return [parked_message.pk for parked_message in parked(broker, *messages)]


def group_of(key: int) -> MessageGroup:
    return ParkedMessage.objects.get(pk=key).group


def nothing_was_made() -> bool:
    made = (ReplayBatch, ReplayItem, ReplayRoute, Work)
    return not any(model.objects.exists() for model in made)


def confirm(user: User, broker: Broker, queue: str = "dead") -> None:
    DeadLetterQueue.objects.create(
        broker=broker, queue=queue, is_confirmed=True, decided_by=user, decided_at=timezone.now()
    )


def bounded(broker: Broker, has: int | None, **arguments: Any) -> None:
    numbers = {} if has is None else {"few": QueueNumbers(messages=has, ready=has)}
    ends = ("few", "dead", "other")
    declared = [a_queue(name, **arguments if name == "few" else {}) for name in ends]
    know(broker, shop(*declared), numbers=numbers)
