"""Rows about the operator's work on messages, and about what the worker does."""

from __future__ import annotations

from delayboard.models.duty import Duty
from delayboard.models.publication import Publication
from delayboard.models.replay import ItemState, ReplayBatch, ReplayItem
from delayboard.models.timeout_import import ImportedTimeout

__all__ = ("Duty", "ImportedTimeout", "ItemState", "Publication", "ReplayBatch", "ReplayItem")
