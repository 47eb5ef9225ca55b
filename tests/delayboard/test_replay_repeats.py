"""Possible repeats in a replay: excluded by default, else under the replay id of their twin."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from analytics.recorder.follow import index
from delayboard.dead_letters.discard import DISCARD, change_these
from delayboard.dead_letters.message_history import build_later_steps
from delayboard.dead_letters.parked import store
from delayboard.dead_letters.parked.store import ReturnedMessage, change_parked_messages
from delayboard.dead_letters.replay import (
    batch_state,
    claims,
    edit_message,
    make_draft,
    outcome,
    summary,
)
from delayboard.dead_letters.replay.batch_state import BatchError
from delayboard.dead_letters.replay.edit_headers import EditError
from delayboard.dead_letters.replay.options import Options
from delayboard.management import replay_output
from delayboard.models import ItemState, ParkedMessage, ParkedState, ReplayBatch, TargetMode
from delayboard.models.replay import ReplayOutcome, replay_id
from tests.analytics.builders import an_event, an_exit
from tests.delayboard.builders import a_death, a_message, deaths_header, parked
from tests.delayboard.carrying import adds_up, carried
from tests.delayboard.pipes import Pipes
from tests.delayboard.preparing import know, parked_messages_of, routes_of, work_off
from topology.message import REPLAY_HEADER
from topology.models import Broker, Topology

pytestmark = [pytest.mark.usefixtures("seen"), pytest.mark.both_databases]
PLAIN = Options(mode=TargetMode.TYPED, exchange="orders", key="orders")
INCLUDED = Options(mode=TargetMode.TYPED, exchange="orders", key="orders", include_repeats=True)
EXCLUDED = ItemState.EXCLUDED


def twins(broker: Broker, number: int = 3, *, of: Sequence[int] = (0,)) -> list[ParkedMessage]:
    """So many messages, and behind them a possible repeat of each of these."""
    found = parked(broker, *(a_parked_message(one) for one in range(number)))
    for place in of:
        (again,) = parked(broker, a_parked_message(int(found[place].message_id[1:])))
        ParkedMessage.objects.filter(pk=again.pk).update(repeat_of=found[place])
        found.append(again)
    return found


def a_parked_message(number: int, name: str = "") -> Any:
    headers = {**deaths_header(a_death()), **({REPLAY_HEADER: name} if name else {})}
    return a_message(b"%d" % number, headers, message_id=f"m{number}")


def of_parked_messages(
    parked_messages: Sequence[ParkedMessage], options: Options = PLAIN
) -> ReplayBatch:
    return make_draft.draft_messages(
        None, parked_messages[0].broker, [one.pk for one in parked_messages], options
    )


def replayed(parked_messages: Sequence[ParkedMessage], options: Options = INCLUDED) -> ReplayBatch:
    batch = of_parked_messages(parked_messages, options)
    batch_state.start(None, batch, despite_verdict=True)
    carried(batch)
    return batch


def states(batch: ReplayBatch) -> list[str]:
    return list(batch.items.values_list("state", flat=True))


def counts(batch: ReplayBatch) -> tuple[int, int, int, int]:
    batch.refresh_from_db()
    return batch.selected, batch.repeats, batch.excluded, batch.pending


def test_repeats_are_excluded_and_listed(broker: Broker) -> None:
    batch = of_parked_messages(twins(broker, 3, of=(0, 2)))
    assert counts(batch) == (5, 2, 2, 3)
    assert states(batch) == ["pending"] * 3 + ["excluded"] * 2
    assert routes_of(batch) == {("orders", "orders", "delivered"): 3}
    assert not batch.items.filter(state=EXCLUDED, route__isnull=False).exists()
    adds_up(batch)


@pytest.mark.usefixtures("small")
def test_the_worker_excludes_them_too_and_judges_them_when_they_are_included(
    broker: Broker,
) -> None:
    twins(broker, 5, of=(0, 1, 4))
    batch = make_draft.draft_query(None, broker, "", PLAIN)
    work_off(batch)
    assert counts(batch) == (8, 3, 3, 5)
    make_draft.change_options(None, batch, INCLUDED)
    work_off(batch)
    assert counts(batch) == (8, 3, 0, 8)
    assert routes_of(batch) == {("orders", "orders", "delivered"): 8}
    make_draft.change_options(None, batch, PLAIN)
    work_off(batch)
    assert counts(batch) == (8, 3, 3, 5)
    adds_up(batch)


def test_a_small_draft_takes_them_in_and_leaves_them_out_again(broker: Broker) -> None:
    batch = of_parked_messages(twins(broker))
    make_draft.change_options(None, batch, INCLUDED)
    assert counts(batch) == (4, 1, 0, 4)
    assert routes_of(batch) == {("orders", "orders", "delivered"): 4}
    make_draft.change_options(None, batch, PLAIN)
    assert counts(batch) == (4, 1, 1, 3)
    assert routes_of(batch) == {("orders", "orders", "delivered"): 3}


@pytest.mark.parametrize("by_worker", [False, True])
def test_a_replay_of_nothing_but_repeats_says_so_and_does_not_start(
    broker: Broker, by_worker: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    *_, again = twins(broker)
    if by_worker:
        monkeypatch.setattr(make_draft, "AT_ONCE", 0)
        batch = make_draft.draft_query(None, broker, "repeat:yes", PLAIN)
        work_off(batch)
    else:
        batch = of_parked_messages([again])
    assert (batch.state, batch.state_why) == ("draft", "")
    with pytest.raises(BatchError, match="possible repeats and are excluded"):
        batch_state.start(None, batch, despite_verdict=True)
    assert parked_messages_of(batch) == [again.pk]


def test_excluded_ones_stay_parked_whatever_becomes_of_the_replay(
    broker: Broker, pipes: Pipes
) -> None:
    *_, again = parked_messages = twins(broker)
    batch = replayed(parked_messages, PLAIN)
    assert pipes.bodies == [b"0", b"1", b"2"]
    assert (batch.done, batch.excluded, batch.pending, batch.state) == (3, 1, 0, "done")
    again.refresh_from_db()
    assert again.state == ParkedState.PARKED
    cancelled = of_parked_messages(twins(broker))
    batch_state.cancel(None, cancelled)
    cancelled.refresh_from_db()
    assert (cancelled.cancelled, cancelled.excluded) == (3, 1)
    adds_up(cancelled)


def test_an_included_repeat_carries_the_replay_id_of_its_twin(broker: Broker, pipes: Pipes) -> None:
    parked_messages = twins(broker, 2, of=(1, 2))  # the second repeats the first repeat
    batch = replayed(parked_messages)
    first, second = replay_id(batch.uid, 1), replay_id(batch.uid, 2)
    assert pipes.names == [first, second, second, second]
    assert [item.replay_id for item in batch.items.all()] == pipes.names


def test_several_repeats_of_one_and_the_newest_first(broker: Broker, pipes: Pipes) -> None:
    parked_messages = twins(broker, 2, of=(0, 0))
    batch = replayed(parked_messages, Options(**{**INCLUDED.__dict__, "order": "newest"}))
    assert pipes.names == [replay_id(batch.uid, one) for one in (1, 1, 2, 1)]


def test_a_repeat_carries_the_id_of_an_earlier_replay(broker: Broker, pipes: Pipes) -> None:
    first, *_, again = twins(broker)
    earlier = replayed([first])
    later = replayed([again])
    assert pipes.names == [replay_id(earlier.uid, 1)] * 2
    assert later.items.get().replay_id == pipes.names[0]


def test_a_twin_that_another_replay_has_claimed_lends_its_id(broker: Broker, pipes: Pipes) -> None:
    first, *_, again = twins(broker)
    waiting = of_parked_messages([first])
    batch_state.start(None, waiting, despite_verdict=True)
    changed = ReplayBatch.objects.filter(pk=waiting.pk)
    batch_state.pause(None, changed.get())
    replayed([again])
    batch_state.resume(None, changed.get())
    carried(changed.get())
    assert pipes.names == [replay_id(waiting.uid, 1)] * 2


def test_a_repeat_whose_twin_never_went_has_its_own_id_and_the_twin_gets_it_later(
    broker: Broker, user: User, pipes: Pipes
) -> None:
    first, second, *_, again, another = twins(broker, of=(0, 1))
    change_these(user, broker, DISCARD, [first.pk])
    draft = of_parked_messages([second])
    batch = replayed([again, another])
    assert pipes.names == [replay_id(batch.uid, 1), replay_id(batch.uid, 2)]
    batch_state.start(None, draft, despite_verdict=True)
    carried(draft)
    assert pipes.names[2] == pipes.names[1]


def test_to_send_a_message_again_on_purpose_takes_a_new_id(broker: Broker, pipes: Pipes) -> None:
    first, *_, again = twins(broker)
    replayed([first])
    with transaction.atomic():
        before = (ParkedState.REPLAYED,)
        change_parked_messages([first.pk], before, ParkedState.DELAYED, by=None, at=timezone.now())
    batch = replayed([first, again])
    assert pipes.names[1:] == [replay_id(batch.uid, 1)] * 2


@pytest.mark.usefixtures("small")
def test_ids_are_shared_across_chunks_of_claims(
    broker: Broker, pipes: Pipes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_state, "AT_ONCE", 0)
    twins(broker, 4, of=(0, 3))
    batch = make_draft.draft_query(None, broker, "", INCLUDED)
    work_off(batch)
    batch_state.start(None, batch, despite_verdict=True)
    monkeypatch.setattr(claims, "claim_chunk", partial(claims.claim_chunk, number=2))
    carried(batch)
    assert pipes.names == [replay_id(batch.uid, one) for one in (1, 2, 3, 4, 1, 4)]


def test_each_copy_that_dies_again_is_found_as_its_own_item(broker: Broker, pipes: Pipes) -> None:
    batch = replayed(twins(broker, 2))
    name = replay_id(batch.uid, 1)
    (one,) = parked(broker, a_parked_message(0, name))
    assert outcomes(batch) == [("died", one.pk), ("", None), ("", None)]
    (two,) = parked(broker, a_parked_message(0, name))
    assert outcomes(batch) == [("died", one.pk), ("", None), ("died", two.pk)]
    parked(broker, a_parked_message(0, name))
    batch.refresh_from_db()
    assert batch.died == 2
    again = batch.items.get(position=3).parked_message
    assert f"parked message {again.pk if again else 0}" in build_later_steps(two)[0].detail


def test_a_copy_that_is_parked_twice_is_one(broker: Broker, pipes: Pipes) -> None:
    batch = replayed(twins(broker, 2))
    message = a_parked_message(0, replay_id(batch.uid, 1))
    (one,) = parked(broker, message)
    prepared = [store.prepare(message, "dead")]
    store.put_prepared(broker, "dead", prepared, at=timezone.now(), repeats=[one.pk])
    assert outcomes(batch) == [("died", one.pk), ("", None), ("", None)]


def test_copies_in_a_queue_are_found_again_at_each_look(broker: Broker, pipes: Pipes) -> None:
    batch = replayed(twins(broker, 2))
    name, at = replay_id(batch.uid, 1), timezone.now()
    message = a_parked_message(0, name)
    prepared = (message.properties, message.content_id, "")
    for copies, died in ((1, 1), (1, 1), (2, 2), (2, 2)):
        outcome.record_returned(broker, [(name, ReturnedMessage(*prepared))] * copies, at)
        batch.refresh_from_db()
        assert batch.died == died
    parked(broker, message, message)
    batch.refresh_from_db()
    assert batch.died == 2
    assert not batch.items.filter(outcome=ReplayOutcome.DIED, died_as=None).exists()


def test_as_many_arrived_as_a_tap_saw(pair: Topology, pipes: Pipes) -> None:
    know(pair.broker)
    batch = replayed(twins(pair.broker, 2))
    stated: dict[str, Any] = {
        "message_id": "m0",
        "size_bytes": 1,
        "replay_id": replay_id(batch.uid, 1),
    }
    index(pair, [an_exit(**stated), an_exit(**stated, attempt=2)])
    assert seen_of(batch) == ["delivered", "", ""]
    index(pair, [an_event(**stated, kind="published", attempt=0)])
    assert seen_of(batch) == ["delivered", "", ""]
    index(pair, [an_exit(**stated)])
    assert seen_of(batch) == ["delivered", "", "delivered"]
    batch.refresh_from_db()
    assert batch.delivered == 2


def test_an_excluded_repeat_is_not_edited(broker: Broker) -> None:
    batch = of_parked_messages(twins(broker))
    item = batch.items.get(state=EXCLUDED)
    with pytest.raises(EditError, match="Include possible repeats"):
        edit_message.edit_message(None, item, body=b"other")
    assert routes_of(batch) == {("orders", "orders", "delivered"): 3}


def test_what_the_command_says(broker: Broker) -> None:
    first, *_, again = parked_messages = twins(broker)
    batch = of_parked_messages(parked_messages)
    dry = summary.make_dry_run_record(batch)
    said = "\n".join([*replay_output.describe_dry_run(dry), *replay_output.list_messages(batch)])
    assert f"Replay {batch.pk}: 3 messages" in said
    assert (
        "1 possible repeat excluded: still parked. Include them on the page of the replay." in said
    )
    assert f"4. m0: excluded, a possible repeat of message {first.pk}" in said
    *_, message, end = (
        json.loads(one)
        for one in replay_output.format_dry_run(dry, replay_output.format_messages(batch))
    )
    assert (message["parked_message"], message["repeat_of"]) == (again.pk, first.pk)
    assert message["is_excluded"]
    assert (end["selected"], end["repeats"], end["excluded"], end["good"]) == (4, 1, 1, 3)
    make_draft.change_options(None, batch, INCLUDED)
    dry = summary.make_dry_run_record(batch)
    assert "1 possible repeat included" in "\n".join(replay_output.describe_dry_run(dry))


def test_a_worker_that_fails_while_it_judges_anew_leaves_counts_that_add_up(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = of_parked_messages(twins(broker, 4, of=(0, 1)))
    monkeypatch.setattr(make_draft, "AT_ONCE", 1)
    monkeypatch.setattr(make_draft, "CHUNK", 2)
    make_draft.change_options(None, batch, INCLUDED)
    calls = []

    def finish(*args: Any) -> None:
        calls.append(args)
        raise BatchError("No more.")

    monkeypatch.setattr(make_draft, "explain_draft", finish)
    work_off(batch)
    assert calls
    assert (batch.state, batch.cancelled) == ("failed", 6)
    adds_up(batch)


def outcomes(batch: ReplayBatch) -> list[tuple[str, int | None]]:
    return list(batch.items.values_list("outcome", "died_as"))


def seen_of(batch: ReplayBatch) -> list[str]:
    outcome.Follower().record_arrivals(batch)
    return list(batch.items.values_list("outcome", flat=True))
