"""What became of replayed messages: died again, seen to arrive, not seen."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from analytics.recorder.index import index
from analytics.retention.rows import past
from analytics.retention.rules import LEFT
from delayboard.dead_letters.replay import following, outcome
from delayboard.models import BatchState, DeadLetter, ItemState, LetterState, ReplayBatch
from delayboard.models.replay import Outcome, Source, replay_id
from tests.analytics.builders import NOON, an_entry, an_event, an_exit
from tests.builders import make_broker
from tests.delayboard.builders import a_death, a_message, deaths_header, parked
from tests.delayboard.replay_rows import a_batch
from topology.message import REPLAY_HEADER
from topology.models import Broker, Topology

pytestmark = pytest.mark.django_db
HANDED_ROUTE = {"after_ms": 5000}


def sent(broker: Broker, number: int = 2, **stated: object) -> ReplayBatch:
    """A batch that is through, with so many letters."""
    letters = parked(broker, *(a_message(b"%d" % n, message_id=f"m{n}") for n in range(number)))
    return a_batch(broker, letters, BatchState.DONE, [ItemState.DONE], **stated)


def handed(batch: ReplayBatch) -> None:
    """As the sender leaves what it gave to a delay."""
    batch.routes.update(**HANDED_ROUTE)
    batch.items.update(outcome=Outcome.HANDED)
    letters = DeadLetter.objects.filter(replays__batch=batch)
    for letter in letters:
        type(letter.group).objects.filter(pk=letter.group_id).update(
            parked=0, handed=letters.count()
        )
    letters.update(state=LetterState.HANDED)


def back(batch: ReplayBatch, *texts: str) -> list[DeadLetter]:
    """Parked anew with these in the replay header."""
    headers = deaths_header(a_death())
    again = [a_message(b"again", headers | {REPLAY_HEADER: text}) for text in texts]
    return parked(batch.broker, *again)


def told(batch: ReplayBatch, position: int) -> str:
    return replay_id(batch.uid, position)


def outcomes(batch: ReplayBatch) -> list[str]:
    return list(batch.items.values_list("outcome", flat=True))


def counts(batch: ReplayBatch) -> tuple[int, int]:
    batch.refresh_from_db()
    return batch.delivered, batch.died


def seen(batch: ReplayBatch) -> int:
    return following.Follower().arrivals(batch)


def test_a_message_that_is_parked_again_died_again_as_that_letter(broker: Broker) -> None:
    batch = sent(broker)
    (letter,) = back(batch, told(batch, 2))
    first, second = batch.items.all()
    assert (first.outcome, first.died_as) == ("", None)
    assert (second.outcome, second.died_as, second.outcome_at) == (Outcome.DIED, letter, NOON)
    assert counts(batch) == (0, 1)


def test_one_that_is_parked_twice_counts_once(broker: Broker) -> None:
    batch = sent(broker)
    one, _ = back(batch, told(batch, 1), told(batch, 1))
    back(batch, told(batch, 1))
    assert counts(batch) == (0, 1)
    assert batch.items.get(position=1).died_as == one


def test_what_arrived_and_then_died_is_counted_as_dead_only(broker: Broker) -> None:
    batch = sent(broker, delivered=1)
    batch.items.filter(position=1).update(outcome=Outcome.DELIVERED)
    back(batch, told(batch, 1))
    assert counts(batch) == (0, 1)


def test_made_up_ids_count_for_nothing_and_are_parked_all_the_same(broker: Broker) -> None:
    batch = sent(broker)
    batch.items.filter(position=2).update(attempts=0, state=ItemState.PENDING)
    texts = [
        told(batch, 2),
        told(batch, 99),
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


@pytest.mark.parametrize("value", [1, None, b"\xff", [1], {"a": 1}, True])
def test_a_replay_header_of_another_type_is_none(broker: Broker, value: object) -> None:
    (letter,) = parked(broker, a_message(headers={REPLAY_HEADER: value}))
    assert letter.state == LetterState.PARKED


def test_the_batch_of_another_broker_is_not_meant(broker: Broker) -> None:
    batch = sent(broker)
    other = make_broker(name="Other")
    parked(other, a_message(headers={REPLAY_HEADER: told(batch, 1)}))
    assert counts(batch) == (0, 0)


def test_parking_without_replays_asks_nothing(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(outcome, "noted", lambda *told: asked.append(told))
    parked(broker, a_message(b"1"), a_message(b"2"))
    assert asked == []


def test_many_that_come_back_ask_the_database_no_more_than_ten(broker: Broker) -> None:
    batch = sent(broker, 60)
    asked = []
    for positions in (range(1, 11), range(11, 61)):
        (letter,) = back(batch, "")
        named: dict[int, int | None] = dict.fromkeys(positions, letter.pk)
        with CaptureQueriesContext(connection) as queries:
            assert outcome.died(batch.pk, named, NOON) == len(named)
        asked.append(len(queries))
    assert asked[0] == asked[1]
    assert counts(batch) == (0, 60)


@pytest.mark.parametrize(("died", "limit", "stops"), [(2, 3, False), (3, 3, True), (9, 0, False)])
def test_a_batch_stops_itself_when_so_many_died_again(
    broker: Broker, died: int, limit: int, stops: bool
) -> None:
    batch = a_batch(broker, state=BatchState.RUNNING, died=0, stop_after=limit)
    ReplayBatch.objects.update(died=died)
    said = outcome.stops(batch)
    assert bool(said) == stops
    assert not stops or said.startswith("3 of its messages died again")


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([an_entry(), an_exit()], Outcome.DELIVERED),
        ([an_exit()], Outcome.DELIVERED),
        ([an_event(kind="published", attempt=0)], Outcome.DELIVERED),
        ([an_entry()], ""),
        (
            [an_entry(headers_json='{"x-death":[{"queue":"q","reason":"rejected","count":1}]}')],
            Outcome.DELIVERED,
        ),
        (
            [an_entry(headers_json='{"x-death":[{"queue":"q","reason":"expired","count":1}]}')],
            "",
        ),
    ],
)
def test_what_taps_saw_of_it(pair: Topology, events: Sequence[object], expected: str) -> None:
    batch = sent(pair.broker)
    for event in events:
        event.replay_id = told(batch, 1)  # type: ignore[attr-defined]
    index(pair, events)  # type: ignore[arg-type]
    assert seen(batch) == bool(expected)
    assert outcomes(batch) == [expected, ""]
    assert counts(batch) == (bool(expected), 0)
    assert seen(batch) == 0


def test_a_tracked_message_that_is_replayed_is_followed_as_the_replay(pair: Topology) -> None:
    batch = sent(pair.broker)
    index(pair, [an_exit(tracking_id="t1", replay_id=told(batch, 1))])
    assert seen(batch) == 1


def test_what_replays_leave_in_the_index_goes_like_all_that_has_left(
    pair: Topology,
) -> None:
    batch = sent(pair.broker)
    index(pair, [an_exit("a", replay_id=told(batch, 1)), an_exit("b", tracking_id="t")])
    later = NOON + timedelta(days=400)
    assert [row.key for row in past(LEFT, later)] == ["a"]


def test_what_was_handed_to_a_delay_is_replayed_when_it_is_seen_to_arrive(
    pair: Topology, user: User
) -> None:
    batch = sent(pair.broker, started_by=user)
    handed(batch)
    index(pair, [an_entry(replay_id=told(batch, 1)), an_exit(replay_id=told(batch, 1))])
    seen(batch)
    letters = [item.letter for item in batch.items.select_related("letter__group")]
    assert [one.state for one in letters if one] == [LetterState.REPLAYED, LetterState.HANDED]
    assert outcomes(batch) == [Outcome.DELIVERED, Outcome.HANDED]
    assert letters[0] is not None
    assert (letters[0].group.handed, letters[0].group.replayed) == (1, 1)


def test_what_was_handed_to_a_delay_and_died_again_is_replayed(broker: Broker) -> None:
    batch = sent(broker)
    handed(batch)
    back(batch, told(batch, 1))
    following.Follower().resolve(batch, timezone.now())
    states = batch.items.values_list("letter__state", flat=True)
    assert list(states) == [LetterState.REPLAYED, LetterState.HANDED]


def test_more_items_than_one_look_holds_are_all_seen(
    pair: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "CHUNK", 2)
    monkeypatch.setattr(following, "MOST_ITEMS", 4)
    batch = sent(pair.broker, 7)
    index(pair, [an_exit(f"m{n}", replay_id=told(batch, n)) for n in range(1, 8)])
    follower = following.Follower()
    assert [follower.arrivals(batch) for _ in range(3)] == [4, 3, 0]


def test_at_the_end_of_its_time_what_was_not_seen_is_unseen_and_handed_ones_stay(
    broker: Broker,
) -> None:
    batch = sent(broker, 3)
    batch.items.filter(position=2).update(outcome=Outcome.HANDED)
    batch.items.filter(position=3).update(outcome=Outcome.DELIVERED)
    assert following.open_batches() == [batch]
    following.close(batch, timezone.now())
    assert outcomes(batch) == [Outcome.UNSEEN, Outcome.HANDED, Outcome.DELIVERED]
    assert following.open_batches() == []


@pytest.mark.parametrize(
    ("state", "stated", "is_open"),
    [
        (BatchState.RUNNING, {}, True),
        (BatchState.PAUSED, {}, True),
        (BatchState.CANCELLED, {}, True),
        (BatchState.DRAFT, {}, False),
        (BatchState.RUNNING, {"source": Source.QUEUE}, False),
    ],
)
def test_which_batches_are_followed(
    broker: Broker, state: BatchState, stated: dict[str, Any], is_open: bool
) -> None:
    a_batch(broker, state=state, **stated)
    assert bool(following.open_batches()) == is_open


def test_a_batch_is_followed_for_a_time_after_its_end(broker: Broker) -> None:
    batch = sent(broker)
    follower = following.Follower()
    now = timezone.now()
    assert not follower.is_over(batch, now)
    batch.state_at = now - timedelta(days=40)
    assert follower.is_over(batch, now)


def test_a_replay_straight_through_says_that_it_is_not_followed(broker: Broker) -> None:
    batch = a_batch(broker, state=BatchState.RUNNING, source=Source.QUEUE)
    assert "not followed" in outcome.blind(batch)
