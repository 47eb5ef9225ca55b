"""The clock of a host against that of the database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import time_machine

from topology.database.clock import describe_skew, measure_skew


@pytest.mark.postgres
@pytest.mark.django_db
def test_a_clock_is_compared_with_that_of_postgresql() -> None:
    assert measure_skew() == timedelta(0)
    for seconds in (30, -30):
        with time_machine.travel(datetime.now(UTC) + timedelta(seconds=seconds)):
            skew = measure_skew().total_seconds()
        assert abs(skew - seconds) < 10


@pytest.mark.sqlite
@pytest.mark.django_db
def test_sqlite_has_our_clock() -> None:
    with time_machine.travel(datetime.now(UTC) + timedelta(minutes=1)):
        assert measure_skew() == timedelta(0)


def test_more_than_a_second_is_a_sentence() -> None:
    assert describe_skew("host-1", timedelta(seconds=1)) == ""
    assert describe_skew("host-1", timedelta(seconds=2)) == (
        "The clock of host-1 is 2.0 s ahead of the database's. Synchronize the clocks of all "
        "hosts (NTP)."
    )
    assert "is 2.0 s behind the" in describe_skew("host-1", timedelta(seconds=-2))
