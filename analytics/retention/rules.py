"""The one table of what is kept for how long."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime, timedelta

FOR_GOOD = "never"
LONGEST_DAYS = 36_500


class BadSetting(ValueError):
    """A number of days that is none; the message names the setting and says what is allowed."""


@dataclass(frozen=True)
class Rule:
    """One line of the table: `setting` is an environment variable, in whole days."""

    what: str
    setting: str
    default: int
    meaning: str

    @property
    def days(self) -> int | None:
        """How many days; None for good. Raises BadSetting."""
        text = os.environ.get(self.setting, "").strip()
        if not text:
            return self.default
        is_number = text.isascii() and text.isdigit()
        if text.lower() == FOR_GOOD or (is_number and not text.strip("0")):
            return None
        digits = text.lstrip("0")
        if not is_number or len(digits) > 9 or int(digits) > LONGEST_DAYS:
            raise BadSetting(
                f"{self.setting} is “{text[:40]}”. It takes a number of days from 1 to "
                f"{LONGEST_DAYS}, or “{FOR_GOOD}” (or 0) to keep everything."
            )
        return int(digits)

    def cutoff(self, now: datetime) -> datetime | None:
        """What is older than this may go; None when nothing may. Raises BadSetting."""
        days = self.days
        return None if days is None else now - timedelta(days=days)


LOG = Rule(
    "Event log",
    "KEEP_LOG_DAYS",
    90,
    "Whole UTC days of lines, once their nightly run has ended. The figures of the reports stay.",
)
LEFT = Rule(
    "Messages that have left",
    "KEEP_LEFT_DAYS",
    7,
    "Rows of messages that came out of their delay; where nobody sees that, once they were due. "
    "Those that were published from here stay, since their pages tell of them.",
)
OVERDUE = Rule(
    "Overdue messages",
    "KEEP_OVERDUE_DAYS",
    90,
    "Rows of messages that were due so long ago, and that nobody saw leave.",
)
MINUTES = Rule("Counts by the minute", "KEEP_MINUTES_DAYS", 30, "The numbers of the page Now.")
GAPS = Rule("Gaps", "KEEP_GAPS_DAYS", 365, "When copies may have been lost, and why.")
RULES = (LOG, LEFT, OVERDUE, MINUTES, GAPS)
