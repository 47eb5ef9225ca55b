"""What the page of a replay says of what it left, may have doubled, or waits for."""

from __future__ import annotations

from datetime import timedelta
from html import unescape

import pytest
from django.urls import reverse
from django.utils import timezone
from django.utils.html import strip_tags

from delayboard.dead_letters.replay import batch_state, observers, outcome
from delayboard.dead_letters.replay.outcome import Follower
from delayboard.models import BatchState, ItemState, ReplayBatch
from tests.builders import make_broker
from tests.delayboard.builders import SHOP
from tests.delayboard.replay_rows import a_batch
from tests.site.page_setup import know, signed_in, text_of
from tests.site.replay_desk import page, press, some
from topology.models import Broker, Role

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def seen(broker: Broker) -> None:
    know(broker, *SHOP)


def words(text: str) -> str:
    """What stands on a page, on one line."""
    return " ".join(unescape(strip_tags(text)).split())


@pytest.mark.parametrize(
    ("states", "said"),
    [
        ((ItemState.UNKNOWN,) * 2, "RabbitMQ confirmed no message. 2 messages may have arrived"),
        (
            (ItemState.DONE, ItemState.UNKNOWN),
            "1 of 2 messages were replayed. 1 other message may have arrived",
        ),
    ],
)
@pytest.mark.parametrize("state", [BatchState.DONE, BatchState.CANCELLED])
def test_what_may_have_arrived_is_never_called_not_replayed(
    broker: Broker, state: BatchState, states: tuple[ItemState, ...], said: str
) -> None:
    batch = a_batch(broker, some(broker, 2), state, states)
    text = words(page(batch))
    assert said in text
    assert "No message was replayed" not in text
    assert "messages was replayed" not in text
    assert "none replayed" not in text
    assert f"Replay {batch.unknown} remaining message" in text
    assert "keeps its replay id and is marked “may be duplicated”" in text


def test_what_may_be_duplicated_is_counted_and_marked(broker: Broker) -> None:
    states = [ItemState.FAILED, ItemState.FAILED, ItemState.DONE]
    batch = a_batch(broker, some(broker, 3), BatchState.DONE, states, doubled=2)
    batch.items.filter(state=ItemState.FAILED).update(
        may_be_duplicated=True, error="The exchange “gone” does not exist."
    )
    text = page(batch)
    assert "2 messages may be duplicated. The worker, connection or channel failed" in words(text)
    assert text.count('<span class="tag">may be duplicated</span>') == 2


def test_the_reason_of_each_message_that_was_not_replayed_is_listed(broker: Broker) -> None:
    parked_messages = some(broker, 4)
    first = a_batch(broker, parked_messages[:3])
    batch = a_batch(broker, parked_messages)
    batch_state.start(None, first, despite_verdict=False)
    batch_state.start(None, batch, despite_verdict=False)
    batch.refresh_from_db()
    batch.items.filter(state=ItemState.PENDING).update(state=ItemState.RETURNED)
    ReplayBatch.objects.filter(pk=batch.pk).update(state=BatchState.DONE, returned=1)
    reported = words(page(batch))
    assert "None of the 4 messages was replayed. The list below shows why." in reported
    reason = f"The message is in replay {first.pk}."
    assert f"Excluded messages: 3 with “{reason}”." in reported
    assert reported.count(reason) == 4


def test_paused_within_the_undo_window_says_until_when_it_can_be_taken_back(
    broker: Broker,
) -> None:
    until = timezone.now() + timedelta(minutes=5)
    batch = a_batch(broker, some(broker), BatchState.PAUSED, publish_at=until, undo_seconds=300)
    text = page(batch)
    reported = words(text)
    assert "Delayboard published no message yet." in reported
    assert f"until {until:%Y-%m-%d %H:%M:%S}" in reported
    assert "After this time it publishes immediately" in reported
    assert "Cancel remaining messages" not in reported
    ReplayBatch.objects.update(publish_at=timezone.now() - timedelta(minutes=1))
    assert "The undo time ended 1m ago. “Resume replay” publishes immediately" in words(page(batch))
    batch.items.filter(position=1).update(state=ItemState.DONE)
    ReplayBatch.objects.update(done=1)
    reported = words(page(batch))
    assert "Delayboard published no message yet" not in reported
    assert "Cancel remaining messages" in reported


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


def test_what_is_not_seen_yet_is_followed_until_a_moment(broker: Broker) -> None:
    snapshot = know(broker, *SHOP)
    batch = a_batch(broker, some(broker), BatchState.DONE, [ItemState.DONE])
    until = outcome.find_follow_end(batch, observers.make_scene(batch, snapshot))
    text = words(page(batch))
    seen = "records what it can observe of these messages"
    assert f"{seen} until {until:%Y-%m-%d %H:%M:%S}" in text
    assert "Arrivals are not observed" in text
    assert "not observed yet" not in text
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
