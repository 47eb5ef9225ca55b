"""Requests the nightly run of every day at the times of NIGHTLY_CRON, once the day is over."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

from cronsim import CronSim
from django.conf import settings

from analytics import nightly
from analytics.models import Run
from analytics.results.period import complete_at

# A worker that was off for longer catches up with the last days only.
DAYS_BACK = 7


def settled_at(day: date) -> datetime:
    """The first time of the schedule from which on the day's log is complete."""
    # CronSim begins after the moment that it is given.
    zone = ZoneInfo(settings.NIGHTLY_TIME_ZONE)
    before = (complete_at(day) - timedelta(minutes=1)).astimezone(zone)
    return next(CronSim(settings.NIGHTLY_CRON, before)).astimezone(UTC)


def due_day(now: datetime) -> date:
    """The last UTC day that is to be run by now."""
    day = now.date() - timedelta(days=1)
    while settled_at(day) > now:
        day -= timedelta(days=1)
    return day


def find_missing_days(now: datetime, log: Path) -> list[date]:
    """The settled days without a run, or with one from before their end; oldest first.

    Older days than the last one only with a log: there is nothing to compute for others.
    """
    last = due_day(now)
    days = [last - timedelta(days=back) for back in reversed(range(DAYS_BACK))]
    logged = [day for day in days if day == last or (log / f"date={day.isoformat()}").exists()]
    runs = {run.day: run for run in Run.objects.filter(day__in=logged)}
    return [day for day in logged if _is_run_needed(runs.get(day), day)]


def _is_run_needed(run: Run | None, day: date) -> bool:
    if run is None:
        return True
    finished_early = run.finished_at is not None and run.finished_at < complete_at(day)
    return finished_early and not run.is_at_work


def request_due_runs(**_: object) -> dict[str, object]:
    """Request a run of each day that is due; returns the last_day that is."""
    now = datetime.now(UTC)
    for day in find_missing_days(now, settings.EVENT_LOG):
        nightly.request_run(day)
    return {"last_day": due_day(now).isoformat()}
