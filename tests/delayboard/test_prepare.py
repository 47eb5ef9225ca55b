"""What the worker prepares: once, whoever dies or is asked to stop."""

from __future__ import annotations

from datetime import timedelta
from threading import Event

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from delayboard.dead_letters.replay import batch_state, make_draft
from delayboard.dead_letters.replay.batch_state import BatchError
from delayboard.dead_letters.replay.options import OptionError, Options
from delayboard.models import (
    BatchState,
    ParkedMessage,
    ParkedState,
    ReplayBatch,
    ReplayRoute,
    TargetMode,
)
from tests.delayboard.builders import a_message, parked
from tests.delayboard.preparing import (
    PLAIN,
    TYPED,
    group_of,
    know,
    parked_messages_of,
    routes_of,
    some,
    work_off,
)
from topology.models import AuditEntry, Broker, Work, WorkState

pytestmark = [pytest.mark.usefixtures("seen"), pytest.mark.both_databases]


@pytest.mark.usefixtures("small")
def test_a_worker_that_is_stopped_leaves_it_to_another_that_goes_on(
    user: User, broker: Broker
) -> None:
    keys = some(broker, 7)
    batch = make_draft.draft_group(user, group_of(keys[0]), PLAIN)
    stop = Event()
    beats = iter(range(100))

    def alive() -> None:
        if next(beats) == 2:
            stop.set()

    given_back = work_off(batch, stop=stop, alive=alive)
    assert given_back.state == WorkState.WAITING
    assert 0 < batch.selected < 7
    work_off(batch)
    assert parked_messages_of(batch) == keys
    assert routes_of(batch) == {("orders", "orders", "delivered"): 7}


@pytest.mark.usefixtures("small")
def test_one_that_dies_goes_on_at_the_chunk_that_was_not_committed(
    user: User, broker: Broker
) -> None:
    keys = some(broker, 7)
    batch = make_draft.draft_group(user, group_of(keys[0]), PLAIN)
    beats = iter(range(100))

    def alive() -> None:
        if next(beats) == 3:
            raise OSError("killed")

    with pytest.raises(OSError, match="killed"):
        work_off(batch, alive=alive)
    Work.objects.update(leased_until_at=timezone.now() - timedelta(seconds=1))
    work_off(batch)
    assert parked_messages_of(batch) == keys
    assert batch.state == BatchState.DRAFT


@pytest.mark.usefixtures("small")
def test_it_can_be_cancelled_while_it_is_prepared(user: User, broker: Broker) -> None:
    keys = some(broker, 7)
    batch = make_draft.draft_group(user, group_of(keys[0]), PLAIN)
    beats = iter(range(100))

    def alive() -> None:
        if next(beats) == 2:
            batch_state.cancel(user, ReplayBatch.objects.get(pk=batch.pk))

    done = work_off(batch, alive=alive)
    assert (batch.state, done.state) == (BatchState.CANCELLED, WorkState.CANCELLED)
    assert batch.pending == 0
    assert not batch.items.exclude(state="cancelled").exists()
    assert set(ParkedMessage.objects.values_list("state", flat=True)) == {ParkedState.PARKED}


@pytest.mark.usefixtures("small")
def test_a_broker_that_is_not_seen_is_waited_for(user: User, broker: Broker) -> None:
    keys = some(broker, 5)
    batch = make_draft.draft_group(user, group_of(keys[0]), PLAIN)
    know(broker, error="It does not answer.")
    given_back = work_off(batch)
    assert (batch.state, given_back.state) == (BatchState.PREPARING, WorkState.WAITING)
    assert "does not answer" in given_back.error


@pytest.mark.usefixtures("small")
def test_the_worker_says_so_too(user: User, broker: Broker) -> None:
    parked(broker, *[a_message(headers={"a": place}) for place in range(5)])
    batch = make_draft.draft_query(user, broker, "", PLAIN)
    work_off(batch)
    assert (batch.state, routes_of(batch)) == (BatchState.DRAFT, {("", "", "refused"): 5})
    assert "Enter an exchange and a key" in batch.state_why
    make_draft.change_options(user, batch, TYPED)
    work_off(batch)
    assert (batch.state_why, routes_of(batch)) == ("", {("orders", "orders", "delivered"): 5})


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("number", [2, 5])
def test_a_changed_draft_keeps_what_was_frozen(user: User, broker: Broker, number: int) -> None:
    keys = some(broker, number)
    batch = make_draft.draft_group(user, group_of(keys[0]), PLAIN)
    if number > 2:
        work_off(batch)
    before = list(batch.items.values_list("pk", "position", "parked_message"))
    some(broker, 3)
    options = Options(mode=TargetMode.TYPED, key="dead", rate=5.0, most_replays=1)
    make_draft.change_options(user, batch, options)
    if number > 2:
        assert batch.state == BatchState.PREPARING
        work_off(batch)
    assert (batch.state, batch.selected, batch.rate) == (BatchState.DRAFT, number, 5.0)
    assert list(batch.items.values_list("pk", "position", "parked_message")) == before
    assert routes_of(batch) == {("", "dead", "loops"): number}
    make_draft.change_options(user, batch, PLAIN)
    if number > 2:
        work_off(batch)
    assert routes_of(batch) == {("orders", "orders", "delivered"): number}
    assert ReplayRoute.objects.count() <= 2
    assert AuditEntry.objects.filter(action="replay changed").count() == 2


@pytest.mark.usefixtures("small")
def test_judging_anew_goes_on_where_a_worker_died(user: User, broker: Broker) -> None:
    keys = some(broker, 7)
    batch = make_draft.draft_group(user, group_of(keys[0]), PLAIN)
    work_off(batch)
    make_draft.change_options(user, batch, TYPED)
    beats = iter(range(100))

    def alive() -> None:
        if next(beats) == 2:
            raise OSError("killed")

    with pytest.raises(OSError, match="killed"):
        work_off(batch, alive=alive)
    Work.objects.update(leased_until_at=timezone.now() - timedelta(seconds=1))
    work_off(batch)
    assert batch.state == BatchState.DRAFT
    assert parked_messages_of(batch) == keys
    assert routes_of(batch) == {("orders", "orders", "delivered"): 7}


def test_only_a_draft_can_be_changed(user: User, broker: Broker) -> None:
    batch = make_draft.draft_messages(user, broker, some(broker, 1), PLAIN)
    batch_state.start(user, batch, despite_verdict=False)
    with pytest.raises(BatchError, match="Only a draft"):
        make_draft.change_options(user, batch, TYPED)
    assert ReplayBatch.objects.get().mode == TargetMode.DEFAULT


def test_options_that_fit_no_message_change_nothing(user: User, broker: Broker) -> None:
    keys = [row.pk for row in parked(broker, a_message(headers={}))]
    batch = make_draft.draft_messages(user, broker, keys, TYPED)
    with pytest.raises(BatchError, match="Enter an exchange"):
        make_draft.change_options(user, batch, PLAIN)
    with pytest.raises(OptionError):
        make_draft.change_options(user, batch, Options(mode=TargetMode.DELAY, topology_id=5))
    batch.refresh_from_db()
    assert batch.mode == TargetMode.TYPED
    assert routes_of(batch) == {("orders", "orders", "delivered"): 1}
