from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayboard.dead_letters.parked import store
from delayboard.dead_letters.parked.groups import (
    BARS,
    DAY,
    HOUR,
    SPANS,
    GroupFilter,
    by_state,
    count_trend,
    find_trend_start,
    parse,
    seen_in,
)
from delayboard.dead_letters.parked.store import change_parked_messages
from delayboard.models import MessageGroup, ParkedMessage, ParkedState
from tests.delayboard.builders import (
    a_death,
    a_message,
    deaths_header,
    page_of,
    parked,
    peeked_messages,
)
from topology.models import Broker

pytestmark = pytest.mark.both_databases

NOW = datetime(2026, 11, 22, 12, 34, tzinfo=UTC)


@pytest.mark.django_db
def test_what_a_look_showed_is_grouped_by_failure_the_largest_group_first(broker: Broker) -> None:
    invoice = a_message(b"9", headers=deaths_header(a_death("invoices")))
    peeked = peeked_messages(invoice, a_message(b"1"), a_message(b"2"))
    orders, invoices = seen_in(broker, "dead", peeked)
    assert (orders.group.died_in, orders.group.reason) == ("orders", "rejected")
    assert (orders.number, orders.first) == (2, 2)
    assert (invoices.group.died_in, invoices.number, invoices.first) == ("invoices", 1, 1)
    assert seen_in(broker, "dead", []) == []


@pytest.mark.django_db
def test_a_discard_of_a_group_without_a_recorded_failure_acts_on_one_queue(broker: Broker) -> None:
    """Two applications publish what fails to an error queue of their own, with nothing added."""
    for queue in ("shop.error", "billing.error"):
        store.put(broker, queue, [a_message(b"%d" % n, {}) for n in range(2)], at=NOW)
    (seen,) = seen_in(broker, "shop.error", peeked_messages(a_message(b"3", {})))
    keys = [*seen.group.parked_messages.values_list("pk", flat=True)]
    change_parked_messages(keys, (ParkedState.PARKED,), ParkedState.DISCARDED, by=None, at=NOW)
    parked_ones = ParkedMessage.objects.filter(state="parked")
    assert [*parked_ones.values_list("queue", flat=True)] == ["billing.error"] * 2
    assert str(seen.group) == "unknown cause from shop.error"
    (found,) = page_of(broker, GroupFilter(text="billing")).rows
    assert (found.parked_from, found.parked) == ("billing.error", 2)


def test_what_an_address_asks_for() -> None:
    asked = parse({"q": " shop ", "sort": "count", "empty": "1", "after": "50"})
    assert asked == GroupFilter("shop", "count", with_empty=True, after="50")
    assert parse({"sort": "worst", "gone": "yes"}) == GroupFilter()


def test_steps_begin_at_whole_hours_quarters_and_days() -> None:
    assert find_trend_start(SPANS["day"], NOW) == datetime(2026, 11, 21, 13, tzinfo=UTC)
    assert find_trend_start(SPANS["week"], NOW) == datetime(2026, 11, 15, 18, tzinfo=UTC)
    assert find_trend_start(BARS["day"], NOW) == datetime(2026, 9, 24, tzinfo=UTC)


@given(st.dictionaries(st.integers(-100, 100), st.integers(1, 1000)), st.sampled_from([*SPANS]))
def test_every_hour_within_is_counted_once(hours: dict[int, int], name: str) -> None:
    span = SPANS[name]
    this = NOW.replace(minute=0)
    rows = [(this + hour * HOUR, number) for hour, number in hours.items()]
    trend = count_trend(rows, span, NOW)
    assert len(trend.counts) == span.steps
    end = trend.from_at + span.step * span.steps
    assert end > NOW
    assert trend.total == sum(n for at, n in rows if trend.from_at <= at < end)
    assert trend.highest == max(trend.counts)
    assert all(0 <= bar.y <= 100 and bool(bar.height) == bool(bar.number) for bar in trend.bars)


def test_an_empty_trend_has_words_too() -> None:
    trend = count_trend([], SPANS["week"], NOW)
    assert trend.described == "No message was dead-lettered in the last 7 days."
    assert trend.highest == 0
    assert count_trend([(NOW - 2 * DAY, 5)], BARS["day"], NOW).described.endswith(
        "at most 5 in a day."
    )
    assert trend.from_at + timedelta(days=7) > NOW


@pytest.mark.django_db
def test_a_change_in_portions_changes_and_counts_each_parked_message_once(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [
        parked_message.pk
        for parked_message in parked(broker, *(a_message(b"%d" % n) for n in range(6)))
    ]
    change_parked_messages(keys[:2], (ParkedState.PARKED,), ParkedState.DELAYED, by=None, at=NOW)
    change_parked_messages(keys[5:], (ParkedState.PARKED,), ParkedState.DISCARDED, by=None, at=NOW)
    monkeypatch.setattr(store, "LOCKED_AT_ONCE", 2)
    later = NOW + HOUR
    before = (ParkedState.PARKED, ParkedState.DELAYED)
    changed = change_parked_messages(keys, before, ParkedState.REPLAYED, by=None, at=later)
    assert changed == keys[:5]
    group = MessageGroup.objects.get()
    assert (group.parked, group.delayed, group.replayed, group.discarded) == (0, 0, 5, 1)
    assert ParkedMessage.objects.filter(state="replayed", state_at=later).count() == 5
    assert ParkedMessage.objects.filter(state="discarded", state_at=NOW).count() == 1


@pytest.mark.django_db
@pytest.mark.parametrize("state", ParkedState)
def test_a_group_stands_there_until_all_of_it_was_discarded_or_replayed(
    broker: Broker, state: ParkedState
) -> None:
    (parked_message,) = parked(broker, a_message())
    change_parked_messages([parked_message.pk], (ParkedState.PARKED,), state, by=None, at=NOW)
    is_done = state in (ParkedState.DISCARDED, ParkedState.REPLAYED)
    assert bool(page_of(broker, GroupFilter()).rows) == (not is_done)
    (group,) = page_of(broker, GroupFilter(with_empty=True)).rows
    assert getattr(group, state) == 1
    numbers = {name: number for name, _, number in by_state(broker)}
    assert numbers == {"parked": 0, state: 1}


@pytest.mark.django_db
def test_messages_of_another_state_stay_as_they_are(broker: Broker) -> None:
    """Also where all of them are in it: there is none to sort out."""
    keys = [one.pk for one in parked(broker, *(a_message(b"%d" % n) for n in range(3)))]

    def change(keys: list[int], before: ParkedState, after: ParkedState) -> list[int]:
        return change_parked_messages(keys, (before,), after, by=None, at=NOW)

    assert change(keys, ParkedState.DISCARDED, ParkedState.REPLAYED) == []
    assert set(ParkedMessage.objects.values_list("state", flat=True)) == {"parked"}
    assert change(keys[:1], ParkedState.PARKED, ParkedState.DISCARDED) == keys[:1]
    assert change(keys, ParkedState.PARKED, ParkedState.REPLAYED) == keys[1:]
