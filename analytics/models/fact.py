from __future__ import annotations

from django.db import models


class Fact(models.Model):
    """Events that Delayboard itself caused, on their way into the event log: one line for each.

    Written in the transaction that did it, and deleted when its lines are on disk.
    """

    line = models.TextField(help_text="The event as a line of the log.")

    class Meta:
        ordering = ("id",)

    def __str__(self) -> str:
        return self.line[:80]
