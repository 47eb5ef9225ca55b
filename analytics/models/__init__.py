"""The rows of analytics: what waits, counters, facts, gaps, nightly runs and their results."""

from __future__ import annotations

from analytics.models.fact import Fact
from analytics.models.recording import Gap, Minute, Recording
from analytics.models.results import (
    AccuracyRow,
    AttemptRow,
    DeathRow,
    LatenessHistogram,
    RetryRow,
)
from analytics.models.run import Run
from analytics.models.scheduled_message import ScheduledMessage

__all__ = [
    "AccuracyRow",
    "AttemptRow",
    "DeathRow",
    "Fact",
    "Gap",
    "LatenessHistogram",
    "Minute",
    "Recording",
    "RetryRow",
    "Run",
    "ScheduledMessage",
]
