"""One round of cleaning."""

from __future__ import annotations

from datetime import datetime

from analytics.retention.files import clean_log
from analytics.retention.rows import Alive, clean_rows, forget_empty_counts
from analytics.retention.rules import LOG, RULES


def clean(now: datetime, alive: Alive = lambda: None) -> dict[str, int]:
    """Delete what is past its time; setting -> how many files or rows that were.

    `alive` is called between batches, and may raise to stop. Killed at any moment, the next
    call goes on. Raises BadSetting, and LogError for files that cannot be deleted.
    """
    rows = {rule.setting: clean_rows(rule, now, alive) for rule in RULES[1:]}
    forget_empty_counts(now, alive)
    return {LOG.setting: clean_log(now, alive)} | rows
