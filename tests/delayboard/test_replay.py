"""A whole replay, into a broker in memory."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from decimal import Decimal
from threading import Event
from typing import Any

import pytest
from cryptography.fernet import Fernet
from django.contrib.auth.models import User
from django.db import InterfaceError, OperationalError, connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from pytest_django import Settings

from analytics.facts import oldest
from delayboard.dead_letters.replay import answered, canary, claims, settle, source, ways
from delayboard.dead_letters.replay import batch as batches
from delayboard.dead_letters.replay import send as sending
from delayboard.dead_letters.replay.claims import MAYBE_PUBLISHED
from delayboard.dead_letters.replay.content import contents
from delayboard.dead_letters.replay.hold import NOT_ANSWERED
from delayboard.dead_letters.replay.send import replay
from delayboard.dead_letters.replay.source import GIVEN_UP, Bucket
from delayboard.models import (
    BatchState,
    DeadLetter,
    ItemState,
    LetterGroup,
    LetterState,
    Order,
    Outcome,
    ReplayBatch,
    ReplayEdit,
    ReplayItem,
)
from tests.delayboard.builders import (
    TAP,
    TAPPED,
    a_message,
    a_route,
    frozen,
    parked,
    started,
    states,
)
from tests.delayboard.pipes import Pipes, opened
from topology import work
from topology.broker.errors import OutcomeUnknown, Unreachable
from topology.broker.pipeline import Answer
from topology.broker.properties import build_properties
from topology.definitions import Arguments, Binding, Definitions, Queue
from topology.message import DEATH_HEADERS, REPLAYS_HEADER, Properties, Publish
from topology.models import Broker, Work, WorkState

pytestmark = pytest.mark.django_db

RETURNED = Answer("returned", "no queue")


@pytest.fixture
def pipes(there: dict[str, Definitions], monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipes]:
    with opened(Pipes(), monkeypatch) as found:
        yield found


def carried(batch: ReplayBatch, stop: Event | None = None) -> Work:
    """What becomes of it by one claim."""
    Work.objects.filter(state=WorkState.WAITING, not_before_at__lt=batches.NEVER).update(
        not_before_at=None
    )
    claimed = work.claim(("replay",), "worker")
    assert claimed is not None
    replay(claimed, stop=stop)
    batch.refresh_from_db()
    adds_up(batch)
    return Work.objects.get(pk=claimed.pk)


def adds_up(batch: ReplayBatch) -> None:
    """Items, counters of the batch and of the groups, and the letters' states say the same."""
    ended = [state for state in states(batch) if state not in ("pending", "publishing")]
    counts = batch.counts()
    assert sum(counts.values()) == batch.selected == batch.items.count()
    assert {state: ended.count(state) for state in counts if state != "pending"} == {
        state: number for state, number in counts.items() if state != "pending"
    }
    assert batch.doubled == batch.items.filter(may_be_duplicated=True).count()
    for group in LetterGroup.objects.all():
        for state in LetterState:
            held = DeadLetter.objects.filter(group=group, state=state).count()
            assert getattr(group, state) == held, state


def changed(model: type[ReplayBatch] | type[Work], **values: Any) -> None:
    model._default_manager.update(**values)


def letter_states(batch: ReplayBatch) -> list[str]:
    return list(batch.items.values_list("letter__state", flat=True))


def errors(batch: ReplayBatch) -> list[str]:
    return list(batch.items.values_list("error", flat=True))


def test_every_letter_is_sent_and_that_is_written_down(
    user: User, broker: Broker, pipes: Pipes
) -> None:
    batch = started(user, broker, [b"1", b"2", b"3"])
    ended = carried(batch)
    assert (ended.state, ended.done, ended.total) == (WorkState.DONE, 3, 3)
    assert (batch.state, states(batch)) == (BatchState.DONE, ["done"] * 3)
    assert letter_states(batch) == ["replayed"] * 3
    assert pipes.bodies == [b"1", b"2", b"3"]
    assert pipes.names == [item.replay_id for item in batch.items.all()]
    published = pipes.published[0]
    assert (published.exchange, published.routing_key) == ("orders", "orders")
    assert published.properties.message_id == "1"
    assert not DEATH_HEADERS & set(published.properties.headers)
    assert published.properties.headers[REPLAYS_HEADER] == 1


def test_each_is_a_fact_with_its_replay(user: User, broker: Broker, pipes: Pipes) -> None:
    batch = started(user, broker, [b"1", b"2"])
    carried(batch)
    events = [event for _, event in oldest(10)]
    told = [event for event in events if event.kind == "replayed"]
    assert [event.replay_id for event in told] == pipes.names
    assert [(e.exchange, e.routing_key, e.queue) for e in told] == [
        ("orders", "orders", "dead")
    ] * 2
    assert [e.content_id for e in told] == [
        letter.content_id for letter in DeadLetter.objects.order_by("pk")
    ]


def test_the_number_of_replays_is_counted_in_the_message(
    user: User, broker: Broker, pipes: Pipes
) -> None:
    told: list[Any] = [2, "x", True, -5]
    found = parked(broker, *[a_message(b"1", {REPLAYS_HEADER: number}) for number in told])
    batch = frozen(user, broker, found)
    batches.start(user, batch, despite_verdict=False)
    carried(batch)
    assert [p.properties.headers[REPLAYS_HEADER] for p in pipes.published] == [3, 1, 1, 1]


@pytest.mark.parametrize("kind", ["returned", "nacked", "failed"])
def test_what_is_refused_is_parked_again_with_the_reason(
    user: User, broker: Broker, pipes: Pipes, kind: Any
) -> None:
    batch = started(user, broker, [b"1", b"2"])
    pipes.decide = lambda p: Answer(kind, "no") if p.body == b"1" else Answer("confirmed")
    carried(batch)
    assert (batch.state, states(batch)) == (BatchState.DONE, [kind, "done"])
    assert letter_states(batch) == ["parked", "replayed"]
    assert errors(batch) == ["no", ""]


def test_what_is_given_to_a_delay_is_handed_and_can_be_replayed_again(
    user: User, broker: Broker, pipes: Pipes
) -> None:
    batch = started(user, broker, [b"1"], a_route("orders", "orders", after_ms=5000))
    carried(batch)
    item = batch.items.get()
    assert (item.state, item.outcome) == ("done", Outcome.HANDED)
    assert letter_states(batch) == ["handed"]
    again = frozen(user, broker, list(DeadLetter.objects.all()), undo_seconds=60)
    batches.start(user, again, despite_verdict=False)
    assert letter_states(again) == ["replaying"]
    batches.cancel(user, again)
    assert letter_states(again) == ["handed"]
    again.refresh_from_db()
    adds_up(again)


@pytest.mark.parametrize("outcome", [Outcome.DELIVERED, Outcome.DIED])
@pytest.mark.parametrize("is_cancelled", [True, False])
def test_what_arrived_of_another_replay_meanwhile_is_not_parked_again(
    user: User, broker: Broker, pipes: Pipes, outcome: Outcome, is_cancelled: bool
) -> None:
    batch = started(user, broker, [b"1"], a_route("orders", "orders", after_ms=5000))
    carried(batch)
    again = frozen(user, broker, list(DeadLetter.objects.all()), undo_seconds=60)
    batches.start(user, again, despite_verdict=False)
    batch.items.update(outcome=outcome)
    if is_cancelled:
        batches.cancel(user, again)
    else:
        changed(ReplayBatch, publish_at=timezone.now())
        pipes.decide = lambda p: RETURNED
        carried(again)
    again.refresh_from_db()
    adds_up(again)
    assert letter_states(again) == ["replayed"]


def test_what_was_answered_twice_is_marked(user: User, broker: Broker, pipes: Pipes) -> None:
    batch = started(user, broker, [b"1", b"2"])
    pipes.decide = lambda p: Answer("confirmed", again=p.body == b"2")
    carried(batch)
    assert list(batch.items.values_list("may_be_duplicated", flat=True)) == [False, True]
    assert batch.doubled == 1


def test_a_broken_connection_gives_the_work_back_and_the_same_goes_again_marked(
    user: User, broker: Broker, pipes: Pipes
) -> None:
    batch = started(user, broker, [b"1", b"2"])
    pipes.broken = OutcomeUnknown("broke")
    row = carried(batch)
    assert (row.state, row.error) == (WorkState.WAITING, "broke")
    assert row.not_before_at is not None
    assert (batch.state, states(batch)) == (BatchState.RUNNING, ["publishing"] * 2)
    assert letter_states(batch) == ["replaying"] * 2
    pipes.broken = None
    assert carried(batch).state == WorkState.DONE
    assert states(batch) == ["done"] * 2
    assert pipes.names[:2] == pipes.names[2:]
    assert batch.doubled == 2


def test_one_that_breaks_the_connection_each_time_is_given_up_and_the_others_go(
    user: User, broker: Broker, pipes: Pipes
) -> None:
    batch = started(user, broker, [b"1", b"bad", b"3"])

    def breaks(publish: Publish) -> None:
        pipes.broken = OutcomeUnknown("broke") if publish.body == b"bad" else pipes.broken

    pipes.before = breaks
    for _ in range(source.TRIES):
        assert carried(batch).state == WorkState.WAITING
        pipes.broken = None
    assert carried(batch).state == WorkState.DONE
    assert states(batch) == ["done", "failed", "done"]
    assert letter_states(batch) == ["replayed", "parked", "replayed"]
    bad = batch.items.get(position=2)
    assert (bad.error, bad.may_be_duplicated) == (GIVEN_UP, True)


def test_workers_that_are_killed_give_nothing_up(user: User, broker: Broker, pipes: Pipes) -> None:
    batch = started(user, broker, [b"1", b"2"])
    pipes.decide = lambda p: None
    for _ in range(2 * source.TRIES):
        carried(batch)
        assert states(batch) == ["publishing"] * 2
    pipes.decide = lambda p: Answer("confirmed")
    assert carried(batch).state == WorkState.DONE
    assert (states(batch), batch.doubled) == (["done"] * 2, 2)


class Slow(Pipes):
    """Answers when so many are on their way, or when it was asked often; `most` there were."""

    def __init__(self, enough: int) -> None:
        super().__init__()
        self.enough, self.asked, self.most = enough, 0, 0

    def answers(self, seconds: float) -> list[tuple[Any, Answer]]:
        self.asked += 1
        self.most = max(self.most, self.flying)
        if self.flying < self.enough and self.asked < 50:
            return []
        return super().answers(seconds)


@pytest.mark.usefixtures("pipes")
@pytest.mark.parametrize(("most_bytes", "most"), [(10**6, 6), (8, 3), (4, 2)])
def test_as_many_are_on_their_way_as_may_be(
    user: User, broker: Broker, monkeypatch: pytest.MonkeyPatch, most_bytes: int, most: int
) -> None:
    monkeypatch.setattr(source, "CHUNK", 3)
    monkeypatch.setattr(source, "WINDOW", 6)
    monkeypatch.setattr(sending, "WINDOW", 6)
    monkeypatch.setattr(source, "MOST_BYTES", most_bytes)
    batch = started(user, broker, [b"%02d" % number for number in range(12)])
    slow = Slow(most)
    with opened(slow, monkeypatch):
        row = carried(batch)
    assert (row.state, row.error) == (WorkState.DONE, "")
    assert slow.most == most
    assert slow.asked < 50


def test_what_is_not_answered_is_sent_again_later(user: User, broker: Broker, pipes: Pipes) -> None:
    batch = started(user, broker, [b"1", b"2"])
    pipes.decide = lambda p: None if p.body == b"2" else Answer("confirmed")
    row = carried(batch)
    assert (row.state, row.error) == (WorkState.WAITING, NOT_ANSWERED)
    assert states(batch) == ["done", "publishing"]


def test_cancelled_in_the_middle_what_is_not_sent_is_parked(
    user: User, broker: Broker, pipes: Pipes, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = started(user, broker, [b"1", b"2", b"3"])
    monkeypatch.setattr(source, "CHUNK", 1)
    pipes.before = lambda p: batches.cancel(user, ReplayBatch.objects.get())
    row = carried(batch)
    assert row.state == WorkState.CANCELLED
    assert (batch.state, batch.state_why) == (BatchState.CANCELLED, "Cancelled by ann.")
    assert states(batch) == ["done", "cancelled", "cancelled"]
    assert letter_states(batch) == ["replayed", "parked", "parked"]
    assert pipes.bodies == [b"1"]


def test_paused_in_the_middle_nothing_more_is_sent_until_it_is_resumed(
    user: User, broker: Broker, pipes: Pipes, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = started(user, broker, [b"1", b"2"])
    monkeypatch.setattr(source, "CHUNK", 1)
    pipes.before = lambda p: batches.pause(user, ReplayBatch.objects.get())
    carried(batch)
    assert (batch.state, batch.state_why) == (BatchState.PAUSED, "Paused by ann.")
    assert (batch.pause_wanted, states(batch)) == (False, ["done", "pending"])
    assert work.claim(("replay",), "worker") is None
    pipes.before = lambda p: None
    batches.resume(user, batch)
    assert carried(batch).state == WorkState.DONE
    assert pipes.bodies == [b"1", b"2"]


def test_nothing_is_sent_within_the_undo_window(user: User, broker: Broker, pipes: Pipes) -> None:
    batch = started(user, broker, [b"1", b"2"], undo_seconds=60)
    assert (batch.state, letter_states(batch)) == (BatchState.WAITING, ["replaying"] * 2)
    assert work.claim(("replay",), "worker") is None
    row = carried(batch)
    assert row.state == WorkState.WAITING
    assert row.not_before_at is not None
    assert batch.publish_at is not None
    assert row.not_before_at >= batch.publish_at
    batches.cancel(user, batch)
    batch.refresh_from_db()
    adds_up(batch)
    assert (batch.state, letter_states(batch)) == (BatchState.CANCELLED, ["parked"] * 2)
    assert pipes.published == []


def test_after_the_undo_window_it_goes(user: User, broker: Broker, pipes: Pipes) -> None:
    batch = started(user, broker, [b"1"], undo_seconds=60)
    ReplayBatch.objects.update(publish_at=timezone.now())
    assert carried(batch).state == WorkState.DONE
    assert states(batch) == ["done"]


def test_a_confirm_of_the_tap_alone_is_none(
    user: User, broker: Broker, pipes: Pipes, there: dict[str, Definitions]
) -> None:
    there["now"] = TAPPED
    batch = started(
        user, broker, [b"1", b"2"], a_route("orders", "only-tapped"), a_route("", "orders")
    )
    carried(batch)
    assert states(batch) == ["returned", "done"]
    assert "No queue but Delayboard's own tap took it" in errors(batch)[0]
    assert letter_states(batch) == ["parked", "replayed"]


@pytest.fixture
def deaf(
    there: dict[str, Definitions], monkeypatch: pytest.MonkeyPatch
) -> Callable[[int], list[str]]:
    """A tapped exchange, about which the management API does not answer so many times."""
    there["now"] = TAPPED

    def refuse(times: int) -> list[str]:
        asked: list[str] = []

        def look(management: object, known: object, exchange: str) -> Definitions:
            asked.append(exchange)
            if len(asked) <= times:
                raise Unreachable("The management API does not answer.")
            return there["now"]

        monkeypatch.setattr(ways, "look_along", look)
        return asked

    for module in (answered, sending):
        monkeypatch.setattr(module, "CHECK_AGAIN_SECONDS", 0.0)
    return refuse


def test_what_was_confirmed_is_checked_later_when_the_broker_cannot_be_asked(
    user: User, broker: Broker, pipes: Pipes, deaf: Callable[[int], list[str]]
) -> None:
    asked = deaf(4)
    ways_there = (a_route("orders", "only-tapped"), a_route("orders", "orders"), a_route("", "q"))
    batch = started(user, broker, [b"1", b"2", b"3"], *ways_there)
    assert carried(batch).state == WorkState.DONE
    assert len(asked) > 4
    assert pipes.bodies == [b"1", b"2", b"3"]
    assert (states(batch), batch.doubled) == (["returned", "done", "done"], 0)


def test_what_cannot_be_checked_before_the_worker_ends_is_sent_again_and_marked(
    user: User, broker: Broker, pipes: Pipes, deaf: Callable[[int], list[str]]
) -> None:
    deaf(1000)
    batch = started(user, broker, [b"1", b"2"], a_route("orders", "orders"), a_route("", "q"))
    stop = Event()
    pipes.before = lambda p: stop.set()
    row = carried(batch, stop)
    assert (row.state, row.error) == (WorkState.WAITING, "The management API does not answer.")
    assert states(batch) == ["publishing", "done"]
    deaf(0)
    assert carried(batch).state == WorkState.DONE
    assert (pipes.bodies, batch.doubled) == ([b"1", b"2", b"1"], 1)


def test_a_decimal_is_not_sent_to_a_stream_tap(
    user: User, broker: Broker, pipes: Pipes, there: dict[str, Definitions]
) -> None:
    stream = Queue(TAP, arguments=Arguments({"x-queue-type": "stream"}))
    there["now"] = Definitions.of(
        [*(thing for thing in TAPPED if thing != Queue(TAP)), stream, Binding("orders", TAP, "#")]
    )
    found = parked(broker, a_message(b"1", {"price": Decimal("1.5")}), a_message(b"2"))
    batch = frozen(user, broker, found)
    batches.start(user, batch, despite_verdict=False)
    carried(batch)
    assert states(batch) == ["failed", "done"]
    assert "A header holds a decimal number" in errors(batch)[0]


def test_what_cannot_be_taken_apart_fails_and_is_parked(
    user: User, broker: Broker, pipes: Pipes
) -> None:
    batch = started(user, broker, [b"1", b"2"])
    DeadLetter.objects.filter(message_id="1").update(properties=b"\x20\x00\x00\x00\x00\x09\x01")
    carried(batch)
    assert states(batch) == ["failed", "done"]
    assert errors(batch)[0].startswith("Its properties cannot be edited")
    assert letter_states(batch) == ["parked", "replayed"]


def test_a_route_that_the_dry_run_refused_is_not_sent(
    user: User, broker: Broker, pipes: Pipes
) -> None:
    bad = a_route("", "", ending="refused", verdict="It cannot be.", is_good=False)
    batch = started(user, broker, [b"1"], bad)
    carried(batch)
    assert (states(batch), errors(batch), pipes.published) == (["failed"], ["It cannot be."], [])


def test_an_edit_is_sent_and_the_letter_stays(user: User, broker: Broker, pipes: Pipes) -> None:
    batch = started(user, broker, [b"1", b"2"])
    item, other = batch.items.all()
    assert item.letter is not None
    assert other.letter is not None
    stated = build_properties({"fixed": True}, message_id="edited").raw
    ReplayEdit.objects.create(
        item=item, properties=stated, body=other.letter.body, edited_at=timezone.now()
    )
    carried(batch)
    first = pipes.published[0]
    assert (first.body, first.properties.message_id) == (b"2", "edited")
    assert first.properties.headers["fixed"] is True
    item.letter.refresh_from_db()
    assert (item.letter.message.body, item.letter.state) == (b"1", LetterState.REPLAYED)


def test_a_letter_that_was_deleted_fails(user: User, broker: Broker, pipes: Pipes) -> None:
    batch = started(user, broker, [b"1", b"2"])
    LetterGroup.objects.update(replaying=1)
    DeadLetter.objects.filter(message_id="1").delete()
    carried(batch)
    assert (states(batch), errors(batch)[0]) == (["failed", "done"], source.GONE)


def test_a_worker_whose_lease_is_another_s_writes_down_only_what_was_confirmed(
    user: User, broker: Broker, pipes: Pipes
) -> None:
    batch = started(user, broker, [b"1", b"2"])
    pipes.before = lambda p: changed(Work, owner="another", fence=99)
    pipes.decide = lambda p: RETURNED if p.body == b"2" else Answer("confirmed")
    row = carried(batch)
    assert (row.state, row.owner) == (WorkState.RUNNING, "another")
    assert states(batch) == ["done", "publishing"]
    assert letter_states(batch) == ["replayed", "replaying"]


def test_of_a_worker_that_lost_its_lease_the_next_one_sends_only_what_was_not_confirmed(
    user: User, broker: Broker, pipes: Pipes
) -> None:
    batch = started(user, broker, [b"1", b"2", b"3"])
    later: list[Work] = []

    def outlast(publish: Publish) -> None:
        if publish.body == b"3" and not later:
            changed(Work, leased_until_at=timezone.now() - timedelta(seconds=1))
            later.extend(filter(None, [work.claim(("replay",), "another")]))

    pipes.before = outlast
    pipes.decide = lambda p: RETURNED if p.body == b"2" else Answer("confirmed")
    carried(batch)
    replay(later[0])
    batch.refresh_from_db()
    adds_up(batch)
    assert pipes.bodies == [b"1", b"2", b"3", b"2"]
    assert (batch.state, states(batch)) == (BatchState.DONE, ["done", "returned", "done"])
    assert batch.doubled == 1


def test_what_got_its_end_while_it_was_read_is_not_sent_again(
    user: User, broker: Broker, pipes: Pipes, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = started(user, broker, [b"1", b"2"])
    batch.items.filter(position=1).update(state=ItemState.PUBLISHING)

    def late(*args: Any, **kwargs: Any) -> Any:
        item = batch.items.get(position=1)
        if item.state == ItemState.PUBLISHING:
            taken = settle.Taken(1, item.letter_id, is_handed=False)
            with transaction.atomic():
                settle.write(batch, [settle.Ending(taken, ItemState.DONE)], timezone.now())
        return contents(*args, **kwargs)

    monkeypatch.setattr(source, "contents", late)
    assert carried(batch).state == WorkState.DONE
    assert (pipes.bodies, states(batch), batch.doubled) == ([b"2"], ["done"] * 2, 0)


@pytest.mark.django_db(transaction=True)
def test_a_commit_whose_answer_was_lost_is_counted_once(
    user: User, broker: Broker, pipes: Pipes, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = started(user, broker, [b"1", b"2", b"3"])
    wire = transaction.get_connection()
    commit, written = wire.commit, settle.write

    def lost() -> None:
        monkeypatch.setattr(wire, "commit", commit)
        commit()
        raise OperationalError("server closed the connection unexpectedly")

    def write(batch: ReplayBatch, endings: Any, *args: Any, **kwargs: Any) -> Any:
        if endings:
            monkeypatch.setattr(settle, "write", written)
            monkeypatch.setattr(wire, "commit", lost)
        return written(batch, endings, *args, **kwargs)

    monkeypatch.setattr(settle, "write", write)
    monkeypatch.setattr(sending, "DATABASE_SECONDS", 0.0)
    row = carried(batch)
    assert (row.state, row.done, states(batch)) == (WorkState.DONE, 3, ["done"] * 3)
    assert [event.kind for _, event in oldest(10)].count("replayed") == 3


def test_letters_and_groups_are_locked_before_items(
    user: User, broker: Broker, pipes: Pipes
) -> None:
    batch = started(user, broker, [b"1", b"2"])
    DeadLetter.objects.filter(message_id="1").update(properties=b"\x20\x00\x00\x00\x00\x09\x01")
    with CaptureQueriesContext(connection) as asked:
        carried(batch)
    updated = [match[1] for one in asked if (match := re.match(r'UPDATE "(\w+)"', one["sql"]))]
    names = (DeadLetter, LetterGroup, ReplayItem, ReplayBatch)
    first = [updated.index(name._meta.db_table) for name in names]
    assert first == sorted(first)
    assert states(batch) == ["failed", "done"]


def test_an_end_of_the_worker_leaves_it_to_the_next(
    user: User, broker: Broker, pipes: Pipes, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = started(user, broker, [b"1", b"2"])
    monkeypatch.setattr(source, "CHUNK", 1)
    stop = Event()
    pipes.before = lambda p: stop.set()
    row = carried(batch, stop)
    assert (row.state, states(batch)) == (WorkState.WAITING, ["done", "pending"])
    assert work.claim(("replay",), "worker") is not None


def test_the_newest_first(user: User, broker: Broker, pipes: Pipes) -> None:
    carried(started(user, broker, [b"1", b"2", b"3"], order=Order.NEWEST))
    assert pipes.bodies == [b"3", b"2", b"1"]


def test_the_worker_claims_what_is_much_and_gives_it_back(
    user: User, broker: Broker, pipes: Pipes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "AT_ONCE", 1)
    batch = started(user, broker, [b"1", b"2"], undo_seconds=60)
    assert (batch.claimed_to, letter_states(batch)) == (0, ["parked"] * 2)
    carried(batch)
    assert (batch.claimed_to, letter_states(batch)) == (2, ["replaying"] * 2)
    batches.cancel(user, batch)
    assert letter_states(batch) == ["replaying"] * 2
    row = carried(batch)
    assert (row.state, batch.state) == (WorkState.CANCELLED, BatchState.CANCELLED)
    assert letter_states(batch) == ["parked"] * 2


def test_what_is_left_out_is_summed_up_after_the_last_claim(
    user: User, broker: Broker, pipes: Pipes, monkeypatch: pytest.MonkeyPatch
) -> None:
    started(user, broker, [b"1", b"2"])
    monkeypatch.setattr(batches, "AT_ONCE", 1)
    batch = frozen(user, broker, list(DeadLetter.objects.order_by("pk")))
    batches.start(user, batch, despite_verdict=False)
    claims.claim_chunk(batch, 1)
    assert (batch.cancelled, batch.state_why) == (1, "")
    claims.claim_chunk(batch, 1)
    batch.refresh_from_db()
    assert "2 with “It is in replay" in batch.state_why


def test_each_message_is_in_one_of_two_replays_and_the_second_is_told(
    user: User, broker: Broker, pipes: Pipes
) -> None:
    first = started(user, broker, [b"1", b"2"])
    found = [*DeadLetter.objects.order_by("pk"), *parked(broker, a_message(b"3"), a_message(b"4"))]
    DeadLetter.objects.filter(pk=found[3].pk).update(state=LetterState.DISCARDED)
    LetterGroup.objects.update(discarded=1, parked=1)
    second = frozen(user, broker, found)
    batches.start(user, second, despite_verdict=False)
    assert states(second) == ["cancelled", "cancelled", "pending", "cancelled"]
    assert errors(second)[0] == f"It is in replay {first.pk}."
    assert errors(second)[3] == "It was discarded."
    second.refresh_from_db()
    told = f"2 with “It is in replay {first.pk}.”, 1 with “It was discarded.”"
    assert second.state_why == f"Messages are left out: {told}."
    for batch in (first, second):
        carried(batch)
    assert pipes.bodies == [b"1", b"2", b"3"]
    third = frozen(user, broker, found[:1])
    batches.start(user, third, despite_verdict=False)
    assert errors(third) == [f"It was replayed already, in replay {first.pk}."]


def test_the_first_ones_are_watched_before_the_rest(
    user: User, broker: Broker, pipes: Pipes, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = timezone.now()
    judged = canary.Judged("wait", "")
    monkeypatch.setattr(canary, "until", lambda batch, now: now + timedelta(seconds=9))
    monkeypatch.setattr(canary, "judged", lambda batch, now: judged)
    batch = started(user, broker, [b"1", b"2", b"3"], canary=2, canary_seconds=9)
    assert carried(batch).state == WorkState.WAITING
    assert (batch.state, pipes.bodies) == (BatchState.WATCHING, [b"1", b"2"])
    assert batch.canary_until is not None
    assert batch.canary_until > now
    judged = canary.Judged("go on", "None died.")
    assert carried(batch).state == WorkState.DONE
    assert pipes.bodies == [b"1", b"2", b"3"]


@pytest.mark.parametrize("what", ["stop", "ask"])
def test_the_first_ones_can_stop_it_and_a_person_goes_on(
    user: User, broker: Broker, pipes: Pipes, monkeypatch: pytest.MonkeyPatch, what: Any
) -> None:
    judged = canary.Judged(what, "Two died again.")
    monkeypatch.setattr(canary, "until", lambda batch, now: now + timedelta(seconds=9))
    monkeypatch.setattr(canary, "judged", lambda batch, now: judged)
    batch = started(user, broker, [b"1", b"2"], canary=1, canary_seconds=9)
    carried(batch)
    assert (batch.state, batch.state_why) == (BatchState.PAUSED, "Two died again.")
    assert pipes.bodies == [b"1"]
    batches.resume(user, batch)
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
    monkeypatch.setattr(source, "CHUNK", 1)
    monkeypatch.setattr(sending, "STOPS_SECONDS", 0.0)
    batch = started(user, broker, [b"1", b"2", b"3"], stop_after=2)
    pipes.before = lambda p: changed(ReplayBatch, died=2)
    carried(batch)
    assert (batch.state, states(batch)) == (BatchState.PAUSED, ["done", "pending", "pending"])
    assert batch.state_why
    batches.resume(user, batch)
    batch.refresh_from_db()
    assert batch.stop_after == 4
    assert carried(batch).state == WorkState.DONE


def test_a_database_that_refuses_what_was_sent_is_asked_until_it_takes_it(
    user: User, broker: Broker, pipes: Pipes, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = started(user, broker, [b"1", b"2"])
    write = settle.write
    refused: list[int] = []

    def refuses(batch: ReplayBatch, endings: Any, *args: Any, **kwargs: Any) -> Any:
        if endings and len(refused) < 2:
            refused.append(1)
            raise OperationalError("database or disk is full")
        return write(batch, endings, *args, **kwargs)

    monkeypatch.setattr(settle, "write", refuses)
    monkeypatch.setattr(sending, "DATABASE_SECONDS", 0.0)
    assert carried(batch).state == WorkState.DONE
    assert (states(batch), len(pipes.published), batch.doubled) == (["done"] * 2, 2, 0)


@pytest.mark.parametrize("kind", [OperationalError, InterfaceError])
def test_a_database_that_fails_before_anything_is_sent_says_so(
    user: User,
    broker: Broker,
    pipes: Pipes,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[Exception],
) -> None:
    batch = started(user, broker, [b"1"])

    def refuses(*args: Any, **kwargs: Any) -> Any:
        raise kind("it is full, or gone")

    monkeypatch.setattr(source, "contents", refuses)
    with pytest.raises(kind):
        carried(batch)
    row = Work.objects.get()
    assert (row.state, row.error) == (
        WorkState.WAITING,
        "The database failed: it is full, or gone",
    )
    assert pipes.published == []


def test_a_password_that_cannot_be_opened_gives_the_work_back_too(
    user: User, broker: Broker, pipes: Pipes, settings: Settings
) -> None:
    batch = started(user, broker, [b"1"])
    settings.CREDENTIAL_KEYS = [Fernet.generate_key().decode()]
    row = carried(batch)
    assert row.state == WorkState.WAITING
    assert "cannot be decrypted" in row.error


def test_an_unreachable_broker_is_asked_again_later(user: User, broker: Broker) -> None:
    batch = started(user, broker, [b"1"])
    row = carried(batch)
    assert row.state == WorkState.WAITING
    assert row.error
    assert states(batch) == ["pending"]


def test_what_was_begun_before_a_cancel_says_so(user: User, broker: Broker) -> None:
    batch = started(user, broker, [b"1", b"2"])
    batch.items.filter(position=1).update(state=ItemState.PUBLISHING)
    batches.cancel(user, batch)
    batch.refresh_from_db()
    adds_up(batch)
    one, two = batch.items.all()
    assert (one.state, one.error, one.may_be_duplicated) == ("cancelled", MAYBE_PUBLISHED, True)
    assert (two.state, two.error, two.may_be_duplicated) == ("cancelled", "", False)
    assert letter_states(batch) == ["parked"] * 2


@pytest.mark.parametrize(("rate", "most"), [(4.0, 9), (0.5, 2), (1000.0, 2250)])
def test_a_rate_is_kept_over_seconds_and_evenly(rate: float, most: int) -> None:
    bucket, sent = Bucket(rate, 0.0), 0
    for tick in range(200):
        number = bucket.allows(tick / 100)
        bucket.take(number)
        sent += number
        assert sent <= 1 + rate * tick / 100 + rate / 4
    assert rate * 2 * 0.8 <= sent <= most


def test_without_a_rate_it_goes_as_fast_as_it_can() -> None:
    assert Bucket(None, 0.0).allows(0.0) == source.CHUNK


def test_the_headers_of_a_fact_are_those_of_the_letter(
    user: User, broker: Broker, pipes: Pipes
) -> None:
    carried(started(user, broker, [b"1"]))
    (event,) = [event for _, event in oldest(10) if event.kind == "replayed"]
    assert "x-death" in json.loads(event.headers_json)
    assert isinstance(pipes.published[0].properties, Properties)
