"""Rows about the operator's work on messages, and about what the worker does."""

from __future__ import annotations

from delayboard.models.account import EVERYBODY, ApiAnswer, ApiToken, GroupRole, Preference
from delayboard.models.acknowledgement import Acknowledgement
from delayboard.models.alert import (
    AlertChannel,
    AlertMessage,
    AlertNotice,
    AlertProblem,
    AlertReceiver,
    AlertState,
    Heartbeat,
)
from delayboard.models.background_task import BackgroundTask
from delayboard.models.counter_sample import CounterSample
from delayboard.models.dead_letter import Body, ParkedMessage, ParkedState
from delayboard.models.dead_letter_queue import DeadLetterQueue, FailureQueue, PeekCount, QueueDepth
from delayboard.models.delay_migration import DelayMigration, MovedMessage
from delayboard.models.message_group import GroupHour, MessageGroup
from delayboard.models.parked_search import (
    ParkedField,
    ParkedPosition,
    ParkedText,
    SavedView,
    SearchedList,
)
from delayboard.models.parking import ParkedChange, Parking, ParkSession
from delayboard.models.publication import Publication, PublishJob, PublishTemplate
from delayboard.models.queue_sample import QueueSample
from delayboard.models.replay import (
    BatchState,
    ItemState,
    Order,
    RedirectRule,
    ReplayBatch,
    ReplayEdit,
    ReplayItem,
    ReplayOutcome,
    ReplayRoute,
    TargetMode,
)
from delayboard.models.scheduled_change import (
    ChangeKind,
    ChangeState,
    Interception,
    InterceptionState,
    ScheduledChange,
)
from topology.models import RedactionKind, RedactionRule
