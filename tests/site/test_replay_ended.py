"""What the page of a replay says of what it left, may have doubled, or waits for."""

from __future__ import annotations

from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.urls import reverse
from django.utils import timezone
from django.utils.html import strip_tags

from delayboard.dead_letters.replay.batch import change_state
from delayboard.dead_letters.replay.follow import batch_follower, observers
from delayboard.dead_letters.replay.follow.batch_follower import Follower
from delayboard.models import BackgroundTask, BatchState, ItemState, ReplayBatch, Source
from tests.builders import make_broker
from tests.delayboard.builders import SHOP
from tests.delayboard.replay_rows import a_batch
from tests.site.page_setup import know, signed_in, text_of
from tests.site.replay_desk import page, press, some
from topology.models import Broker, Role, Work, WorkState
from topology.work import LEASE

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def seen(broker: Broker) -> None:
    know(broker, *SHOP)


def words(text: str) -> str:
    """What stands on a page, on one line."""
    return " ".join(unescape(strip_tags(text)).split())


def straight(broker: Broker, state: BatchState, **stated: Any) -> ReplayBatch:
    values: dict[str, Any] = {
        "source": Source.QUEUE,
        "queue": "dead",
        "description": "all of dead",
        "selected": 2000,
    }
    return a_batch(broker, (), state, **(values | stated))


def test_the_end_of_a_queues_replay_does_not_contradict_itself(broker: Broker) -> None:
    gone = "241 were no longer in “dead”: they were consumed."
    batch = straight(
        broker, BatchState.DONE, done=1759, cancelled=241, doubled=1000, state_why=gone
    )
    text = page(batch)
    told = words(text)
    assert "1 759 of 2 000 messages were replayed. 241 were no longer in" in told
    assert "remain parked" not in told
    assert "At most 1 000 messages may be duplicated" in told
    assert "another delayboard-replay-id" in told
    assert "show=doubled" not in text


def test_what_a_cancelled_replay_of_a_queue_did_not_send_is_in_it(broker: Broker) -> None:
    batch = straight(broker, BatchState.CANCELLED, done=5, cancelled=1995)
    assert "5 of 2 000 messages were replayed. Unsent messages remain in dead." in words(
        page(batch)
    )


def test_a_running_replay_of_a_queue_says_at_most(broker: Broker) -> None:
    batch = straight(broker, BatchState.RUNNING, done=5, doubled=7)
    assert "at most 7 may be duplicated" in words(page(batch))


def test_the_draft_of_a_queues_replay_promises_what_it_does(broker: Broker) -> None:
    batch = straight(broker, BatchState.DRAFT, selected=0, canary=3, rate=5.0)
    text = page(batch)
    told = words(text)
    promises = (
        "The replay pauses when",
        "canary of 3",
        "records each message before the publish",
        "oldest first",
    )
    for promise in promises:
        assert promise not in told
    assert "at most 5 messages per second" in told
    assert "sent again with a new replay id" in told
    assert 'name="order"' not in text
    journal = words(page(a_batch(broker, some(broker), canary=3)))
    for promise in promises:
        assert promise in journal


def test_what_the_form_of_a_queue_does_not_offer_stays_as_it_was(broker: Broker) -> None:
    batch = straight(broker, BatchState.DRAFT, selected=0, undo_seconds=30, most_replays=7)
    press("options", batch, mode="default", rate="5")
    batch.refresh_from_db()
    assert (batch.rate, batch.undo_seconds, batch.most_replays) == (5, 30, 7)


def test_what_the_broker_refused_twice_is_not_said_to_be_doubled_by_a_death(
    broker: Broker,
) -> None:
    states = [ItemState.FAILED, ItemState.FAILED, ItemState.DONE]
    batch = a_batch(broker, some(broker, 3), BatchState.DONE, states, doubled=2)
    batch.items.filter(state=ItemState.FAILED).update(
        may_be_duplicated=True, error="The exchange “gone” does not exist."
    )
    text = page(batch)
    told = words(text)
    assert "2 messages were published twice and refused" in told
    assert "may be duplicated." not in told
    assert text.count('<span class="tag">published a second time</span>') == 2
    batch.items.filter(state=ItemState.DONE).update(may_be_duplicated=True)
    ReplayBatch.objects.update(doubled=3)
    text = page(batch)
    assert "1 message may be duplicated. The worker, connection or channel failed" in words(text)
    assert text.count('<span class="tag">may be duplicated</span>') == 1


def test_what_another_replay_had_is_said_and_leads_to_it(broker: Broker) -> None:
    parked_messages = some(broker, 4)
    first = a_batch(broker, parked_messages[:3])
    batch = a_batch(broker, parked_messages)
    change_state.start(None, first, despite_verdict=False)
    change_state.start(None, batch, despite_verdict=False)
    batch.refresh_from_db()
    batch.items.filter(state=ItemState.PENDING).update(state=ItemState.RETURNED)
    ReplayBatch.objects.filter(pk=batch.pk).update(state=BatchState.DONE, returned=1)
    text = page(batch)
    told = words(text)
    assert "None of the 4 messages was replayed. 1 message remains parked. The list below" in told
    assert f"3 messages were excluded: replay {first.pk} had them." in told
    assert "Messages are excluded" not in told
    link = f'<a href="{reverse("replay_batch", args=[first.pk])}">replay {first.pk}</a>'
    assert text.count(link) == 4
    assert text.count(f"The message is in {link}.") == 3


@pytest.mark.parametrize(
    "error",
    [
        "The message is in replay 999999.",
        "The message is in replay {other}.",
        "The message was already replayed in replay " + "9" * 30 + ".",
        "The message is in replay ١.",
        "The message is in replay <b>1</b>.",
    ],
)
def test_no_other_number_becomes_a_link(broker: Broker, error: str) -> None:
    other = a_batch(make_broker(name="Other"))
    batch = a_batch(broker, some(broker), BatchState.DONE, [ItemState.CANCELLED])
    batch.items.update(error=error.format(other=other.pk))
    text = page(batch)
    assert "2 messages were excluded: " in words(text)
    assert reverse("replay_batch", args=[other.pk]) not in text
    assert "/replays/999" not in text
    assert "<b>1" not in text


def test_what_is_deleted_is_not_said_to_be_parked(broker: Broker) -> None:
    states = [ItemState.CANCELLED, ItemState.CANCELLED, ItemState.FAILED]
    parked_messages = some(broker, 3)
    batch = a_batch(broker, parked_messages, BatchState.DONE, states)
    batch.items.filter(position=1).update(error="It was discarded.")
    batch.items.filter(position=2).update(
        error="The parked message was deleted.", parked_message=None
    )
    batch.items.filter(position=3).update(parked_message=None)
    told = words(page(batch))
    assert "remains parked" not in told
    assert "1 message was excluded: it was discarded." in told
    assert told.count("1 message was excluded: it was deleted.") == 2


def test_paused_within_the_undo_window_says_until_when_it_can_be_taken_back(
    broker: Broker,
) -> None:
    until = timezone.now() + timedelta(minutes=5)
    batch = a_batch(broker, some(broker), BatchState.PAUSED, publish_at=until, undo_seconds=300)
    text = page(batch)
    told = words(text)
    assert "Delayboard published no message yet." in told
    assert f"until {until:%Y-%m-%d %H:%M:%S}" in told
    assert "After this time it publishes immediately" in told
    assert "Cancel remaining messages" not in told
    ReplayBatch.objects.update(publish_at=timezone.now() - timedelta(minutes=1))
    assert "The undo time ended 1m ago. “Resume replay” publishes immediately" in words(page(batch))
    batch.items.filter(position=1).update(state=ItemState.DONE)
    ReplayBatch.objects.update(done=1)
    told = words(page(batch))
    assert "Delayboard published no message yet" not in told
    assert "Cancel remaining messages" in told


def test_resuming_within_the_undo_window_waits_for_its_end(broker: Broker) -> None:
    batch = a_batch(broker, some(broker), undo_seconds=300)
    press("start", batch)
    press("pause", batch)
    assert "Undo time" in press("resume", batch)
    batch.refresh_from_db()
    assert batch.state == BatchState.WAITING


@pytest.mark.parametrize(
    ("done", "said", "kind"),
    [
        (0, "Done, none replayed", "warn"),
        (1, "Done, 1 of 2", "warn"),
        (2, "Done", "ok"),
    ],
)
def test_done_says_how_much_of_it(broker: Broker, done: int, said: str, kind: str) -> None:
    states = [ItemState.DONE] * done + [ItemState.RETURNED] * (2 - done)
    batch = a_batch(broker, some(broker), BatchState.DONE, states)
    shown = f'<span class="state state-{kind}">{said}</span>'
    assert shown in page(batch)
    assert shown in text_of(signed_in(Role.VIEWER, broker).get(reverse("replays")))


def test_a_worker_that_is_not_heard_of_is_told(broker: Broker) -> None:
    now = timezone.now()
    BackgroundTask.objects.create(key="replay", name="Replay", beat_at=now)
    states = [ItemState.DONE, ItemState.PENDING]
    batch = a_batch(broker, some(broker), BatchState.RUNNING, states)
    works = Work.objects.filter(subject=batch.pk)
    for until, said in (
        (now + LEASE - timedelta(seconds=3), ""),
        (now + LEASE - timedelta(seconds=12), f"{now + timedelta(seconds=8):%H:%M:%S} at the"),
        (now - timedelta(seconds=1), "The next worker continues the replay"),
    ):
        works.update(leased_until_at=until)
        told = words(page(batch))
        assert ("sent no heartbeat for" in told) is bool(said)
        assert said in told
    works.update(state=WorkState.WAITING, leased_until_at=None)
    assert "sent no heartbeat for" not in words(page(batch))


def test_what_is_not_seen_yet_is_followed_until_a_moment(broker: Broker) -> None:
    snapshot = know(broker, *SHOP)
    batch = a_batch(broker, some(broker), BatchState.DONE, [ItemState.DONE])
    until = batch_follower.find_follow_end(batch, observers.make_scene(batch, snapshot))
    assert f"still follows these messages until {until:%Y-%m-%d %H:%M:%S}" in words(page(batch))
    instant = timedelta(microseconds=1)
    assert not Follower().is_over(batch, until - instant)
    assert Follower().is_over(batch, until + instant)


def test_other_silent_brokers_are_not_this_replays_matter(broker: Broker) -> None:
    other = make_broker(name="Quiet")
    know(other, error="It is away.")
    batch = a_batch(broker, some(broker))
    client = signed_in(Role.ADMIN, broker)
    for address in (
        reverse("replay_batch", args=[batch.pk]),
        reverse("replay_item", args=[batch.pk, 1]),
    ):
        assert "does not answer correctly" not in words(text_of(client.get(address)))
        know(broker, *SHOP, error="It is away.")
        assert f"{broker.name} does not answer correctly" in words(text_of(client.get(address)))
        know(broker, *SHOP)
