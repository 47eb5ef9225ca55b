"""The one table of what is kept for how long."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db import transaction
from django.db.models import Exists, OuterRef

from analytics.models import Probe
from analytics.retention import rules
from analytics.retention.log_files import LOG
from analytics.retention.rules import BATCH, Alive, RowRule, Rows, delete_batches, key_batches
from analytics.retention.uploads import UPLOADED
from delayboard.models import (
    AlertMessage,
    AlertProblem,
    CounterSample,
    FailureQueue,
    ParkedState,
    PublishJob,
    QueueDepth,
    QueueSample,
    ReplayBatch,
    ReplayEdit,
    ReplayItem,
    ScheduledChange,
)
from delayboard.models.replay import ENDED_BATCH
from delayboard.models.scheduled_change import OPEN
from delayboard.retention.parked_rows import PARKED
from topology import snapshots
from topology.models import FindingPeriod

_IN_DELAY = ReplayItem.objects.filter(
    batch=OuterRef("pk"), parked_message__state=ParkedState.DELAYED
)


@dataclass(frozen=True)
class ReplayRule(RowRule):
    """Replays that ended so long ago, one at a time: a million items are no single transaction."""

    def older(self, now: datetime, cutoff: datetime) -> Rows:
        ended = self.table.filter(state__in=ENDED_BATCH, state_at__lt=cutoff)
        return ended.filter(~Exists(_IN_DELAY))

    def delete_expired(self, now: datetime, alive: Alive) -> int:
        def delete_replay(keys: list[int]) -> int:
            (key,) = keys
            items = ReplayItem.objects.filter(batch=key)
            delete_batches(key_batches(items, "position"), _delete_items, alive)
            self.table.filter(pk=key).delete()
            return 1

        keys = self.expired(now).order_by("pk").values_list("pk", flat=True)
        return delete_batches(([key] for key in list(keys)), delete_replay, alive)


def _delete_items(keys: list[int]) -> int:
    with transaction.atomic():
        ReplayEdit.objects.filter(item__in=keys).delete()
        ReplayItem.objects.filter(pk__in=keys).delete()
    return len(keys)


REPLAYS = ReplayRule(
    "Replays",
    "KEEP_REPLAYS_DAYS",
    "Ended replays with the outcome of each message. Delayboard keeps a replay while one of its "
    "messages is in a delay without observed delivery. The audit log keeps an entry.",
    ReplayBatch.objects.all(),
    "created_at",
)


PUBLISH_JOBS = RowRule(
    "Publish jobs",
    365,
    "The counts of publish jobs. Those of a file have which lines were published: after this time, "
    "the same file is published again.",
    PublishJob.objects.filter(work__ended_at__isnull=False),
    "work__ended_at",
)
PROBES = RowRule(
    "Probes",
    7,
    "When each probe was sent and arrived. Reports keep what they computed from the event log.",
    Probe.objects.all(),
    "created_at",
)
FINDINGS = RowRule(
    "History of findings",
    365,
    "When each finding of a broker appeared and when it was resolved. Open findings are not "
    "deleted.",
    FindingPeriod.objects.all(),
    "resolved_at",
)
CHANGES = RowRule(
    "Changes of waiting messages",
    "KEEP_CHANGES_DAYS",
    "Cancelled, rescheduled and delivered messages with the outcome of each change. The audit log "
    "keeps an entry.",
    ScheduledChange.objects.exclude(state__in=OPEN),
    "ended_at",
)
ALERTS = RowRule(
    "Alerts",
    90,
    "Alerts and deliveries of webhooks that were sent or abandoned, with the outcome of each. "
    "Waiting ones are not deleted.",
    AlertMessage.objects.all(),
    "ended_at",
)
ALERTED_PROBLEMS = RowRule(
    "Alerted problems",
    90,
    "When each problem of Now began and ended, while alerts have a receiver. Open problems are not "
    "deleted.",
    AlertProblem.objects.all(),
    "resolved_at",
)


@dataclass(frozen=True)
class FailureQueueRule(RowRule):
    """Queues that the last answer of their broker does not name; none before it has answered."""

    def older(self, now: datetime, cutoff: datetime) -> Rows:
        absent = [
            row.pk
            for row in super().older(now, cutoff)
            if (known := snapshots.latest(row.broker_id))
            and known.snapshot
            and not known.snapshot.definitions.queue(row.queue)
        ]
        return self.table.filter(pk__in=absent[:BATCH])


FAILURE_QUEUES = FailureQueueRule(
    "Queues with failed messages",
    30,
    "Queues in which a check or the firehose found failed messages. Queues that exist are not "
    "deleted.",
    FailureQueue.objects.all(),
    "seen_at",
)
QUEUE_HISTORY = RowRule(
    "History of queues",
    28,
    "Depth and rates of each queue, read every 15 minutes and stored where they changed.",
    QueueSample.objects.all(),
    "at",
)
# Depths of the last hour, for Now and the list of dead-letter queues.
DEPTHS = RowRule("", 2, "", QueueDepth.objects.all(), "at")
COUNTERS = RowRule("", 1, "", CounterSample.objects.all(), "at")
# Rules in their order. The files come last: a disk that refuses to delete them delays no rows.
_OWN = (PUBLISH_JOBS, REPLAYS, CHANGES, FINDINGS, PROBES, ALERTS, ALERTED_PROBLEMS, FAILURE_QUEUES)
RULES = (*rules.RULES, *_OWN, QUEUE_HISTORY, DEPTHS, COUNTERS, *PARKED, UPLOADED, LOG)
