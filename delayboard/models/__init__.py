"""Rows about the operator's work on messages, and about what the worker does."""

from __future__ import annotations

from delayboard.models.duty import Duty
from delayboard.models.publication import Publication
from delayboard.models.replay import ItemState, ReplayBatch, ReplayItem

__all__ = ("Duty", "ItemState", "Publication", "ReplayBatch", "ReplayItem")
