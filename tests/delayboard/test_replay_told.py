"""What the pages of replays tell, as far as it can be worked out without a page."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayboard.dead_letters.replay import outcome, summary
from delayboard.models import BatchState, ItemState, ReplayOutcome
from tests.delayboard.builders import a_message, parked
from tests.delayboard.replay_rows import a_bad_route, a_batch, a_route
from topology.models import Broker

NUMBERS = st.lists(st.integers(0, 10**7), max_size=9)


@given(NUMBERS)
def test_the_parts_of_a_bar_fill_it_and_all_can_be_seen(numbers: list[int]) -> None:
    parts = summary.make_bar([("ok", "words", number) for number in numbers])
    assert [part.number for part in parts] == [number for number in numbers if number]
    assert all(part.width >= summary.LEAST - summary.GAP for part in parts)
    ends = [part.x + part.width for part in parts]
    starts = [part.x for part in parts[1:]]
    assert all(end + summary.GAP == start for end, start in zip(ends, starts, strict=False))
    if parts:
        assert (parts[0].x, ends[-1]) == (0, summary.BAR)


@pytest.mark.django_db
def test_a_dry_run_counts_every_item_once(broker: Broker) -> None:
    batch = a_batch(broker, parked(broker, a_message(b"1")))
    a_bad_route(batch, "stuck", items_number=2)
    a_bad_route(batch, "never-heard-of", items_number=5)
    a_route(batch, routing_key="later", after_ms=1, items_number=3)
    a_route(batch, routing_key="none", items_number=0)
    found = summary.summarize_dry_run(batch)
    assert (found.number, found.bad) == (11, 7)
    assert [(one.number, one.kind) for one in found.endings] == [
        (5, "error"),
        (2, "error"),
        (3, "note"),
        (1, "ok"),
    ]
    assert found.endings[0].words == "would not arrive"


@pytest.mark.django_db
def test_what_became_of_them_adds_up_to_what_was_replayed(broker: Broker) -> None:
    parked_messages = parked(broker, *(a_message(b"%d" % one) for one in range(5)))
    states = [ItemState.DONE] * 4 + [ItemState.FAILED]
    batch = a_batch(broker, parked_messages, BatchState.DONE, states, delivered=1, died=1)
    delayed = a_route(batch, routing_key="later", after_ms=1000)
    batch.items.filter(position=3).update(route=delayed, outcome=ReplayOutcome.DELAYED)
    assert outcome.count_outcomes(batch) == dict.fromkeys(ReplayOutcome, 1)
