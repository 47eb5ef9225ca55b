"""Rows that several queries use: computed once and kept on the disk."""

from __future__ import annotations

from pyspark import StorageLevel
from pyspark.sql import DataFrame


def keep(frame: DataFrame, *, eager: bool = False) -> DataFrame:
    """The frame, computed at its first use, or at once if `eager`.

    A checkpoint and not a cache: it also cuts the plan, and to analyse a plan of everything again
    with each step cost a small day most of its time. On the disk, because rows in the heap
    leave aggregations no room in it, and are copied by each collection of garbage.
    """
    return frame.localCheckpoint(eager=eager, storageLevel=StorageLevel.DISK_ONLY)
