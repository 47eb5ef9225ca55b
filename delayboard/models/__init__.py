"""Rows about the operator's work on messages, and about what the worker does."""

from __future__ import annotations

from delayboard.models.dead_letter import Body, DeadLetter, LetterState
from delayboard.models.duty import Duty
from delayboard.models.letter_group import GroupHour, LetterGroup
from delayboard.models.letter_queue import DeadLetterQueue, QueueDepth
from delayboard.models.letter_search import LetterField, LetterPosition, LetterText, SavedSearch
from delayboard.models.mask import LookCount
from delayboard.models.parking import LetterChange, Parking, ParkSession
from delayboard.models.publication import Publication
from delayboard.models.replay import (
    BatchState,
    ItemState,
    Order,
    Outcome,
    RedirectRule,
    ReplayBatch,
    ReplayEdit,
    ReplayItem,
    ReplayRoute,
    Source,
    TargetMode,
)
from delayboard.models.timeout_import import ImportedTimeout
from topology.models import MaskKind, MaskRule

__all__ = (
    "BatchState",
    "Body",
    "DeadLetter",
    "DeadLetterQueue",
    "Duty",
    "GroupHour",
    "ImportedTimeout",
    "ItemState",
    "LetterChange",
    "LetterField",
    "LetterGroup",
    "LetterPosition",
    "LetterState",
    "LetterText",
    "LookCount",
    "MaskKind",
    "MaskRule",
    "Order",
    "Outcome",
    "ParkSession",
    "Parking",
    "Publication",
    "QueueDepth",
    "RedirectRule",
    "ReplayBatch",
    "ReplayEdit",
    "ReplayItem",
    "ReplayRoute",
    "SavedSearch",
    "Source",
    "TargetMode",
)
