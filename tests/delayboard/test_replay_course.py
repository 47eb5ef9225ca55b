"""The course of a replay: its order, rate and window, its stops, the first ones."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.utils import timezone

from delayboard.dead_letters.replay import batch_state, claims, outcome, parked_source, send_batch
from delayboard.dead_letters.replay.claims import MAYBE_PUBLISHED
from delayboard.models import (
    BatchState,
    ItemState,
    MessageGroup,
    Order,
    ParkedMessage,
    ParkedState,
    ReplayBatch,
)
from tests.delayboard.builders import a_message, frozen, parked, started, states
from tests.delayboard.carrying import adds_up, carried, changed, errors, parked_message_states
from tests.delayboard.pipes import Pipes, opened
from topology import work
from topology.broker.amqp.pipeline import Answer
from topology.models import Broker, WorkState
from topology.transfer.move import RateLimiter

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]


class Slow(Pipes):
    """Answers when so many are on their way, or when it was asked often; `most` there were."""

    def __init__(self, enough: int) -> None:
        super().__init__()
        self.enough, self.asked, self.most = enough, 0, 0

    def answers(self, seconds: float) -> list[tuple[Any, Answer]]:
        self.asked += 1
        self.most = max(self.most, self.in_flight)
        if self.in_flight < self.enough and self.asked < 50:
            return []
        return super().answers(seconds)


@pytest.mark.usefixtures("pipes")
@pytest.mark.parametrize(("most_bytes", "most"), [(10**6, 6), (8, 3), (4, 2)])
def test_as_many_are_on_their_way_as_may_be(
    user: User, broker: Broker, monkeypatch: pytest.MonkeyPatch, most_bytes: int, most: int
) -> None:
    monkeypatch.setattr(settings, "MESSAGES_IN_FLIGHT", 6)
    monkeypatch.setattr(parked_source, "MOST_BYTES", most_bytes)
    batch = started(user, broker, [b"%02d" % number for number in range(12)])
    slow = Slow(most)
    with opened(slow, monkeypatch):
        row = carried(batch)
    assert (row.state, row.error) == (WorkState.DONE, "")
    assert slow.most == most
    assert slow.asked < 50


def test_cancelled_in_the_middle_what_is_not_sent_is_parked(
    user: User, broker: Broker, pipes: Pipes, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = started(user, broker, [b"1", b"2", b"3"])
    monkeypatch.setattr(settings, "MESSAGES_IN_FLIGHT", 1)
    pipes.before = lambda p: batch_state.cancel(user, ReplayBatch.objects.get())
    row = carried(batch)
    assert row.state == WorkState.CANCELLED
    assert (batch.state, batch.state_why) == (BatchState.CANCELLED, "Cancelled by ann.")
    assert states(batch) == ["done", "cancelled", "cancelled"]
    assert parked_message_states(batch) == ["replayed", "parked", "parked"]
    assert pipes.bodies == [b"1"]


def test_paused_in_the_middle_nothing_more_is_sent_until_it_is_resumed(
    user: User, broker: Broker, pipes: Pipes, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = started(user, broker, [b"1", b"2"])
    monkeypatch.setattr(settings, "MESSAGES_IN_FLIGHT", 1)
    pipes.before = lambda p: batch_state.pause(user, ReplayBatch.objects.get())
    carried(batch)
    assert (batch.state, batch.state_why) == (BatchState.PAUSED, "Paused by ann.")
    assert states(batch) == ["done", "pending"]
    assert work.claim(("replay",), "worker") is None
    pipes.before = lambda p: None
    batch_state.resume(user, batch)
    assert carried(batch).state == WorkState.DONE
    assert pipes.bodies == [b"1", b"2"]


def test_nothing_is_sent_within_the_undo_window(user: User, broker: Broker, pipes: Pipes) -> None:
    batch = started(user, broker, [b"1", b"2"], undo_seconds=60)
    assert (batch.state, parked_message_states(batch)) == (BatchState.WAITING, ["replaying"] * 2)
    assert work.claim(("replay",), "worker") is None
    row = carried(batch)
    assert row.state == WorkState.WAITING
    assert row.not_before_at is not None
    assert batch.publish_at is not None
    # The lease is by the database's clock, which SQLite gives in milliseconds.
    assert abs(row.not_before_at - batch.publish_at) < timedelta(seconds=1)
    batch_state.cancel(user, batch)
    batch.refresh_from_db()
    adds_up(batch)
    assert (batch.state, parked_message_states(batch)) == (BatchState.CANCELLED, ["parked"] * 2)
    assert pipes.published == []


def test_after_the_undo_window_it_goes(user: User, broker: Broker, pipes: Pipes) -> None:
    batch = started(user, broker, [b"1"], undo_seconds=60)
    ReplayBatch.objects.update(publish_at=timezone.now())
    assert carried(batch).state == WorkState.DONE
    assert states(batch) == ["done"]


def test_the_newest_first(user: User, broker: Broker, pipes: Pipes) -> None:
    carried(started(user, broker, [b"1", b"2", b"3"], order=Order.NEWEST))
    assert pipes.bodies == [b"3", b"2", b"1"]


def test_the_worker_claims_what_is_much_and_gives_it_back(
    user: User, broker: Broker, pipes: Pipes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_state, "AT_ONCE", 1)
    batch = started(user, broker, [b"1", b"2"], undo_seconds=60)
    assert (batch.claimed_to, parked_message_states(batch)) == (0, ["parked"] * 2)
    carried(batch)
    assert (batch.claimed_to, parked_message_states(batch)) == (2, ["replaying"] * 2)
    batch_state.cancel(user, batch)
    assert parked_message_states(batch) == ["replaying"] * 2
    row = carried(batch)
    assert (row.state, batch.state) == (WorkState.CANCELLED, BatchState.CANCELLED)
    assert parked_message_states(batch) == ["parked"] * 2


def test_what_is_left_out_is_summed_up_after_the_last_claim(
    user: User, broker: Broker, pipes: Pipes, monkeypatch: pytest.MonkeyPatch
) -> None:
    started(user, broker, [b"1", b"2"])
    monkeypatch.setattr(batch_state, "AT_ONCE", 1)
    batch = frozen(user, broker, list(ParkedMessage.objects.order_by("pk")))
    batch_state.start(user, batch, despite_verdict=False)
    claims.claim_chunk(batch, 1)
    assert (batch.cancelled, batch.state_why) == (1, "")
    claims.claim_chunk(batch, 1)
    batch.refresh_from_db()
    assert "2 with “The message is in replay" in batch.state_why


def test_each_message_is_in_one_of_two_replays_and_the_second_is_told(
    user: User, broker: Broker, pipes: Pipes
) -> None:
    first = started(user, broker, [b"1", b"2"])
    found = [
        *ParkedMessage.objects.order_by("pk"),
        *parked(broker, a_message(b"3"), a_message(b"4")),
    ]
    ParkedMessage.objects.filter(pk=found[3].pk).update(state=ParkedState.DISCARDED)
    MessageGroup.objects.update(discarded=1, parked=1)
    second = frozen(user, broker, found)
    batch_state.start(user, second, despite_verdict=False)
    assert states(second) == ["cancelled", "cancelled", "pending", "cancelled"]
    assert errors(second)[0] == f"The message is in replay {first.pk}."
    assert errors(second)[3] == "It was discarded."
    second.refresh_from_db()
    reported = f"1 with “It was discarded.”, 2 with “The message is in replay {first.pk}.”"
    assert second.state_why == f"Excluded messages: {reported}."
    for batch in (first, second):
        carried(batch)
    assert pipes.bodies == [b"1", b"2", b"3"]
    third = frozen(user, broker, found[:1])
    batch_state.start(user, third, despite_verdict=False)
    assert errors(third) == [f"The message was already replayed in replay {first.pk}."]


def test_the_first_ones_are_watched_before_the_rest(
    user: User, broker: Broker, pipes: Pipes, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = timezone.now()
    judged = outcome.CanaryResult("wait", "")
    monkeypatch.setattr(outcome, "find_watch_end", lambda batch, now: now + timedelta(seconds=9))
    monkeypatch.setattr(outcome, "check_canary", lambda batch, now: judged)
    batch = started(user, broker, [b"1", b"2", b"3"], canary=2, canary_seconds=9)
    assert carried(batch).state == WorkState.WAITING
    assert (batch.state, pipes.bodies) == (BatchState.WATCHING, [b"1", b"2"])
    assert batch.canary_until is not None
    assert batch.canary_until > now
    judged = outcome.CanaryResult("go on", "None died.")
    assert carried(batch).state == WorkState.DONE
    assert pipes.bodies == [b"1", b"2", b"3"]


def test_what_failed_without_a_publish_is_none_of_the_first_ones(
    user: User, broker: Broker, pipes: Pipes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcome, "find_watch_end", lambda batch, now: now + timedelta(seconds=9))
    batch = started(user, broker, [b"1", b"2", b"3", b"4", b"5"], canary=2, canary_seconds=9)
    batch.items.filter(position__lte=2).update(state=ItemState.FAILED)
    changed(ReplayBatch, failed=2)
    carried(batch)
    assert (batch.state, pipes.bodies) == (BatchState.WATCHING, [b"3", b"4"])


@pytest.mark.parametrize("what", ["stop", "ask"])
def test_the_first_ones_can_stop_it_and_a_person_goes_on(
    user: User, broker: Broker, pipes: Pipes, monkeypatch: pytest.MonkeyPatch, what: Any
) -> None:
    judged = outcome.CanaryResult(what, "Two died again.")
    monkeypatch.setattr(outcome, "find_watch_end", lambda batch, now: now + timedelta(seconds=9))
    monkeypatch.setattr(outcome, "check_canary", lambda batch, now: judged)
    batch = started(user, broker, [b"1", b"2"], canary=1, canary_seconds=9)
    carried(batch)
    assert (batch.state, batch.state_why) == (BatchState.PAUSED, "Two died again.")
    assert pipes.bodies == [b"1"]
    batch_state.resume(user, batch)
    assert carried(batch).state == WorkState.DONE
    assert pipes.bodies == [b"1", b"2"]


def test_no_more_than_the_first_ones_need_no_watching(
    user: User, broker: Broker, pipes: Pipes
) -> None:
    batch = started(user, broker, [b"1", b"2"], canary=2, canary_seconds=9)
    assert carried(batch).state == WorkState.DONE


def test_one_whose_messages_come_back_stops_itself_and_again_when_as_many_more_do(
    user: User, broker: Broker, pipes: Pipes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "MESSAGES_IN_FLIGHT", 1)
    monkeypatch.setattr(send_batch, "STOPS_SECONDS", 0.0)
    batch = started(user, broker, [b"1", b"2", b"3"], stop_after=2)
    pipes.before = lambda p: changed(ReplayBatch, died=2)
    carried(batch)
    assert (batch.state, states(batch)) == (BatchState.PAUSED, ["done", "pending", "pending"])
    assert batch.state_why
    batch_state.resume(user, batch)
    batch.refresh_from_db()
    assert batch.stop_after == 4
    assert carried(batch).state == WorkState.DONE


def test_what_was_begun_before_a_cancel_says_so(user: User, broker: Broker) -> None:
    batch = started(user, broker, [b"1", b"2"])
    batch.items.filter(position=1).update(state=ItemState.PUBLISHING)
    batch_state.cancel(user, batch)
    batch.refresh_from_db()
    adds_up(batch)
    one, two = batch.items.all()
    assert (one.state, one.error, one.may_be_duplicated) == ("cancelled", MAYBE_PUBLISHED, True)
    assert (two.state, two.error, two.may_be_duplicated) == ("cancelled", "", False)
    assert parked_message_states(batch) == ["parked"] * 2


@pytest.mark.parametrize(("rate", "most"), [(4.0, 9), (0.5, 2), (1000.0, 2250)])
def test_a_rate_is_kept_over_seconds_and_evenly(rate: float, most: int) -> None:
    limiter, sent = RateLimiter(rate, 0.0), 0
    for tick in range(200):
        number = limiter.allows(tick / 100)
        limiter.take(number)
        sent += number
        assert sent <= 1 + rate * tick / 100 + rate / 4
    assert rate * 2 * 0.8 <= sent <= most


def test_without_a_rate_it_goes_as_fast_as_it_can() -> None:
    assert RateLimiter(None, 0.0).allows(0.0) > 10_000
