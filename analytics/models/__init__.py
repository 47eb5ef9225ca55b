"""The rows of analytics: what waits, counters, facts, gaps, nightly runs and their results."""

from __future__ import annotations

from analytics.models.fact import Fact
from analytics.models.recording import Firehose, Gap, LogPosition, Minute, Recording
from analytics.models.results import (
    AccuracyRow,
    AttemptRow,
    DeathRow,
    LatenessHistogram,
    RetryRow,
    UncountedRow,
)
from analytics.models.run import Run
from analytics.models.scheduled_message import DueCount, ScheduledBody, ScheduledMessage
from analytics.models.search import ScheduledText, TextPosition

__all__ = [
    "AccuracyRow",
    "AttemptRow",
    "DeathRow",
    "DueCount",
    "Fact",
    "Firehose",
    "Gap",
    "LatenessHistogram",
    "LogPosition",
    "Minute",
    "Recording",
    "RetryRow",
    "Run",
    "ScheduledBody",
    "ScheduledMessage",
    "ScheduledText",
    "TextPosition",
    "UncountedRow",
]
