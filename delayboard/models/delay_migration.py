"""A migration of waiting messages, and what it has begun to move."""

from __future__ import annotations

from django.conf import settings
from django.db import models

from topology.models import Topology, Work


class DelayMigration(models.Model):
    """A migration from a topology to delay levels. `doubled` messages may be in the target twice.

    A worker goes on with one that is not at its end, unless it is paused. With `takes_undated`,
    messages of which nobody knows when they are due go to the queue for malformed ones too; else
    they stay in the source.
    """

    source = models.ForeignKey(Topology, models.PROTECT, related_name="+")
    target = models.ForeignKey(Topology, models.PROTECT, related_name="+")
    work = models.OneToOneField(Work, models.PROTECT)
    takes_undated = models.BooleanField(default=False)
    requested_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+"
    )
    moved = models.PositiveIntegerField(default=0)
    malformed = models.PositiveIntegerField(default=0)
    doubled = models.PositiveIntegerField(default=0)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-pk",)

    def __str__(self) -> str:
        return f"migration from {self.source} to {self.target}"

    @property
    def is_paused(self) -> bool:
        return self.work.pause_requested

    @property
    def route(self) -> str:
        """Source and target for the audit log, which names the broker of the source."""
        target = self.target
        is_elsewhere = target.broker_id != self.source.broker_id
        return f"{self.source.name} to {target.name}" + (
            f" on {target.broker.name}" if is_elsewhere else ""
        )


class MovedMessage(models.Model):
    """A message whose move was begun. The rows go when the source is empty.

    One that comes again while its row is there may have been published before. `queue` is where it
    was: an interrupted migration goes on there.
    """

    migration = models.ForeignKey(DelayMigration, models.CASCADE, related_name="begun")
    key = models.CharField(max_length=300)
    queue = models.CharField(max_length=255)

    class Meta:
        indexes = (models.Index(fields=("migration", "key"), name="begun_by_key"),)

    def __str__(self) -> str:
        return self.key
