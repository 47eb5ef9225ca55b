"""What Prometheus reads, from rows of the database: every process of a site gives the same.

All are gauges, also those of the last hour: a sum of rows falls when rows reach their retention,
which a counter may not.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, time, timedelta

from django.db.models import Count, Max
from prometheus_client.core import GaugeHistogramMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from analytics import buckets
from analytics.minutes import RECENT
from analytics.models import Gap, Run
from analytics.models.run import RunState
from delayboard.models import BackgroundTask, BatchState, CounterSample, MessageGroup, ReplayBatch
from delayboard.models.replay import ENDED_BATCH
from delayboard.now.counters import count_parked
from delayboard.now.lateness import read_lateness
from delayboard.now.system import background_tasks_of
from delayboard.now.throughput import find_lag, flow_lines
from delayboard.worker.check_brokers import EVERY_SECONDS
from topology.findings.hit import Severity
from topology.models import Broker
from topology.operations.finding_rows import count_open

# Age of a sample above which it is no present value: the broker does not answer, or no worker runs.
SAMPLE_AGE = timedelta(seconds=3 * EVERY_SECONDS)
# Upper ends of the histogram in milliseconds, each the edge of a bucket of lateness.
LATENESS_MS = (1, 10, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 63_000, 315_000, 4_000_000)
# Counter of Now -> name and meaning of its metric.
SAMPLED = {
    "scheduled": ("scheduled", "Messages that wait in delays."),
    "due_within_hour": ("due_within_hour", "Messages that are due within an hour."),
    "overdue": ("overdue", "Messages that were due and have no recorded exit."),
    "stuck": ("stuck", "Messages that RabbitMQ cannot route when they are due."),
    "retrying": ("retrying", "Messages that wait for their next attempt."),
    "dead": ("dead_letters", "Parked messages, and messages in dead-letter queues."),
}
Rows = Iterable[tuple[tuple[str, ...], float]]


class BoardCollector(Collector):
    """With `details`, also figures by topology, task, queue and message group."""

    def __init__(self, now: datetime, *, details: bool) -> None:
        self.now = now
        self.details = details

    def collect(self) -> Iterator[Metric]:
        brokers = list(Broker.objects.all())
        slugs = {broker.pk: broker.slug for broker in brokers}
        tasks = background_tasks_of(brokers)
        yield from self._counters(brokers)
        yield from self._topologies(brokers, tasks)
        yield from self._tasks(tasks)
        findings = count_open(brokers, self.now)
        yield _gauge(
            "findings",
            "Open findings that are not muted.",
            ("broker", "severity"),
            (
                ((broker.slug, severity.key), findings.get(broker.pk, {}).get(severity, 0))
                for broker in brokers
                if broker.findings_checked_at
                for severity in Severity
            ),
        )
        replays = ReplayBatch.objects.exclude(state__in=ENDED_BATCH).order_by()
        numbers = replays.values_list("broker", "state").annotate(Count("pk"))
        yield _gauge(
            "replays",
            "Replays that have not ended.",
            ("broker", "state"),
            (((slugs[pk], BatchState(state).name.lower()), n) for pk, state, n in numbers),
        )
        done = Run.objects.filter(state=RunState.DONE).aggregate(Max("day"))["day__max"]
        day_end = datetime.combine(done, time(), UTC) + timedelta(days=1) if done else None
        yield _gauge(
            "nightly_run_timestamp_seconds",
            "End of the newest day whose figures are computed.",
            (),
            [((), day_end.timestamp())] if day_end else (),
        )
        failed = Run.objects.filter(
            state=RunState.FAILED, day__gte=self.now.date() - timedelta(days=7)
        )
        text = "Days of the last week whose nightly run failed."
        yield _gauge("nightly_runs_failed", text, (), [((), failed.count())])
        if self.details:
            yield from _dead_letters(brokers, slugs)

    def _counters(self, brokers: Iterable[Broker]) -> Iterator[Metric]:
        """A counter that is not known has no sample."""
        newest: dict[str, CounterSample] = {}
        rows = CounterSample.objects.filter(at__gt=self.now - SAMPLE_AGE).order_by("at")
        for row in rows.select_related("broker"):
            newest[row.broker.slug] = row
        for key, (name, text) in SAMPLED.items():
            known = {slug: row.numbers[key] for slug, row in newest.items() if key in row.numbers}
            yield _gauge(name, text, ("broker",), (((slug,), n) for slug, n in known.items()))
        yield _gauge(
            "sampled_timestamp_seconds",
            "When the worker last counted the messages of the broker.",
            ("broker",),
            (((slug,), row.at.timestamp()) for slug, row in newest.items()),
        )
        yield _gauge(
            "broker_checked_timestamp_seconds",
            "When the worker last read the objects of the broker and checked them for findings.",
            ("broker",),
            (
                ((broker.slug,), broker.findings_checked_at.timestamp())
                for broker in brokers
                if broker.findings_checked_at
            ),
        )

    def _topologies(
        self, brokers: list[Broker], tasks: Sequence[BackgroundTask]
    ) -> Iterator[Metric]:
        """What passed the taps; of what is not recorded now, nothing."""
        lines = flow_lines(brokers, tasks, self.now)
        late = read_lateness(lines)
        labels = ("broker", "topology") if self.details else ("broker",)
        passed: defaultdict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
        lateness: defaultdict[tuple[str, ...], Counter[int]] = defaultdict(Counter)
        burning: dict[tuple[str, ...], float] = {}
        for line in lines:
            of = (line.topology.broker.slug, line.topology.slug)[: len(labels)]
            passed[of].update({key: n for key, n in line.numbers.items() if n is not None})
            found = late[line.topology.pk]
            lateness[of].update(found.counts)
            if found.hour is not None and found.hour.burn_rate is not None:
                burning[of] = max(found.hour.burn_rate, burning.get(of, 0.0))
        minutes = f"in the last {RECENT} minutes"
        for key, name, text in (
            ("entered", "entered", f"Messages that entered delays {minutes}."),
            ("left", "left", f"Messages that left delays {minutes}."),
            ("late", "late", f"Messages that left delays more than a second late {minutes}."),
            ("died", "retries", f"Messages that entered delays after a failure {minutes}."),
        ):
            known = ((of, n[key]) for of, n in passed.items() if key in n)
            yield _gauge(f"{name}_{RECENT}m", text, labels, known)
        text = "Lateness of the messages that left delays in the last hour."
        family = GaugeHistogramMetricFamily("delayboard_lateness_1h_seconds", text, labels=labels)
        for of, counts in lateness.items():
            ends = [(f"{ms / 1000:g}", buckets.within(counts, ms)) for ms in LATENESS_MS]
            # A bucket is as late as its middle.
            total = sum(sum(buckets.bounds(key)) / 2 * n for key, n in counts.items()) / 1000
            family.add_metric(of, [*ends, ("+Inf", counts.total())], total)
        yield family
        text = "Use of the error budget in the last hour: 1 uses it up at the end of its days."
        yield _gauge("slo_burn_rate_1h", text, labels, burning.items())
        gaps: Counter[tuple[str, ...]] = Counter()
        rows = Gap.objects.filter(until_at__gt=self.now - timedelta(days=1)).order_by()
        for broker, topology, number in rows.values_list(
            "topology__broker__slug", "topology__slug"
        ).annotate(Count("pk")):
            gaps[(broker, topology)[: len(labels)]] += number
        text = "Gaps in the recording that ended within a day."
        yield _gauge("gaps_1d", text, labels, gaps.items())

    def _tasks(self, tasks: Sequence[BackgroundTask]) -> Iterator[Metric]:
        """The worst of each kind of background task, or every task."""
        age: dict[tuple[str], float] = {}
        behind: dict[tuple[str], float] = {}
        failing: Counter[tuple[str]] = Counter()
        for task in tasks:
            of = (task.key if self.details else task.key.partition(":")[0],)
            heard_at = task.beat_at or task.started_at
            if heard_at:
                age[of] = max(age.get(of, 0.0), (self.now - heard_at).total_seconds())
            behind[of] = max(behind.get(of, 0.0), find_lag(task).total_seconds())
            failing[of] += task.is_failing
        yield _gauge("task_heartbeat_age_seconds", "Age of the heartbeat.", ("task",), age.items())
        text = "Age of what the task has not read yet, such as the lag of a recorder."
        yield _gauge("task_behind_seconds", text, ("task",), behind.items())
        text = "Background tasks whose last attempt failed."
        yield _gauge("tasks_failing", text, ("task",), failing.items())


def _dead_letters(brokers: list[Broker], slugs: dict[int, str]) -> Iterator[Metric]:
    parked = count_parked(brokers)
    text = "Parked messages by the queue in which they failed first."
    rows = (((slugs[pk], queue), n) for (pk, queue), n in parked.items())
    yield _gauge("parked", text, ("broker", "queue"), rows)
    groups = MessageGroup.objects.filter(parked__gt=0).order_by()
    text = "Parked messages by message group, whose page has this number."
    of_group = groups.values_list("broker", "pk", "parked")
    rows = (((slugs[pk], str(group)), n) for pk, group, n in of_group)
    yield _gauge("group_parked", text, ("broker", "group"), rows)


def _gauge(name: str, text: str, labels: tuple[str, ...], rows: Rows) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"delayboard_{name}", text, labels=labels)
    for of, value in rows:
        family.add_metric(of, value)
    return family
