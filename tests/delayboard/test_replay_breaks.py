"""Replays whose broker, database or worker fails: nothing is lost, what may be double is marked."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from threading import Event
from typing import Any

import pytest
from cryptography.fernet import Fernet
from django.conf import settings
from django.contrib.auth.models import User
from django.db import InterfaceError, OperationalError, connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from pytest_django import Settings

from analytics.facts import oldest
from delayboard.dead_letters.replay import batch_state, parked_source, send_batch
from delayboard.dead_letters.replay.batch_state import NOT_ANSWERED
from delayboard.dead_letters.replay.content import read_contents
from delayboard.dead_letters.replay.parked_source import CONNECTION_FAILED
from delayboard.dead_letters.replay.send_batch import replay
from delayboard.models import (
    BatchState,
    ItemState,
    MessageGroup,
    ParkedMessage,
    ParkedState,
    ReplayBatch,
    ReplayItem,
    ReplayOutcome,
)
from tests.delayboard.builders import (
    TAPPED,
    a_death,
    a_message,
    a_route,
    deaths_header,
    frozen,
    parked,
    started,
    states,
)
from tests.delayboard.carrying import RETURNED, adds_up, carried, changed, parked_message_states
from tests.delayboard.pipes import Pipes
from topology import work
from topology.broker.amqp.pipeline import Answer
from topology.broker.errors import OutcomeUnknown, Unreachable
from topology.definitions import Definitions
from topology.message import REPLAY_HEADER, Publish
from topology.models import Broker, Work, WorkState
from topology.operations import answers

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]


def test_a_broken_connection_gives_the_work_back_and_the_same_goes_again_marked(
    user: User, broker: Broker, pipes: Pipes
) -> None:
    batch = started(user, broker, [b"1", b"2"])
    pipes.broken = OutcomeUnknown("broke")
    row = carried(batch)
    assert (row.state, row.error) == (WorkState.WAITING, "broke")
    assert row.not_before_at is not None
    assert (batch.state, states(batch)) == (BatchState.RUNNING, ["publishing"] * 2)
    assert parked_message_states(batch) == ["replaying"] * 2
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
    for _ in range(parked_source.TRIES):
        assert carried(batch).state == WorkState.WAITING
        pipes.broken = None
    assert carried(batch).state == WorkState.DONE
    assert states(batch) == ["done", "unknown", "done"]
    assert parked_message_states(batch) == ["replayed", "parked", "replayed"]
    bad = batch.items.get(position=2)
    assert (bad.error, bad.may_be_duplicated) == (CONNECTION_FAILED, True)
    pipes.before = lambda p: None
    rest = replay_rest(user, broker, 1)
    assert carried(rest).state == WorkState.DONE
    assert (pipes.names[-1], rest.doubled) == (bad.replay_id, 1)


def replay_rest(user: User, broker: Broker, *places: int) -> ReplayBatch:
    """Another replay of the messages at these places."""
    rows = list(ParkedMessage.objects.order_by("pk"))
    rest = frozen(user, broker, [rows[place] for place in places])
    batch_state.start(user, rest, despite_verdict=True)
    return rest


def test_what_may_be_published_goes_again_in_the_next_replay_under_the_same_id(
    user: User, broker: Broker, pipes: Pipes
) -> None:
    first = started(user, broker, [b"1"])
    pipes.decide = lambda p: None
    carried(first)
    batch_state.cancel(user, first)
    (name,), undone = pipes.names, replay_rest(user, broker, 0)
    batch_state.cancel(user, undone)
    undone.refresh_from_db()
    adds_up(undone)
    # Neither a draft nor a replay that was cancelled before it sent anything lets it be forgotten.
    batch_state.cancel(user, frozen(user, broker, list(ParkedMessage.objects.all())))
    pipes.decide = lambda p: Answer("confirmed")
    rest = replay_rest(user, broker, 0)
    assert carried(rest).state == WorkState.DONE
    assert pipes.names == [name] * 2
    assert rest.doubled == 1
    # It died again: the replay that was confirmed is the one that learns of it.
    headers = deaths_header(a_death()) | {REPLAY_HEADER: name}
    (dead,) = parked(broker, a_message(b"1", headers, message_id="1", delivery_mode=2))
    assert list(first.items.values_list("outcome", flat=True)) == [""]
    assert rest.items.get().died_as == dead


def test_a_nacked_message_may_have_arrived_and_goes_again_under_the_same_id_marked(
    user: User, broker: Broker, pipes: Pipes
) -> None:
    first = started(user, broker, [b"1", b"2"])
    pipes.decide = lambda p: Answer("nacked", "It may have arrived.")
    assert carried(first).state == WorkState.DONE
    assert (first.unknown, first.refused, first.doubled) == (2, 0, 0)
    assert (states(first), parked_message_states(first)) == (["unknown"] * 2, ["parked"] * 2)
    pipes.decide = lambda p: Answer("confirmed")
    rest = replay_rest(user, broker, 0, 1)
    batch_state.pause(user, rest)
    batch_state.resume(user, rest)
    assert carried(rest).state == WorkState.DONE
    assert pipes.names[2:] == pipes.names[:2]
    assert (rest.done, rest.doubled) == (2, 2)
    # It died again: of the two that sent it, the confirmed one learns of it.
    headers = deaths_header(a_death()) | {REPLAY_HEADER: pipes.names[0]}
    (dead,) = parked(broker, a_message(b"1", headers, message_id="1", delivery_mode=2))
    assert rest.items.get(position=1).died_as == dead
    assert first.items.get(position=1).outcome == ""
    adds_up(first)


def test_a_replay_that_is_cancelled_keeps_what_may_have_arrived(
    user: User, broker: Broker, pipes: Pipes
) -> None:
    batch = started(user, broker, [b"1", b"2"])
    nacked = Answer("nacked", "It may have arrived.")
    pipes.decide = lambda p: nacked if p.body == b"1" else None
    carried(batch)
    batch_state.cancel(user, batch)
    batch.refresh_from_db()
    adds_up(batch)
    assert (states(batch), batch.doubled) == (["unknown", "cancelled"], 1)
    assert parked_message_states(batch) == ["parked"] * 2


def test_what_was_refused_or_confirmed_goes_again_under_a_new_id(
    user: User, broker: Broker, pipes: Pipes
) -> None:
    first = started(user, broker, [b"1"])
    pipes.decide = lambda p: RETURNED
    carried(first)
    rest = replay_rest(user, broker, 0)
    pipes.decide = lambda p: None
    carried(rest)
    pipes.decide = lambda p: Answer("confirmed")
    carried(rest)
    assert (rest.doubled, pipes.names[0] == pipes.names[1] == pipes.names[2]) == (1, False)
    ParkedMessage.objects.update(state=ParkedState.DELAYED)
    MessageGroup.objects.update(replayed=0, delayed=1)
    on_purpose = replay_rest(user, broker, 0)
    carried(on_purpose)
    assert (on_purpose.doubled, pipes.names[3] == pipes.names[2]) == (0, False)


def test_workers_that_are_killed_give_nothing_up(user: User, broker: Broker, pipes: Pipes) -> None:
    batch = started(user, broker, [b"1", b"2"])
    pipes.decide = lambda p: None
    for _ in range(2 * parked_source.TRIES):
        carried(batch)
        assert states(batch) == ["publishing"] * 2
    pipes.decide = lambda p: Answer("confirmed")
    assert carried(batch).state == WorkState.DONE
    assert (states(batch), batch.doubled) == (["done"] * 2, 2)


def test_what_is_not_answered_is_sent_again_later(user: User, broker: Broker, pipes: Pipes) -> None:
    batch = started(user, broker, [b"1", b"2"])
    pipes.decide = lambda p: None if p.body == b"2" else Answer("confirmed")
    row = carried(batch)
    assert (row.state, row.error) == (WorkState.WAITING, NOT_ANSWERED)
    assert states(batch) == ["done", "publishing"]


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

        monkeypatch.setattr(answers, "refresh_route", look)
        return asked

    for module in (parked_source, send_batch):
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


def test_a_worker_whose_lease_is_another_s_writes_down_only_what_was_confirmed(
    user: User, broker: Broker, pipes: Pipes
) -> None:
    batch = started(user, broker, [b"1", b"2"])
    pipes.before = lambda p: changed(Work, owner="another", fence=99)
    pipes.decide = lambda p: RETURNED if p.body == b"2" else Answer("confirmed")
    row = carried(batch)
    assert (row.state, row.owner) == (WorkState.RUNNING, "another")
    assert states(batch) == ["done", "publishing"]
    assert parked_message_states(batch) == ["replayed", "replaying"]


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
    work.attempt(replay, later[0], stop=Event())
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
            taken = parked_source.Taken(1, item.parked_message_id, is_delayed=False)
            with transaction.atomic():
                parked_source.write_endings(
                    batch, [parked_source.Ending(taken, ItemState.DONE)], timezone.now()
                )
        return read_contents(*args, **kwargs)

    monkeypatch.setattr(parked_source, "read_contents", late)
    assert carried(batch).state == WorkState.DONE
    assert (pipes.bodies, states(batch), batch.doubled) == ([b"2"], ["done"] * 2, 0)


def test_only_open_items_are_written_and_a_delay_is_the_outcome_of_done_ones_without_another(
    user: User, broker: Broker
) -> None:
    batch = started(user, broker, [b"1", b"2", b"3"], a_route("orders", "orders", after_ms=5000))
    at = timezone.now()

    def end(position: int, state: ItemState) -> parked_source.Ending:
        item = batch.items.get(position=position)
        taken = parked_source.Taken(position, item.parked_message_id, is_delayed=True)
        return parked_source.Ending(taken, state, "late" if state == ItemState.FAILED else "")

    first, second, third = batch.items.values_list("position", flat=True)
    earlier = end(first, ItemState.DONE)
    later = [end(first, ItemState.FAILED), end(second, ItemState.DONE)]
    later += [end(third, ItemState.FAILED)]
    batch.items.filter(position=second).update(outcome=ReplayOutcome.DIED)
    with transaction.atomic():
        assert parked_source.write_endings(batch, [earlier], at) == [earlier]
        assert parked_source.write_endings(batch, later, at) == later[1:]
    written = batch.items.values_list("state", "error", "outcome", "ended_at", "outcome_at")
    assert list(written) == [
        ("done", "", ReplayOutcome.DELAYED, at, at),
        ("done", "", ReplayOutcome.DIED, at, None),
        ("failed", "late", "", at, None),
    ]
    assert parked_message_states(batch) == ["delayed", "delayed", "parked"]


@pytest.mark.django_db(transaction=True)
def test_a_commit_whose_answer_was_lost_is_counted_once(
    user: User, broker: Broker, pipes: Pipes, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = started(user, broker, [b"1", b"2", b"3"])
    wire = transaction.get_connection()
    commit, written = wire.commit, parked_source.write_endings

    def lost() -> None:
        monkeypatch.setattr(wire, "commit", commit)
        commit()
        raise OperationalError("server closed the connection unexpectedly")

    def write(batch: ReplayBatch, endings: Any, *args: Any, **kwargs: Any) -> Any:
        if endings:
            monkeypatch.setattr(parked_source, "write_endings", written)
            monkeypatch.setattr(wire, "commit", lost)
        return written(batch, endings, *args, **kwargs)

    monkeypatch.setattr(parked_source, "write_endings", write)
    monkeypatch.setattr(send_batch, "DATABASE_SECONDS", 0.0)
    row = carried(batch)
    assert (row.state, row.done, states(batch)) == (WorkState.DONE, 3, ["done"] * 3)
    assert [event.kind for _, event in oldest(10)].count("replayed") == 3


def test_parked_messages_and_groups_are_locked_before_items(
    user: User, broker: Broker, pipes: Pipes
) -> None:
    batch = started(user, broker, [b"1", b"2"])
    ParkedMessage.objects.filter(message_id="1").update(properties=b"\x20\x00\x00\x00\x00\x09\x01")
    with CaptureQueriesContext(connection) as asked:
        carried(batch)
    updated = [match[1] for one in asked if (match := re.match(r'UPDATE "(\w+)"', one["sql"]))]
    names = (ParkedMessage, MessageGroup, ReplayItem, ReplayBatch)
    first = [updated.index(name._meta.db_table) for name in names]
    assert first == sorted(first)
    assert states(batch) == ["failed", "done"]


def test_an_end_of_the_worker_leaves_it_to_the_next(
    user: User, broker: Broker, pipes: Pipes, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = started(user, broker, [b"1", b"2"])
    monkeypatch.setattr(settings, "MESSAGES_IN_FLIGHT", 1)
    stop = Event()
    pipes.before = lambda p: stop.set()
    row = carried(batch, stop)
    assert (row.state, states(batch)) == (WorkState.WAITING, ["done", "pending"])
    assert work.claim(("replay",), "worker") is not None


def test_a_database_that_refuses_what_was_sent_is_asked_until_it_takes_it(
    user: User, broker: Broker, pipes: Pipes, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = started(user, broker, [b"1", b"2"])
    write = parked_source.write_endings
    refused: list[int] = []

    def refuses(batch: ReplayBatch, endings: Any, *args: Any, **kwargs: Any) -> Any:
        if endings and len(refused) < 2:
            refused.append(1)
            raise OperationalError("database or disk is full")
        return write(batch, endings, *args, **kwargs)

    monkeypatch.setattr(parked_source, "write_endings", refuses)
    monkeypatch.setattr(send_batch, "DATABASE_SECONDS", 0.0)
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

    monkeypatch.setattr(parked_source, "read_contents", refuses)
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
