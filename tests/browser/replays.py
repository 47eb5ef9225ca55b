"""Replays as they are looked at: in each state, with each ending."""

from __future__ import annotations

from datetime import timedelta

from django.utils import timezone
from playwright.sync_api import Page

from delayboard.dead_letters.replay.claims import DISCARDED
from delayboard.models import BatchState, ItemState, ParkedMessage, ReplayBatch
from tests.browser import rows
from tests.browser.sights import Scene, press, then
from topology.models import Broker, Work, WorkState
from topology.work import LEASE

STAYED = (
    "30\u202f000 messages stay in “orders-parked”. The first: The exchange “(default)” has no "
    "queue for the key “orders”."
)
ALL_ENDINGS = (
    ItemState.DONE,
    ItemState.RETURNED,
    ItemState.DONE,
    ItemState.UNKNOWN,
    ItemState.FAILED,
    ItemState.CANCELLED,
)


def add(scene: Scene, broker: Broker, names: list[str]) -> None:
    """A replay in each state, and the editing of one message."""
    user, middle = scene.user, [ItemState.DONE, ItemState.PENDING, ItemState.RETURNED]
    draft = rows.batch(broker, user, names, BatchState.DRAFT, [ItemState.PENDING])
    scene.add("replay-draft", "replay_batch", draft.pk)
    scene.add("replay-options", "replay_batch", draft.pk, act=_unfold)
    _add_repeats(scene, broker, names)
    wrong = then(_unfold, _type_nothing)
    scene.add("replay-options-refused", "replay_batch", draft.pk, act=wrong)
    scene.add("replay-item", "replay_item", draft.pk, 2)
    for state in (
        BatchState.PREPARING,
        BatchState.WAITING,
        BatchState.RUNNING,
        BatchState.WATCHING,
        BatchState.PAUSED,
        BatchState.CANCELLED,
    ):
        items = {
            BatchState.WAITING: [ItemState.PENDING],
            BatchState.CANCELLED: [ItemState.CANCELLED],
        }.get(state, middle)
        made = rows.batch(broker, user, names, state, items)
        scene.add(f"replay-{state}", "replay_batch", made.pk)
    _add_endings(scene, broker, names)
    scene.add("replays-open", "replays", query={"open": "1"})


def _add_endings(scene: Scene, broker: Broker, names: list[str]) -> None:
    """One that ended in every way at once, one paused while it could be undone, a silent worker."""
    ended = rows.batch(broker, scene.user, names, BatchState.DONE, ALL_ENDINGS)
    ended.items.filter(state=ItemState.CANCELLED).update(error=DISCARDED)
    scene.add("replay-ended-partly", "replay_batch", ended.pk)
    undo = rows.batch(broker, scene.user, names, BatchState.PAUSED, [ItemState.PENDING])
    ReplayBatch.objects.filter(pk=undo.pk).update(
        canary_until=None, doubled=0, state_why=f"Paused by {scene.user}."
    )
    scene.add("replay-paused-in-undo", "replay_batch", undo.pk)
    silent = rows.batch(broker, scene.user, names, BatchState.RUNNING, [ItemState.PUBLISHING])
    heard_at = timezone.now() - timedelta(seconds=12)
    Work.objects.filter(subject=silent.pk, broker=broker).update(
        state=WorkState.RUNNING, leased_until_at=heard_at + LEASE, error=""
    )
    scene.add("replay-silent", "replay_batch", silent.pk)


def _add_repeats(scene: Scene, broker: Broker, names: list[str]) -> None:
    """A draft that excludes some possible repeats, and one that has nothing else."""
    for name, states in (
        ("replay-repeats", [ItemState.PENDING, ItemState.EXCLUDED]),
        ("replay-only-repeats", [ItemState.EXCLUDED]),
    ):
        made = rows.batch(broker, scene.user, names, BatchState.DRAFT, states)
        first = made.items.order_by("position").values_list("parked_message", flat=True)[0]
        repeats = made.items.filter(state=ItemState.EXCLUDED)
        ParkedMessage.objects.filter(replays__in=repeats).exclude(pk=first).update(repeat_of=first)
        number = repeats.update(route=None, is_repeat=True)
        ReplayBatch.objects.filter(pk=made.pk).update(repeats=number)
        for route in made.routes.all():
            route.items_number = route.items.count()
            route.save()
        scene.add(name, "replay_batch", made.pk)


def _unfold(page: Page) -> None:
    closed = page.locator(".options-fold:not([open]) > summary")
    if closed.count():
        closed.click()
    page.get_by_label("delay of a topology").check()


def _type_nothing(page: Page) -> None:
    page.get_by_label("Maximum messages per second").fill("many")
    press("Update dry run")(page)
