"""Freezing what was chosen: exactly that, once."""

from __future__ import annotations

from threading import Event

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from delayboard.dead_letters.discard import DISCARD, change_these
from delayboard.dead_letters.replay import make_draft, verdicts
from delayboard.dead_letters.replay.batch_state import BatchError
from delayboard.dead_letters.replay.options import Options
from delayboard.dead_letters.replay.summary import describe_selection
from delayboard.dead_letters.search.index import begin, keep_up
from delayboard.models import (
    BatchState,
    Order,
    ParkedMessage,
    ParkedState,
    ReplayBatch,
    ReplayRoute,
)
from tests.builders import make_broker
from tests.delayboard.builders import TAPPED, a_death, a_message, deaths_header, parked, shop
from tests.delayboard.preparing import (
    PLAIN,
    TYPED,
    group_of,
    know,
    nothing_was_made,
    parked_messages_of,
    routes_of,
    some,
    work_off,
)
from tests.topology.builders import NOON, a_snapshot
from topology import snapshots
from topology.definitions import Binding, Exchange
from topology.models import AuditEntry, Broker, RedactionKind, RedactionRule, WorkState
from topology.redaction import NOTHING
from topology.snapshot import Snapshot
from topology.snapshots import Latest

pytestmark = [pytest.mark.usefixtures("seen"), pytest.mark.both_databases]


def test_chosen_parked_messages_are_frozen_in_the_order_of_their_ids(
    user: User, broker: Broker
) -> None:
    keys = some(broker, 4)
    batch = make_draft.draft_messages(user, broker, [keys[2], keys[0], keys[3], keys[0]], PLAIN)
    assert batch.state == BatchState.DRAFT
    assert parked_messages_of(batch) == [keys[0], keys[2], keys[3]]
    assert (batch.selected, batch.pending, batch.description) == (3, 3, "3 chosen parked messages")
    assert routes_of(batch) == {("orders", "orders", "delivered"): 3}
    entry = AuditEntry.objects.get(action="replay prepared")
    assert (entry.what, entry.details["messages"]) == ("3 chosen parked messages", 3)
    item = batch.items.first()
    assert item is not None
    assert (item.size, item.state) == (1, "pending")


def test_what_is_not_parked_is_left_out_and_said(user: User, broker: Broker) -> None:
    keys = some(broker, 4)
    change_these(user, broker, DISCARD, [keys[0]])
    ParkedMessage.objects.filter(pk=keys[1]).update(state=ParkedState.DELAYED)
    ParkedMessage.objects.filter(pk=keys[2]).update(state=ParkedState.REPLAYING)
    batch = make_draft.draft_messages(user, broker, [*keys, 10_000], PLAIN)
    assert parked_messages_of(batch) == [keys[1], keys[3]]
    assert batch.state_why == (
        "3 of the chosen messages are excluded: they are discarded, replayed, deleted, "
        "or part of another replay."
    )


def test_parked_messages_of_another_broker_are_never_chosen(user: User, broker: Broker) -> None:
    other = make_broker(name="Another")
    with pytest.raises(BatchError, match="no message to replay"):
        make_draft.draft_messages(user, broker, some(other, 1), PLAIN)
    assert nothing_was_made()


def test_nothing_is_left_behind_when_there_is_nothing_to_replay(user: User, broker: Broker) -> None:
    (key,) = some(broker, 1)
    group = group_of(key)
    change_these(user, broker, DISCARD, [key])
    for choose in (
        lambda: make_draft.draft_messages(user, broker, [], PLAIN),
        lambda: make_draft.draft_messages(user, broker, [key], PLAIN),
        lambda: make_draft.draft_messages(user, broker, range(1, 10_002), PLAIN),
        lambda: make_draft.draft_group(user, group, PLAIN),
        lambda: make_draft.draft_query(user, broker, "died:orders", PLAIN),
        lambda: make_draft.draft_query(user, broker, "state:discarded", PLAIN),
        lambda: make_draft.draft_query(user, broker, "colour:blue", PLAIN),
    ):
        with pytest.raises(BatchError):
            choose()
    assert nothing_was_made()


def test_a_broker_that_is_not_seen_is_said_and_nothing_is_judged(
    user: User, broker: Broker
) -> None:
    keys = some(broker, 1)
    know(broker, error="It does not answer.")
    with pytest.raises(BatchError, match="cannot be checked: It does not answer"):
        make_draft.draft_messages(user, broker, keys, PLAIN)
    assert nothing_was_made()


def test_a_broker_that_is_late_is_judged_as_it_was_seen_last_and_that_is_said(
    user: User, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = some(broker, 2)
    answers = Event()

    def observe(management: object) -> Snapshot:
        answers.wait(60)
        return a_snapshot(TAPPED)

    monkeypatch.setattr(snapshots, "observe", observe)
    monkeypatch.setattr(verdicts, "PATIENCE_SECONDS", 0.1)
    snapshots._latest[broker.pk] = Latest(a_snapshot(TAPPED), timezone.now())
    try:
        batch = make_draft.draft_messages(user, broker, keys, PLAIN)
        assert routes_of(batch) == {("orders", "orders", "delivered"): 2}
        assert batch.state_why == f"Checked against the broker as of {NOON:%H:%M:%S} UTC."
        answers.set()
        monkeypatch.setattr(verdicts, "PATIENCE_SECONDS", 10)
        make_draft.change_options(user, batch, PLAIN)
        assert batch.state_why == ""
    finally:
        answers.set()


def test_a_group_is_frozen_up_to_the_newest_that_was_seen(user: User, broker: Broker) -> None:
    keys = some(broker, 3)
    parked(broker, a_message(headers=deaths_header(a_death("audit"))))
    group = group_of(keys[0])
    some(broker, 2)
    batch = make_draft.draft_group(user, group, PLAIN, newest=keys[2])
    assert parked_messages_of(batch) == keys
    assert (batch.description, batch.group) == (f"the group {group.pk}", group)
    assert describe_selection(batch, NOTHING).startswith("3 of the group “")
    everything = make_draft.draft_group(user, group, PLAIN)
    assert everything.selected == 5


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("by_group", [True, False])
def test_what_is_more_is_frozen_by_the_worker_as_it_would_be_at_once(
    user: User, broker: Broker, *, by_group: bool
) -> None:
    keys = some(broker, 7)
    parked(broker, a_message(headers=deaths_header(a_death("audit"))))
    if by_group:
        batch = make_draft.draft_group(user, group_of(keys[0]), PLAIN)
    else:
        batch = make_draft.draft_query(user, broker, "died:orders", PLAIN)
    assert (batch.state, batch.selected) == (BatchState.PREPARING, 0)
    some(broker, 1)
    done = work_off(batch)
    assert (batch.state, done.state, done.done) == (BatchState.DRAFT, WorkState.DONE, 7)
    assert parked_messages_of(batch) == keys
    assert routes_of(batch) == {("orders", "orders", "delivered"): 7}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("number", [1, 2, 5])
@pytest.mark.parametrize("order", Order)
def test_a_limit_takes_from_the_end_that_is_sent_first(
    user: User, broker: Broker, order: Order, number: int
) -> None:
    keys = some(broker, 6)
    wanted = keys[:number] if order == Order.OLDEST else keys[-number:]
    options = Options(order=order, limit=number)
    for batch in (
        make_draft.draft_group(user, group_of(keys[0]), options),
        make_draft.draft_query(user, broker, "", options),
    ):
        if number > 2:
            work_off(batch)
        assert parked_messages_of(batch) == wanted


def test_parked_messages_that_no_search_finds_yet_are_indexed_first(
    user: User, broker: Broker
) -> None:
    early = some(broker, 3, tenant=7)
    while keep_up(begin()):
        pass
    late = some(broker, 4, tenant=7)
    newest = late[-1]
    some(broker, 2, tenant=8)
    batch = make_draft.draft_query(user, broker, "header.tenant:7", PLAIN, newest=newest)
    assert batch.state == BatchState.PREPARING
    work_off(batch)
    assert (batch.state, batch.state_why) == (BatchState.DRAFT, "")
    assert parked_messages_of(batch) == early + late
    at_once = make_draft.draft_query(user, broker, "header.tenant:7", PLAIN, newest=newest)
    assert at_once.state == BatchState.DRAFT


def test_what_no_search_asks_of_the_index_waits_for_nothing(user: User, broker: Broker) -> None:
    keys = some(broker, 3)
    for query in ("", "died:orders", "reason:rejected"):
        assert parked_messages_of(make_draft.draft_query(user, broker, query, PLAIN)) == keys


def test_a_search_is_frozen_with_the_rights_of_who_asks(user: User, broker: Broker) -> None:
    some(broker, 2)
    RedactionRule.objects.create(broker=broker, kind=RedactionKind.HEADER, pattern="x-death")
    with pytest.raises(BatchError, match="redaction rule"):
        make_draft.draft_query(user, broker, "died:orders", PLAIN)
    assert nothing_was_made()
    assert make_draft.draft_query(None, broker, "died:orders", PLAIN).selected == 2


@pytest.mark.usefixtures("small")
def test_rights_that_are_gone_when_the_worker_comes_end_it(user: User, broker: Broker) -> None:
    some(broker, 5)
    batch = make_draft.draft_query(user, broker, "died:orders", PLAIN)
    RedactionRule.objects.create(broker=broker, kind=RedactionKind.HEADER, pattern="x-death")
    done = work_off(batch)
    assert (batch.state, done.state) == (BatchState.FAILED, WorkState.FAILED)
    assert "redaction rule" in batch.state_why


def test_an_empty_search_means_all_parked_parked_messages_and_no_others(
    user: User, broker: Broker
) -> None:
    keys = some(broker, 3)
    change_these(user, broker, DISCARD, [keys[0]])
    batch = make_draft.draft_query(user, broker, "  ", PLAIN)
    assert parked_messages_of(batch) == keys[1:]
    assert batch.query


@pytest.mark.usefixtures("small")
def test_a_batch_whose_group_is_gone_does_not_mean_everything(user: User, broker: Broker) -> None:
    keys = some(broker, 5)
    batch = make_draft.draft_group(user, group_of(keys[0]), PLAIN)
    ReplayBatch.objects.update(group=None)
    work_off(batch)
    assert batch.state == BatchState.FAILED
    assert not batch.items.exists()


@pytest.mark.usefixtures("small")
def test_keys_that_differ_in_each_parked_message_are_routes_of_their_own(
    user: User, broker: Broker
) -> None:
    know(broker, shop(Exchange("logs", "topic"), Binding("logs", "audit", "#")))
    messages = [
        a_message(headers=deaths_header(a_death("audit", exchange="logs", routing_keys=(key,))))
        for key in "abcdea"
    ]
    parked(broker, *messages)
    batch = make_draft.draft_query(user, broker, "", PLAIN)
    work_off(batch)
    assert routes_of(batch) == {
        **{("logs", key, "delivered"): 1 for key in "bcde"},
        ("logs", "a", "delivered"): 2,
    }
    make_draft.change_options(user, batch, TYPED)
    work_off(batch)
    assert routes_of(batch) == {("orders", "orders", "delivered"): 6}
    make_draft.change_options(user, batch, PLAIN)
    work_off(batch)
    assert len(routes_of(batch)) == ReplayRoute.objects.count() == 5
