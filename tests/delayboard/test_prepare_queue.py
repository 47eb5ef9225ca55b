"""Replays out of a live queue: what was chosen is parked first."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from delayboard.dead_letters.replay import make_draft
from delayboard.dead_letters.replay.batch_state import BatchError
from delayboard.dead_letters.replay.options import Options
from delayboard.models import BatchState, ParkedMessage, TargetMode
from tests.delayboard.builders import a_message, parked, some_peeked_messages
from tests.delayboard.preparing import (
    PLAIN,
    confirm,
    nothing_was_made,
    parked_messages_of,
    routes_of,
    some,
    work_off,
)
from topology.message import Message
from topology.models import Broker, Work, WorkState

pytestmark = pytest.mark.usefixtures("seen")
HANDLES = [one.handle for one in some_peeked_messages([b"0", b"1", b"2"])]


def test_chosen_messages_of_a_queue_are_parked_first(user: User, broker: Broker) -> None:
    confirm(user, broker)
    some(broker, 1)
    batch = make_draft.draft_peeked(user, broker, "dead", HANDLES, PLAIN)
    assert (batch.state, batch.description) == (BatchState.PREPARING, "3 chosen messages of dead")
    assert batch.parking is not None
    assert batch.parking.handles == HANDLES
    waits = work_off(batch)
    assert (waits.state, waits.error) == (WorkState.WAITING, make_draft.PARKS)
    session = batch.parking.parksession_set.create(
        broker=broker, queue="dead", began_at=timezone.now()
    )
    keys = some(broker, 2)
    ParkedMessage.objects.filter(pk__in=keys).update(session=session)
    Work.objects.filter(parking=batch.parking).update(state=WorkState.DONE)
    Work.objects.update(not_before_at=None)
    batch.refresh_from_db()
    work_off(batch)
    assert parked_messages_of(batch) == keys
    assert batch.state == BatchState.DRAFT
    assert batch.state_why == ("1 of the chosen messages are no longer in the queue.")


def test_when_none_could_be_parked_it_has_failed_and_says_why(user: User, broker: Broker) -> None:
    confirm(user, broker)
    batch = make_draft.draft_peeked(user, broker, "dead", HANDLES, PLAIN)
    assert batch.parking is not None
    Work.objects.filter(parking=batch.parking).update(
        state=WorkState.FAILED, error="There is no queue “dead”."
    )
    work_off(batch)
    assert batch.state == BatchState.FAILED
    assert batch.state_why == (
        "None of the chosen messages could be parked. There is no queue “dead”."
    )


@pytest.mark.parametrize("queue", ["dead", "nowhere"])
def test_of_a_queue_that_nobody_confirmed_nothing_is_taken(
    user: User, broker: Broker, queue: str
) -> None:
    with pytest.raises(BatchError):
        make_draft.draft_peeked(user, broker, queue, HANDLES, PLAIN)
    assert nothing_was_made()


def test_a_message_that_lay_in_a_queue_is_read_as_it_came(user: User, broker: Broker) -> None:
    """The one that the parked message keeps decides, not the group that it is counted in."""
    (row,) = parked(broker, Message("", "dead", a_message().properties, b"1"), queue="audit")
    options = Options(mode=TargetMode.TYPED, key="audit")
    assert routes_of(make_draft.draft_messages(user, broker, [row.pk], options)) == {
        ("", "audit", "loops"): 1
    }


@pytest.mark.usefixtures("small")
def test_what_another_has_parked_of_the_same_queue_is_not_taken(user: User, broker: Broker) -> None:
    confirm(user, broker)
    batch = make_draft.draft_peeked(user, broker, "dead", HANDLES, PLAIN)
    some(broker, 3)
    assert batch.parking is not None
    Work.objects.filter(parking=batch.parking).update(state=WorkState.DONE)
    work_off(batch)
    assert batch.state == BatchState.FAILED
    assert not batch.items.exists()
