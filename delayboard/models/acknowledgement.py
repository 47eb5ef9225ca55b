"""Problems of Now that somebody acknowledged or snoozed."""

from __future__ import annotations

from datetime import datetime

from django.db import models

from topology.models import Broker

LONGEST_IDENTITY = 300


class Acknowledgement(models.Model):
    """A problem that needs nobody until `until_at`, or until it ends where that is empty.

    `broker` is that of the problem, empty for a problem of Delayboard itself.
    """

    identity = models.CharField(max_length=LONGEST_IDENTITY, unique=True)
    broker = models.ForeignKey(Broker, models.CASCADE, null=True, related_name="+")
    username = models.CharField(max_length=150)
    created_at = models.DateTimeField()
    # A problem that became an error since needs somebody again.
    severity = models.CharField(max_length=10, default="error")
    # Another error of the same object needs somebody too.
    error_kind = models.CharField(max_length=16, blank=True, default="", db_default="")
    until_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"{self.identity} by {self.username}"

    @classmethod
    def active(cls, now: datetime) -> models.QuerySet[Acknowledgement]:
        """The acknowledgements whose end is not reached."""
        return cls.objects.filter(models.Q(until_at=None) | models.Q(until_at__gt=now))
