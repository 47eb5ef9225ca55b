"""How far the clock of this host is from that of the database, which all hosts share."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from django.db import connection

# Largest difference between clocks of hosts: due times and the schedule are compared to the second.
MOST_SKEW = timedelta(seconds=1)


def measure_skew() -> timedelta:
    """Our clock minus the database's; zero when they may agree. SQLite has our clock.

    The database read its clock at some moment between our question and its answer.
    """
    if connection.vendor != "postgresql":
        return timedelta(0)
    asked_at = datetime.now(UTC)
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        there: datetime = cursor.fetchone()[0]
    answered_at = datetime.now(UTC)
    if asked_at > there:
        return asked_at - there
    return min(answered_at - there, timedelta(0))


def describe_skew(who: str, skew: timedelta) -> str:
    """A sentence about the clock of a host, "" when it is not more than a second wrong."""
    if abs(skew) <= MOST_SKEW:
        return ""
    side = "ahead of" if skew > timedelta(0) else "behind"
    return (
        f"The clock of {who} is {abs(skew).total_seconds():.1f} s {side} the database's. "
        "Synchronize the clocks of all hosts (NTP)."
    )
