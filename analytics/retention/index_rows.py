"""Rules for the rows of the index: scheduled messages, minutes and gaps."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Q

from analytics.models import (
    ConsumptionPeak,
    Gap,
    LogHost,
    Minute,
    NightlyReport,
    RepeatedCopy,
    ScheduledMessage,
)
from analytics.models.scheduled_message import REPLAYED
from analytics.observation import is_presumed_delivered
from analytics.retention.rules import RowRule, Rows


@dataclass(frozen=True)
class ScheduledRule(RowRule):
    """Scheduled messages: those that have left, or those that are overdue."""

    def rows(self, now: datetime) -> Rows:
        left = Q(left_at=None) & is_presumed_delivered(now)
        if self.age == "left_at":
            return self.table.filter(Q(left_at__isnull=False) | left)
        return self.table.filter(left_at=None, due_at__lt=now).exclude(left)

    def older(self, now: datetime, cutoff: datetime) -> Rows:
        if self.age == "due_at":
            return super().older(now, cutoff)
        left = Q(left_at__lt=cutoff) | Q(left_at=None, due_at__lt=cutoff)
        is_tracked = ~Q(tracking_id="") & ~Q(tracking_id__startswith=REPLAYED)
        return self.rows(now).filter(left & ~is_tracked)


DELIVERED = ScheduledRule(
    "Delivered messages",
    7,
    "Messages that left their delay. If deliveries are not observed, messages past their "
    "due time. Delayboard keeps the messages that it published, because pages show them.",
    ScheduledMessage.objects.all(),
    "left_at",
)
OVERDUE = ScheduledRule(
    "Overdue messages",
    90,
    "Messages past their due time without an observed delivery.",
    ScheduledMessage.objects.all(),
    "due_at",
)
MINUTES = RowRule(
    "Counts per minute",
    30,
    "Numbers of the overview page.",
    Minute.objects.all(),
    "minute_at",
)
CONSUMPTION = RowRule(
    "Consumption peaks",
    28,
    "The best minute of the consumers of each queue and day. The calendar of due messages compares "
    "with it.",
    ConsumptionPeak.objects.all(),
    "day_at",
)
GAPS = RowRule(
    "Gaps",
    365,
    "Periods in which RabbitMQ may have dropped copies, with the cause.",
    Gap.objects.all(),
    "until_at",
)
REPORTS = RowRule(
    "Nightly reports",
    "KEEP_REPORTS_DAYS",
    "Stored files of nightly reports, with their deliveries. The page Reports keeps its figures.",
    NightlyReport.objects.all(),
    "made_at",
)
# Of a host that comes back later than that, its own lines may count twice.
REPEATS = RowRule("", 7, "", RepeatedCopy.objects.all(), "recorded_at")
# Stopped ones of which everything was read.
HOSTS = RowRule(
    "",
    1,
    "",
    LogHost.objects.filter(has_ended=True, unread_bytes=0, unsent_since=None),
    "seen_at",
)
RULES = (DELIVERED, OVERDUE, MINUTES, CONSUMPTION, GAPS, REPORTS, REPEATS, HOSTS)
