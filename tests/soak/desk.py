"""What the soak asks of Delayboard's own database, event log and broker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from django.conf import settings

from analytics.models import Gap, NightlyReport, Probe, ScheduledMessage
from analytics.results.nightly_report import days_to_store
from analytics.scheduled.queries.listing import waiting
from analytics.scheduled.summaries.counts import scope
from delayboard.demo.script import DEMO_BROKER, RETURNS
from delayboard.models import BackgroundTask
from delayboard.models.background_task import task_key
from tests.analytics.day_lines import days, read_day
from tests.soak.parcels import Recorded
from tests.soak.traffic import DELAY, LEVELS, PARKED, WORK, number_of
from topology.broker.errors import BrokerError
from topology.broker.management.client import Management
from topology.definitions import Arguments, Queue
from topology.models import Broker, Topology
from topology.operations.provision import apply
from topology.operations.topology_rows import create_topology
from topology.patterns.delay_levels.pattern import delay_levels
from topology.patterns.retry_pair.pattern import retry_pair


def prepare() -> list[Topology]:
    """The soak's own topologies on the demo's broker, applied, and its parking queue."""
    broker = Broker.objects.get(name=DEMO_BROKER)
    pair = retry_pair.parse({"name": WORK, "delay": DELAY})
    made = [
        create_topology(None, broker, retry_pair.KIND, pair),
        create_topology(None, broker, delay_levels.KIND, LEVELS),
    ]
    for topology in made:
        apply(None, topology)
        topology.refresh_from_db()
    with Management(broker.address) as management:
        management.declare_queue(Queue(PARKED, arguments=Arguments({"x-queue-type": "classic"})))
        for binding in delay_levels.route(LEVELS, timedelta(0), WORK).declares.bindings:
            management.bind(binding)
    return made


def are_recorded(topologies: Sequence[Topology]) -> bool:
    """Whether every task lives, the recorders of these topologies among them."""
    background_tasks = {
        background_task.key: background_task for background_task in BackgroundTask.objects.all()
    }
    are_there = all(
        task_key("record", topology.slug) in background_tasks for topology in topologies
    )
    return are_there and not any(
        background_task.is_late or background_task.is_failing
        for background_task in background_tasks.values()
    )


def are_reported() -> bool:
    """Whether the demo's history has its reports: the worker loads Plotly for the first."""
    return NightlyReport.objects.exists() and not days_to_store(datetime.now(UTC))


def figures(broker: Broker) -> dict[str, float]:
    """Tasks, copies that no pattern could read, gaps, what waits, the broker's connections."""
    background_tasks = list(BackgroundTask.objects.all())
    found: dict[str, float] = {
        "background_tasks.late": sum(
            background_task.is_late for background_task in background_tasks
        ),
        "background_tasks.failing": sum(
            background_task.is_failing for background_task in background_tasks
        ),
        "unknown copies": sum(
            int(background_task.details.get("unknown", 0)) for background_task in background_tasks
        ),
        "gaps": Gap.objects.count(),
        "index.waiting": waiting([broker]).count(),
        "index.overdue": overdue_rows(broker),
    }
    try:
        with Management(broker.address) as management:
            found |= totals(management.overview())
        # Each is sent on a connection of its own.
        found["broker.connections created"] -= Probe.objects.count()
    except BrokerError:
        found["broker.unanswered"] = 1.0
    return found


def totals(overview: Mapping[str, dict[str, float]]) -> dict[str, float]:
    """What the broker holds, and how often anybody connected, of GET /api/overview."""
    # What never happened yet is absent.
    objects, churn = overview["object_totals"], overview["churn_rates"]
    return {
        "broker.unanswered": 0.0,
        "broker.queues": objects["queues"],
        "broker.messages": overview["queue_totals"].get("messages", 0),
        "broker.connections": objects["connections"],
        "broker.connections created": churn.get("connection_created", 0),
        "broker.channels created": churn.get("channel_created", 0),
    }


def open_rows(topologies: Sequence[Topology]) -> int:
    """The trips that did not end, or whose beginning was not seen."""
    rows = ScheduledMessage.objects.filter(topology__in=topologies)
    return rows.exclude(entered_at__isnull=False, left_at__isnull=False).count()


def overdue_rows(broker: Broker) -> int:
    """The messages of any topology there that should have left its delay, and nobody saw it.

    Without the one that the demo lets get stuck.
    """
    overdue = scope([broker], datetime.now(UTC)).overdue_rows()
    return overdue.exclude(destination=RETURNS).count()


def recorded(topologies: Sequence[Topology]) -> Recorded:
    """Everything that was written down of the soak's messages."""
    slugs = {topology.slug for topology in topologies}
    kinds: dict[str, Counter[int]] = {
        kind: Counter() for kind in ("published", "scheduled", "delivered")
    }
    for day in days(settings.EVENT_LOG):
        for event in read_day(settings.EVENT_LOG, day):
            if event.topology in slugs and event.kind in kinds:
                kinds[event.kind][number_of(event.message_id)] += 1
    rows = ScheduledMessage.objects.filter(topology__in=topologies).exclude(left_at=None)
    return Recorded(
        **kinds,
        finished_rows=_numbers(rows.values_list("message_id", flat=True)),
    )


def _numbers(message_ids: Iterable[str]) -> Counter[int]:
    return Counter(number_of(message_id) for message_id in message_ids)
