"""The rows of analytics: messages, counters, facts, gaps, annotations, runs, results, reports."""

from __future__ import annotations

from analytics.models.annotation import Annotation
from analytics.models.imports import LogImport, SavedMapping
from analytics.models.log_host import CompactedDay, LogHost, RepeatedCopy, SentPart
from analytics.models.probe import Probe
from analytics.models.recording import Fact, Firehose, Gap, LogPosition, Minute, Recording
from analytics.models.results import (
    ConsumptionPeak,
    DayFigures,
    NightlyReport,
    Slo,
    UnexplainedMessage,
    UnusualChange,
)
from analytics.models.run import Run
from analytics.models.scheduled_message import (
    ScheduledBody,
    ScheduledMessage,
    ScheduledText,
    TextPosition,
)
