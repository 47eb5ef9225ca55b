from __future__ import annotations

from django.db import models


class Fact(models.Model):
    """An event that Delayboard itself caused, on its way into the event log.

    Written in the transaction that did it, and deleted when its line is on disk.
    """

    line = models.TextField(help_text="The event as a line of the log.")

    class Meta:
        ordering = ("id",)

    def __str__(self) -> str:
        return self.line[:80]
