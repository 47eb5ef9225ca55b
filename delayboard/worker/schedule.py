"""Requests the nightly run of every day at the times of NIGHTLY_CRON, once the day is over."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

from cronsim import CronSim
from django.conf import settings
from django.db.models.functions import Now

from analytics import nightly, shared_log
from analytics.models import LogHost, Run
from analytics.models.log_host import SILENT
from analytics.results.period import complete_at

# Days with which a worker catches up that was off for longer.
DAYS_BACK = 7
# Time for which a run waits for all live hosts; one that reads less is repeated later.
WAITED_FOR_HOSTS = timedelta(hours=1)


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
    """The settled days without a run, with one from before their end, or from before a host sent
    more lines of them; oldest first.

    Older days than the last one only with a log: there is nothing to compute for others.
    """
    last = due_day(now)
    days = [last - timedelta(days=back) for back in reversed(range(DAYS_BACK))]
    sent = shared_log.last_sent(days[0])
    logged = [
        day
        for day in days
        if day == last or day in sent or (log / f"date={day.isoformat()}").exists()
    ]
    runs = {run.day: run for run in Run.objects.filter(day__in=logged)}
    return [day for day in logged if _is_run_needed(runs.get(day), day, sent.get(day))]


def _is_run_needed(run: Run | None, day: date, sent_at: datetime | None) -> bool:
    if run is None:
        return True
    finished_early = run.finished_at is not None and run.finished_at < complete_at(day)
    began_early = sent_at is not None and run.started_at is not None and run.started_at < sent_at
    return (finished_early or began_early) and not run.is_at_work


def request_due_runs(**_: object) -> dict[str, object]:
    """Request a run of each day that is due; returns the last_day that is."""
    now = datetime.now(UTC)
    for day in find_missing_days(now, settings.EVENT_LOG):
        if now > settled_at(day) + WAITED_FOR_HOSTS or not LogHost.objects.filter(
            seen_at__gt=Now() - SILENT, unsent_since__lt=complete_at(day)
        ):
            nightly.request_run(day)
    return {"last_day": due_day(now).isoformat()}
