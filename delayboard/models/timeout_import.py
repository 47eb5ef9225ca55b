"""What an import of timeouts has published: rows that keep a second run from publishing twice."""

from __future__ import annotations

import uuid

from django.db import models

from topology.models import Topology


class ImportedTimeout(models.Model):
    """One line of an import, written before its message is published.

    `key` is the line's (`timeout.py` of its import). A row without `published_at` was left by
    an import that died, or lost its broker, between the two: whether its message is in the broker
    is not known, so that it is published again and `may_be_doubled`.
    """

    topology = models.ForeignKey(Topology, models.CASCADE, related_name="imported_timeouts")
    key = models.CharField(max_length=64)
    destination = models.CharField(max_length=255)
    due_at = models.DateTimeField()
    tracking_id = models.UUIDField(default=uuid.uuid4, editable=False)
    may_be_doubled = models.BooleanField(default=False)
    begun_at = models.DateTimeField(auto_now_add=True)
    published_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("pk",)
        constraints = (
            models.UniqueConstraint(fields=("topology", "key"), name="one_import_per_line"),
        )

    def __str__(self) -> str:
        return f"{self.destination} at {self.due_at:%Y-%m-%d %H:%M:%S}"
