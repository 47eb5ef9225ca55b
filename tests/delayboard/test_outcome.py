"""What became of replayed messages: dead-lettered again, delivered, not observed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from hashlib import sha256
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from analytics.events import MessageEvent, bounded_headers
from analytics.recorder.copies import content_of
from analytics.recorder.follow import index
from analytics.retention.rules import DELIVERED
from delayboard.dead_letters.replay import outcome, seen_messages
from delayboard.models import BatchState, Body, ItemState, ParkedMessage, ParkedState, ReplayBatch
from delayboard.models.replay import (
    ReplayEdit,
    ReplayOutcome,
    TargetMode,
    parse_replay_id,
    replay_id,
)
from tests.analytics.builders import NOON, an_entry, an_event, an_exit
from tests.builders import make_broker
from tests.delayboard.builders import a_death, a_message, deaths_header, parked
from tests.delayboard.replay_rows import a_batch
from topology.broker.properties.read import build_properties
from topology.definitions import DELAY_HEADER
from topology.message import ATTEMPT_HEADER, REPLAY_HEADER, REPLAYS_HEADER, Headers, Message
from topology.models import Broker, State, Topology
from topology.operations.topology_rows import create_topology
from topology.patterns.busy_wait.pattern import busy_wait
from topology.patterns.delayed_exchange.pattern import delayed_exchange

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]
# As taps tell of what the first item sent.
FIRST: dict[str, Any] = {"message_id": "m0", "size_bytes": 1}
HANDED_ROUTE = {"after_ms": 5000}


def sent(broker: Broker, number: int = 2, **stated: object) -> ReplayBatch:
    """A batch that is through, with so many messages."""
    parked_messages = parked(
        broker, *(a_message(b"%d" % n, message_id=f"m{n}") for n in range(number))
    )
    return a_batch(broker, parked_messages, BatchState.DONE, [ItemState.DONE], **stated)


def handed(batch: ReplayBatch) -> None:
    """As the sender leaves what it gave to a delay."""
    batch.routes.update(**HANDED_ROUTE)
    batch.items.update(outcome=ReplayOutcome.DELAYED)
    parked_messages = ParkedMessage.objects.filter(replays__batch=batch)
    for parked_message in parked_messages:
        type(parked_message.group).objects.filter(pk=parked_message.group_id).update(
            parked=0, delayed=parked_messages.count()
        )
    parked_messages.update(state=ParkedState.DELAYED)


def back(batch: ReplayBatch, *texts: str) -> list[ParkedMessage]:
    """Parked anew with these in the replay header, with the content of what that names."""
    parsed = [parse_replay_id(text) for text in texts]
    return parked(
        batch.broker,
        *(as_sent(one[1] if one else 1, text) for one, text in zip(parsed, texts, strict=True)),
    )


def as_sent(
    position: int, text: str, body: bytes | None = None, more: Headers | None = None, **stated: Any
) -> Message:
    """What the item at this position of `sent` sent, dead again, or with another content."""
    headers = {**deaths_header(a_death(reason="expired")), REPLAY_HEADER: text, **(more or {})}
    name = b"%d" % (position - 1)
    return a_message(
        name if body is None else body, headers, **{"message_id": f"m{position - 1}"} | stated
    )


def reported(batch: ReplayBatch, position: int) -> str:
    return replay_id(batch.uid, position)


def outcomes(batch: ReplayBatch) -> list[str]:
    return list(batch.items.values_list("outcome", flat=True))


def counts(batch: ReplayBatch) -> tuple[int, int]:
    batch.refresh_from_db()
    return batch.delivered, batch.died


def seen(batch: ReplayBatch) -> int:
    return outcome.Follower().record_arrivals(batch)


def test_a_message_that_is_parked_again_died_again_as_that_parked_message(broker: Broker) -> None:
    batch = sent(broker)
    (parked_message,) = back(batch, reported(batch, 2))
    first, second = batch.items.all()
    assert (first.outcome, first.died_as) == ("", None)
    assert (second.outcome, second.died_as, second.outcome_at) == (
        ReplayOutcome.DIED,
        parked_message,
        NOON,
    )
    assert counts(batch) == (0, 1)


def test_one_that_is_parked_twice_counts_once(broker: Broker) -> None:
    batch = sent(broker)
    one, _ = back(batch, reported(batch, 1), reported(batch, 1))
    back(batch, reported(batch, 1))
    assert counts(batch) == (0, 1)
    assert batch.items.get(position=1).died_as == one


def test_what_arrived_and_then_died_is_counted_as_dead_only(broker: Broker) -> None:
    batch = sent(broker, delivered=1)
    batch.items.filter(position=1).update(outcome=ReplayOutcome.DELIVERED)
    back(batch, reported(batch, 1))
    assert counts(batch) == (0, 1)


def test_made_up_ids_count_for_nothing_and_are_parked_all_the_same(broker: Broker) -> None:
    batch = sent(broker)
    batch.items.filter(position=2).update(attempts=0, state=ItemState.PENDING)
    texts = [
        reported(batch, 2),
        reported(batch, 99),
        f"{batch.uid.hex}-99999999999999",
        f"{batch.uid.hex}-",
        f"{batch.uid}-1",
        "0" * 32 + "-1",
        "x" * 5000,
        "é\x00",
        "",
    ]
    assert len(back(batch, *texts)) == len(texts)
    assert outcomes(batch) == ["", ""]
    assert counts(batch) == (0, 0)


def test_an_id_of_another_message_counts_for_nothing(broker: Broker) -> None:
    batch = sent(broker)
    handed(batch)
    second = reported(batch, 2)
    (made_up, derived) = parked(
        broker,
        # Who was sent the first one knows its content, and can name all positions.
        as_sent(1, second),
        as_sent(2, second, b"derived", {REPLAYS_HEADER: 1}),
    )
    outcome.Follower().resolve_died(batch, timezone.now())
    assert counts(batch) == (0, 0)
    assert set(batch.items.values_list("outcome", "parked_message__state")) == {
        (ReplayOutcome.DELAYED, ParkedState.DELAYED)
    }
    assert {made_up.state, derived.state} == {ParkedState.PARKED}


def test_of_several_that_name_an_item_the_one_with_its_content_is_it(broker: Broker) -> None:
    batch = sent(broker)
    name = reported(batch, 2)
    _, again = parked(broker, as_sent(2, name, b"other"), as_sent(2, name))
    assert batch.items.get(position=2).died_as == again
    assert counts(batch) == (0, 1)


def test_what_a_library_writes_when_it_fails_makes_it_no_other(broker: Broker) -> None:
    batch = sent(broker)
    error = {"NServiceBus.ExceptionInfo.Message": "At 12:00.", ATTEMPT_HEADER: 3}
    parked(broker, as_sent(2, reported(batch, 2), more=error))
    assert counts(batch) == (0, 1)


@pytest.mark.parametrize(
    ("headers", "number"), [({ATTEMPT_HEADER: 3}, 1), ({"n": 2}, 0), ({"n": 1, "more": 1}, 0)]
)
def test_without_a_message_id_all_that_was_sent_is_compared(
    broker: Broker, headers: Headers, number: int
) -> None:
    stated = {"message_id": None}
    parked_messages = parked(broker, as_sent(1, "", more={"n": 1}, **stated))
    batch = a_batch(broker, parked_messages, BatchState.DONE, [ItemState.DONE])
    came = as_sent(1, reported(batch, 1), more={"n": 1, **headers}, **stated)
    parked(broker, came)
    assert counts(batch) == (0, number)


@pytest.mark.parametrize(
    ("pattern", "header", "value"),
    [(delayed_exchange, DELAY_HEADER, -5000), (busy_wait, busy_wait.EXAMPLE.due_header, 7)],
)
def test_what_steers_it_through_a_delay_makes_it_no_other(
    broker: Broker, pattern: Any, header: str, value: int
) -> None:
    params = pattern.EXAMPLE
    topology = create_topology(None, broker, pattern.KIND, params)
    Topology.objects.filter(pk=topology.pk).update(state=State.APPLIED)
    (delay, *_) = pattern.delays(params) or (timedelta(seconds=5),)
    batch = a_batch(
        broker,
        parked(broker, as_sent(1, "", message_id=None)),
        BatchState.DONE,
        [ItemState.DONE],
        mode=TargetMode.DELAY,
        topology=topology,
        delay=delay,
    )
    batch.routes.update(routing_key=pattern.targets(params)[0])
    parked(broker, as_sent(1, reported(batch, 1), more={header: value}, message_id=None))
    assert counts(batch) == (0, 1)


@pytest.mark.parametrize(("is_edit", "number"), [(True, 1), (False, 0)])
def test_an_edited_item_died_again_as_what_was_sent_instead(
    broker: Broker, is_edit: bool, number: int
) -> None:
    batch = sent(broker)
    edited = Body.objects.create(sha256=sha256(b"edited").hexdigest(), size=6, data=b"edited")
    ReplayEdit.objects.create(
        item=batch.items.get(position=2),
        properties=build_properties({"n": 5}, message_id="m1").raw,
        body=edited,
        edited_at=NOON,
    )
    came = as_sent(2, reported(batch, 2), b"edited" if is_edit else None, {"n": 5})
    parked(broker, came)
    assert counts(batch) == (0, number)


def test_what_cannot_be_compared_any_more_does_not_count(broker: Broker) -> None:
    batch = sent(broker)
    batch.items.update(parked_message=None)
    back(batch, reported(batch, 1))
    assert counts(batch) == (0, 0)


@pytest.mark.parametrize("value", [1, None, b"\xff", [1], {"a": 1}, True])
def test_a_replay_header_of_another_type_is_none(broker: Broker, value: object) -> None:
    (parked_message,) = parked(broker, a_message(headers={REPLAY_HEADER: value}))
    assert parked_message.state == ParkedState.PARKED


def test_the_batch_of_another_broker_is_not_meant(broker: Broker) -> None:
    batch = sent(broker)
    other = make_broker(name="Other")
    parked(other, a_message(headers={REPLAY_HEADER: reported(batch, 1)}))
    assert counts(batch) == (0, 0)


def test_parking_without_replays_asks_nothing(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(outcome, "record_returned", lambda *reported: asked.append(reported))
    parked(broker, a_message(b"1"), a_message(b"2"))
    assert asked == []


def test_many_that_come_back_ask_the_database_no_more_than_ten(broker: Broker) -> None:
    batch = sent(broker, 60)
    asked = []
    for positions in (range(1, 11), range(11, 61)):
        (parked_message,) = back(batch, "")
        named: dict[int, int | None] = dict.fromkeys(positions, parked_message.pk)
        with CaptureQueriesContext(connection) as queries:
            assert outcome.record_died(batch.pk, named, NOON) == len(named)
        asked.append(len(queries))
    assert asked[0] == asked[1]
    assert counts(batch) == (0, 60)


@pytest.mark.parametrize(("died", "limit", "stops"), [(2, 3, False), (3, 3, True), (9, 0, False)])
def test_a_batch_stops_itself_when_so_many_died_again(
    broker: Broker, died: int, limit: int, stops: bool
) -> None:
    batch = a_batch(broker, state=BatchState.RUNNING, died=0, stop_after=limit)
    ReplayBatch.objects.update(died=died)
    said = outcome.explain_stop(batch)
    assert bool(said) == stops
    assert not stops or said.startswith("3 messages were dead-lettered again")


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([an_entry(**FIRST), an_exit(**FIRST)], ReplayOutcome.DELIVERED),
        ([an_exit(**FIRST)], ReplayOutcome.DELIVERED),
        ([an_event(**FIRST, kind="published", attempt=0)], ReplayOutcome.DELIVERED),
        ([an_entry(**FIRST)], ""),
        (
            [
                an_entry(
                    **FIRST,
                    headers_json='{"x-death":[{"queue":"q","reason":"rejected","count":1}]}',
                )
            ],
            ReplayOutcome.DELIVERED,
        ),
        (
            [
                an_entry(
                    **FIRST, headers_json='{"x-death":[{"queue":"q","reason":"expired","count":1}]}'
                )
            ],
            "",
        ),
    ],
)
def test_what_taps_saw_of_it(pair: Topology, events: Sequence[MessageEvent], expected: str) -> None:
    batch = sent(pair.broker)
    for event in events:
        event.replay_id = reported(batch, 1)
    index(pair, events)
    assert seen(batch) == bool(expected)
    assert outcomes(batch) == [expected, ""]
    assert counts(batch) == (bool(expected), 0)
    assert seen(batch) == 0


@pytest.mark.parametrize("other", [{"message_id": "m1"}, {"size_bytes": 2}])
def test_a_tap_that_saw_another_message_under_its_id_saw_nothing(
    pair: Topology, other: dict[str, Any]
) -> None:
    batch = sent(pair.broker)
    handed(batch)
    index(pair, [an_exit(**FIRST | other, replay_id=reported(batch, 1))])
    assert seen(batch) == 0
    assert not ParkedMessage.objects.filter(state=ParkedState.REPLAYED).exists()


@pytest.mark.parametrize(("headers", "number"), [({"n": 1, ATTEMPT_HEADER: 3}, 1), ({"n": 2}, 0)])
def test_without_a_message_id_a_tap_has_to_have_seen_its_content(
    pair: Topology, headers: Headers, number: int
) -> None:
    (parked_message,) = parked(pair.broker, as_sent(1, "", more={"n": 1}, message_id=None))
    batch = a_batch(pair.broker, [parked_message], BatchState.DONE, [ItemState.DONE])
    seen_as = as_sent(1, reported(batch, 1), more=headers, message_id=None)
    event = an_exit(
        "",
        size_bytes=1,
        content_id=content_of(seen_as),
        headers_json=bounded_headers(headers),
        replay_id=reported(batch, 1),
    )
    index(pair, [event])
    assert seen(batch) == number


def test_a_tracked_message_that_is_replayed_is_followed_as_the_replay(pair: Topology) -> None:
    batch = sent(pair.broker)
    index(pair, [an_exit(**FIRST, tracking_id="t1", replay_id=reported(batch, 1))])
    assert seen(batch) == 1


def test_what_replays_leave_in_the_index_goes_like_all_that_has_left(
    pair: Topology,
) -> None:
    batch = sent(pair.broker)
    index(pair, [an_exit("a", replay_id=reported(batch, 1)), an_exit("b", tracking_id="t")])
    later = NOON + timedelta(days=400)
    assert [row.key for row in DELIVERED.expired(later)] == ["a"]


def test_what_was_handed_to_a_delay_is_replayed_when_it_is_seen_to_arrive(
    pair: Topology, user: User
) -> None:
    batch = sent(pair.broker, started_by=user)
    handed(batch)
    index(pair, [made(**FIRST, replay_id=reported(batch, 1)) for made in (an_entry, an_exit)])
    seen(batch)
    parked_messages = [
        item.parked_message for item in batch.items.select_related("parked_message__group")
    ]
    assert [one.state for one in parked_messages if one] == [
        ParkedState.REPLAYED,
        ParkedState.DELAYED,
    ]
    assert outcomes(batch) == [ReplayOutcome.DELIVERED, ReplayOutcome.DELAYED]
    assert parked_messages[0] is not None
    assert (parked_messages[0].group.delayed, parked_messages[0].group.replayed) == (1, 1)


def test_what_was_handed_to_a_delay_and_died_again_is_replayed(broker: Broker) -> None:
    batch = sent(broker)
    handed(batch)
    back(batch, reported(batch, 1))
    outcome.Follower().resolve_died(batch, timezone.now())
    states = batch.items.values_list("parked_message__state", flat=True)
    assert list(states) == [ParkedState.REPLAYED, ParkedState.DELAYED]


def test_what_may_have_arrived_and_was_seen_counts_as_done_and_is_not_offered_again(
    pair: Topology,
) -> None:
    """One is seen to arrive, one dies again, and of one nothing is known."""
    messages = parked(pair.broker, *(a_message(b"%d" % n, message_id=f"m{n}") for n in range(3)))
    batch = a_batch(pair.broker, messages, BatchState.DONE, [ItemState.UNKNOWN])
    index(pair, [an_exit(replay_id=reported(batch, 1), **FIRST)])
    assert seen(batch) == 1
    back(batch, reported(batch, 2))
    batch.refresh_from_db()
    outcome.Follower().resolve_died(batch, timezone.now())
    assert (batch.done, batch.unknown, batch.delivered, batch.died) == (2, 1, 1, 1)
    assert list(batch.items.values_list("state", "parked_message__state")) == [
        (ItemState.DONE, ParkedState.REPLAYED),
        (ItemState.DONE, ParkedState.REPLAYED),
        (ItemState.UNKNOWN, ParkedState.PARKED),
    ]
    assert outcome.count_outcomes(batch)[ReplayOutcome.UNOBSERVED] == 1
    outcome.close_batch(batch, timezone.now())
    assert batch.items.get(position=3).outcome == ReplayOutcome.UNOBSERVED


def test_more_items_than_one_look_holds_are_all_seen(
    pair: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seen_messages, "CHUNK", 2)
    monkeypatch.setattr(outcome, "MOST_ITEMS", 4)
    batch = sent(pair.broker, 7)
    index(
        pair,
        [an_exit(f"m{n - 1}", size_bytes=1, replay_id=reported(batch, n)) for n in range(1, 8)],
    )
    follower = outcome.Follower()
    assert [follower.record_arrivals(batch) for _ in range(3)] == [4, 3, 0]


def test_at_the_end_of_its_time_what_was_not_seen_is_unseen_and_handed_ones_stay(
    broker: Broker,
) -> None:
    batch = sent(broker, 3)
    batch.items.filter(position=2).update(outcome=ReplayOutcome.DELAYED)
    batch.items.filter(position=3).update(outcome=ReplayOutcome.DELIVERED)
    assert outcome.read_open_batches() == [batch]
    outcome.close_batch(batch, timezone.now())
    assert outcomes(batch) == [
        ReplayOutcome.UNOBSERVED,
        ReplayOutcome.DELAYED,
        ReplayOutcome.DELIVERED,
    ]
    assert outcome.read_open_batches() == []


@pytest.mark.parametrize(
    ("state", "is_open"),
    [
        (BatchState.RUNNING, True),
        (BatchState.PAUSED, True),
        (BatchState.CANCELLED, True),
        (BatchState.DRAFT, False),
    ],
)
def test_which_batches_are_followed(broker: Broker, state: BatchState, is_open: bool) -> None:
    a_batch(broker, state=state)
    assert bool(outcome.read_open_batches()) == is_open


def test_a_batch_is_followed_for_a_time_after_its_end(broker: Broker) -> None:
    batch = sent(broker)
    follower = outcome.Follower()
    now = timezone.now()
    assert not follower.is_over(batch, now)
    batch.state_at = now - timedelta(days=40)
    assert follower.is_over(batch, now)
