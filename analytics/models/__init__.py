"""The rows of analytics: what waits, counters, facts, gaps, nightly runs, results, reports."""

from __future__ import annotations

from analytics.models.consumption import ConsumptionPeak
from analytics.models.fact import Fact
from analytics.models.log_host import CompactedDay, LogHost, RepeatedCopy, SentPart
from analytics.models.nightly_report import NightlyReport
from analytics.models.probe import Probe
from analytics.models.recording import Firehose, Gap, LogPosition, Minute, Recording
from analytics.models.results import DayFigures, UnexplainedMessage
from analytics.models.run import Run
from analytics.models.scheduled_message import ScheduledBody, ScheduledMessage
from analytics.models.search import ScheduledText, TextPosition
from analytics.models.slo import Slo
