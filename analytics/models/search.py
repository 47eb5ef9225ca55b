from __future__ import annotations

from django.db import models

from analytics.models.scheduled_message import ScheduledMessage


class ScheduledText(models.Model):
    """What of a waiting message is searched: its ids, headers and text body, case folded.

    The database keeps an index of every three characters of it beside (`SEARCH_INDEX` of the
    migrations). Written and removed by `analytics.scheduled.queries.texts` some time after
    the message itself, which `check_at` is the next time for.
    """

    message = models.OneToOneField(
        ScheduledMessage, models.CASCADE, primary_key=True, related_name="searched"
    )
    text = models.TextField()
    check_at = models.DateTimeField(db_index=True)

    def __str__(self) -> str:
        return f"text of {self.message_id}"


class TextPosition(models.Model):
    """One row: the messages up to this id have their text, as far as they wait."""

    read_to = models.BigIntegerField(default=0)

    def __str__(self) -> str:
        return f"texts up to {self.read_to}"
