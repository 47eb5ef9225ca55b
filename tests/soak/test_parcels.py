from __future__ import annotations

from collections import Counter

import pytest

from tests.soak.parcels import Count, Ledger, Recorded, account, counted, parcel

NUMBERS = range(40)


def perfect() -> tuple[Ledger, Recorded]:
    """Everything happened as it should."""
    parcels = [parcel(number) for number in NUMBERS]
    trips = Counter({p.number: p.trips for p in parcels})
    ledger = Ledger(
        sent=list(NUMBERS),
        consumed=[p.number for p in parcels for _ in range(p.deliveries)],
        parked=[p.number for p in parcels if p.is_parked],
    )
    recorded = Recorded(
        published=Counter(p.number for p in parcels if p.way == "straight"),
        scheduled=trips.copy(),
        delivered=trips.copy(),
        finished_rows=trips.copy(),
    )
    return ledger, recorded


def wrong(found: list[Count]) -> dict[str, tuple[int, int]]:
    return {c.what: (c.missing, c.extra) for c in found if not c.is_exact}


def test_among_twenty_messages_there_is_every_fate() -> None:
    fates = [parcel(number) for number in range(20)]
    assert {p.rejections for p in fates} == {0, 1, 2, 3}
    assert {p.way for p in fates} == {"straight", "pair", "levels"}
    assert {(p.way, p.is_parked) for p in fates} >= {("straight", True), ("pair", True)}
    assert [parcel(number + 20).way for number in range(20)] == [p.way for p in fates]


def test_what_goes_through_levels_is_never_rejected_since_its_key_leads_nowhere_else() -> None:
    assert {p.rejections for p in map(parcel, NUMBERS) if p.way == "levels"} == {0}


def test_a_rejection_is_one_more_delivery_and_one_more_trip() -> None:
    assert (parcel(9).deliveries, parcel(9).trips) == (3, 2)
    assert (parcel(4).deliveries, parcel(4).trips) == (2, 2)
    assert (parcel(0).deliveries, parcel(0).trips) == (1, 1)
    assert (parcel(5).deliveries, parcel(5).trips) == (1, 1)
    assert (parcel(1).deliveries, parcel(1).trips) == (1, 0)


def test_what_happened_as_it_should_is_exact() -> None:
    found = account(*perfect())
    assert wrong(found) == {}
    assert all(count.expected == count.seen > 0 for count in found)


@pytest.mark.parametrize(
    ("part", "what"),
    [
        ("published", "in the log, published"),
        ("scheduled", "in the log, scheduled"),
        ("delivered", "in the log, delivered"),
        ("finished_rows", "in the index, arrived"),
    ],
)
def test_one_recording_too_few_and_one_too_many_do_not_make_up_for_each_other(
    part: str, what: str
) -> None:
    ledger, recorded = perfect()
    seen: Counter[int] = getattr(recorded, part)
    first, second = sorted(seen)[:2]
    seen[first] -= 1
    seen[second] += 1
    assert wrong(account(ledger, recorded)) == {what: (1, 1)}


def test_a_message_that_is_parked_twice_and_another_never_are_both_found() -> None:
    ledger, recorded = perfect()
    ledger.parked[0] = ledger.parked[1]
    assert wrong(account(ledger, recorded)) == {"parked": (1, 1)}


def test_a_message_that_was_consumed_once_too_often_is_extra() -> None:
    ledger, recorded = perfect()
    ledger.consumed.append(5)
    (count,) = [c for c in account(ledger, recorded) if not c.is_exact]
    assert (count.what, count.extra, count.examples) == ("consumed", 1, (5,))


def test_a_message_that_may_not_have_been_sent_counts_nowhere() -> None:
    ledger, recorded = perfect()
    ledger.uncertain.append(100)
    ledger.consumed.append(100)
    recorded.published[100] += 1
    assert wrong(account(ledger, recorded)) == {}
    assert ledger.outstanding == 0


def test_what_is_outstanding_is_every_delivery_and_every_parking_that_did_not_come() -> None:
    assert Ledger(sent=[0, 9], consumed=[9]).outstanding == 3
    assert Ledger(sent=[16], consumed=[16]).outstanding == 1
    assert Ledger(sent=[16], consumed=[16], parked=[16]).outstanding == 0


def test_only_a_few_examples_are_named() -> None:
    count = counted("x", Counter(range(50)), Counter())
    assert (count.missing, count.examples) == (50, (0, 1, 2, 3, 4))
