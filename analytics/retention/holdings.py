"""What each store of the table holds now."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, time

from django.conf import settings

from analytics.log import day_folders
from analytics.retention.rows import rows_of
from analytics.retention.rules import GAPS, LOG, MINUTES, OVERDUE, RULES, Rule


@dataclass(frozen=True)
class Holding:
    """What one rule's store holds now; `number` of units, `size` in bytes where known."""

    rule: Rule
    unit: str
    number: int
    oldest_at: datetime | None
    size: int | None = None


def holdings(now: datetime) -> list[Holding]:
    """One for each rule, in the order of the table."""
    return [_log_holding(), *(_row_holding(rule, now) for rule in RULES[1:])]


def _log_holding() -> Holding:
    number = size = 0
    oldest = None
    for day, folder in day_folders(settings.EVENT_LOG):
        sizes = [path.stat().st_size for path in folder.rglob("*.jsonl")]
        number, size = number + len(sizes), size + sum(sizes)
        if sizes and oldest is None:
            oldest = datetime.combine(day, time(), UTC)
    return Holding(LOG, "file", number, oldest, size)


def _row_holding(rule: Rule, now: datetime) -> Holding:
    rows = rows_of(rule, now)
    name = {MINUTES: "minute_at", GAPS: "until_at", OVERDUE: "due_at"}.get(rule, "left_at")
    first = rows.exclude(**{name: None}).order_by(name).values_list(name, flat=True).first()
    return Holding(rule, "row", rows.count(), first)
