"""One night's run: claim the day, compute it from the event log, replace its rows."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime, time, timedelta
from functools import cache, partial
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any, TypeAlias

from django.conf import settings
from django.db import transaction

from analytics import cluster, compacted, launch, shared_log
from analytics.given_up import GivenUp, find_given_up
from analytics.log import LogError, take_lock
from analytics.models import Run
from analytics.models.run import GENERATED, RunState
from analytics.results.load import has_day, replace_day
from analytics.results.period import EARLIEST_DAY
from analytics.storage import StorageError
from topology import work
from topology.models.work import NIGHTLY

RENEW_SECONDS = 5.0
GENERATING = "The demo generates events of four weeks and computes their figures."
EARLIER_FIGURES = "Delayboard kept the earlier figures."
Progress: TypeAlias = Callable[[int, int], None]
logger = logging.getLogger(__name__)


class DayRefused(Exception):
    """The day cannot be run now; the message says why."""


# Lease of a day: replacing the rows of a large one takes long, and nothing renews it meanwhile.
LEASE = timedelta(seconds=60)


class DayTaken(DayRefused):
    """Another process computes the day at present."""


def request_run(day: date) -> Run:
    """Request a run of this day from the worker; a running one is not changed."""
    refuse_day(day)
    run, _ = Run.objects.get_or_create(day=day)
    Run.objects.filter(pk=run.pk).exclude(state=RunState.RUNNING).update(
        state=RunState.REQUESTED, error=""
    )
    run.refresh_from_db()
    return run


def run_day(
    day: date, *, progress: Progress = lambda *_: None, job: launch.JobReport | None = None
) -> Run:
    """Compute a UTC day from the event log and replace its rows.

    `progress(done, total)` is called at least once a second, when `job` has the name of the step;
    an exception from it stops the run. A day keeps its rows when the log contains less of it than
    before: old days of the log are deleted, their figures are not. The Run records this. Raises
    DayRefused as `refuse_day` does and for one that is running, launch.LaunchError when the job
    fails.
    """
    refuse_day(day)
    job = job or launch.JobReport()
    begin = datetime.combine(day, time(), UTC)
    with _running(day, job) as lease:
        given_up = find_given_up(begin, begin + timedelta(days=1))
        try:
            result = _compute(day, given_up, _Pulse(lease, day, progress), job)
            job.begin_step("Loading the results into the database")
            _finish(lease, day, result, given_up, job)
        except launch.NoData as nothing:
            sentence = str(nothing)
            with transaction.atomic():
                if has_day(day):
                    _end(lease, day, RunState.NO_DATA, job, error=f"{sentence} {EARLIER_FIGURES}")
                else:
                    _end(lease, day, RunState.NO_DATA, job, error=sentence, lines=0, malformed=0)
    return Run.objects.get(day=day)


def run_generated(
    log: Path,
    day: date,
    days: Sequence[date],
    load: Callable[[launch.Result], None],
    *,
    progress: Progress = lambda *_: None,
) -> None:
    """Compute the one day of a log of generated events and `load` its result.

    Each of `days` counts as run then, so that the worker does not look for events of it; its run
    has no lines, so that recorded ones would take the place of its figures. Raises as `run_day`
    does.
    """
    job = launch.JobReport()
    with _running(day, job) as lease:
        Run.objects.filter(day=day).update(error=GENERATING)
        pulse = _Pulse(lease, day, progress)
        url = f"file://{log.absolute()}/results"
        result = launch.run_day(log, day, url, pulse=pulse, job=job)
        values: dict[str, Any] = {"error": GENERATED, "lines": 0, "malformed": 0}
        with transaction.atomic():
            _end(lease, day, RunState.DONE, job, **values)
            load(result)
            values["finished_at"] = datetime.now(UTC)
            others = (Run(day=one, state=RunState.DONE, **values) for one in days if one != day)
            Run.objects.bulk_create(others, ignore_conflicts=True)


def compact(
    day: date, *, pulse: Progress = lambda *_: None, job: launch.JobReport | None = None
) -> bool:
    """Turn the finished hours of a day into Parquet at LOG_URL; False if all are already.

    Raises DayRefused as `refuse_day` does, launch.NoData, and launch.LaunchError, also when another
    process compacts.
    """
    refuse_day(day)
    log = shared_log.log_for_runs()
    with _computing(day):
        if compacted.input_of(log, day).is_empty:
            raise launch.NoData(f"The event log has no data for {day}.")
        if not compacted.is_due(log, day, datetime.now(UTC)):
            return False
        with _compacting():
            launch.run_compaction(log, day, settings.PARQUET_URL, pulse=pulse, job=job)
    return True


@contextmanager
def _computing(day: date) -> Iterator[None]:
    """With the lines of all hosts. Raises launch.LaunchError."""
    try:
        with shared_log.computing(day):
            yield
    except (StorageError, LogError) as error:
        raise launch.LaunchError(str(error)) from error


@contextmanager
def _compacting() -> Iterator[None]:
    with take_lock(settings.EVENT_LOG, "compaction") as is_ours:
        if not is_ours:
            raise launch.LaunchError("Another process compacts the event log. Try again later.")
        yield


def _compute(day: date, given_up: GivenUp, pulse: Progress, job: launch.JobReport) -> launch.Result:
    """Compact a day that is over and compute its figures; by one Spark where it is local."""
    now, log = datetime.now(UTC), shared_log.log_for_runs()
    parking, url = given_up.parking, settings.RESULTS_URL
    compute = partial(launch.run_day, log, day, url, pulse=pulse, job=job, parking=parking)
    with _computing(day):
        if day < now.date() and compacted.is_due(log, day, now):
            if launch.is_local():
                with _compacting():
                    return compute(compact_to=settings.PARQUET_URL)
            compact(day, pulse=pulse, job=job)
        return compute()


def run_requested(stop: Event, *, alive: Callable[[], None] = lambda: None) -> int:
    """Run the days that somebody wants, oldest first, until none is left; how many it ran.

    `alive` is called at least once a second while a run lasts. A failure is kept in its
    Run row and does not keep the next day from running.
    """

    def progress(*_: int) -> None:
        if stop.is_set():
            raise work.Stopped("The worker stopped.")
        alive()

    count, taken = 0, set[date]()
    # One that runs was left by a process that died, or is another's.
    is_open = (RunState.REQUESTED, RunState.RUNNING)
    while not stop.is_set():
        run = Run.objects.filter(state__in=is_open).exclude(day__in=taken).order_by("day").first()
        if run is None:
            break
        try:
            run_day(run.day, progress=progress)
        except DayTaken:
            taken.add(run.day)
            continue
        except (launch.LaunchError, DayRefused) as error:
            logger.error("The nightly run of %s: %s", run.day, error)
        except work.Stopped:
            Run.objects.filter(pk=run.pk, state=RunState.FAILED).update(state=RunState.REQUESTED)
            break
        count += 1
    return count


class _Pulse:
    """Passes the progress on; with each step, and every few seconds, writes it down and renews the
    lease.
    """

    def __init__(self, lease: work.Lease, day: date, progress: Progress) -> None:
        self._lease = lease
        self._day = day
        self._progress = progress
        self._written, self._steps = monotonic(), (0, 0)

    def __call__(self, done: int, total: int) -> None:
        self._progress(done, total)
        if monotonic() - self._written < RENEW_SECONDS and (done, total) == self._steps:
            return
        self._written, self._steps = monotonic(), (done, total)
        self._lease.pulse(done, total)
        Run.objects.filter(day=self._day).update(steps_done=done, steps=total)


@contextmanager
def _running(day: date, job: launch.JobReport) -> Iterator[work.Lease]:
    """The day's lease, for the length of its run; what is raised is written down as its failure.

    Raises DayTaken.
    """
    with work.alone(NIGHTLY, day.toordinal(), lasts=LEASE) as lease:
        if lease is None:
            raise DayTaken(
                f"Another process computes {day}. If that process was killed, try again in "
                f"{LEASE.seconds} seconds."
            )
        Run.objects.update_or_create(
            day=day,
            defaults={
                "state": RunState.RUNNING,
                "started_at": datetime.now(UTC),
                "finished_at": None,
                "error": "",
                "steps_done": 0,
                "steps": 0,
                "step_seconds": [],
                "peak_memory_bytes": None,
                "spark_version": "",
                "output": "",
                "code_version": _code_version(),
            },
        )
        try:
            # Before the day is compacted for it.
            cluster.check()
            yield lease
        except BaseException as error:
            with suppress(work.Stopped):
                _end(lease, day, RunState.FAILED, job, error=str(error) or type(error).__name__)
            raise


def _finish(
    lease: work.Lease, day: date, result: launch.Result, given_up: GivenUp, job: launch.JobReport
) -> None:
    had = Run.objects.get(day=day).lines
    with transaction.atomic():
        if result.lines < had and has_day(day):
            sentence = (
                f"The event log of {day} has {result.lines} lines, fewer than the {had} of "
                f"the earlier run. {EARLIER_FIGURES}"
            )
            _end(lease, day, RunState.DONE, job, error=sentence)
            return
        replace_day(day, result, observed=given_up.observed)
        counts = {"lines": result.lines, "malformed": result.malformed}
        found = Counter(result.excluded)
        for row in result.tables["uncounted"]:
            found[row["reason"]] += row["messages"]
        excluded = {reason: number for reason, number in found.items() if number}
        _end(lease, day, RunState.DONE, job, error="", excluded=excluded, **counts)


def _end(
    lease: work.Lease, day: date, state: RunState, job: launch.JobReport, **values: Any
) -> None:
    """Write down how the run ended. Raises Stopped when it is no longer ours."""
    job.end_step()
    with transaction.atomic():
        # Until the end is committed, nobody can claim the day.
        lease.pulse(0, 0)
        Run.objects.filter(day=day).update(
            state=state,
            finished_at=datetime.now(UTC),
            step_seconds=job.steps,
            spark_version=job.spark_version,
            peak_memory_bytes=job.peak_memory_bytes,
            output=job.output,
            **values,
        )


def refuse_day(day: date) -> None:
    """Raises DayRefused for a day of which there can be no events."""
    if day > datetime.now(UTC).date():
        raise DayRefused(f"{day} is in the future (UTC). Choose an earlier day.")
    if day < EARLIEST_DAY:
        raise DayRefused(f"{day} is too long ago. Choose a later day.")


@cache
def _code_version() -> str:
    """A hash of the jobs' source, so that rows from other code can be distinguished."""
    digest = hashlib.sha256()
    for path in sorted((Path(__file__).parent / "jobs").rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
