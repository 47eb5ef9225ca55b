"""One replay: a frozen choice of messages, each with its target and how far it got."""

from __future__ import annotations

import uuid
from collections import Counter

from django.conf import settings
from django.db import models

from topology.models import Work


class ItemState(models.TextChoices):
    """pending -> publishing -> confirmed -> done; the others end it with the message in place.

    Each step is committed before the next is taken: one that was begun, and is found in the
    queue after a crash, is published again and marked.
    """

    PENDING = "pending", "pending"
    PUBLISHING = "publishing", "being published"
    CONFIRMED = "confirmed", "confirmed, not yet taken from the queue"
    DONE = "done", "done"
    RETURNED = "returned", "returned: no queue took it"
    NACKED = "nacked", "refused by a queue"
    FAILED = "failed", "failed"
    GONE = "gone", "not found in the queue"
    CANCELLED = "cancelled", "cancelled"


OPEN = (ItemState.PENDING, ItemState.PUBLISHING, ItemState.CONFIRMED)


class ReplayBatch(models.Model):
    """Freezes exactly the messages that were chosen on a page; a draft until it is started."""

    broker = models.ForeignKey("topology.Broker", models.CASCADE)
    queue = models.CharField(max_length=255)
    work = models.OneToOneField(Work, models.PROTECT, null=True)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-pk",)
        verbose_name_plural = "replay batches"

    def __str__(self) -> str:
        return f"replay {self.pk} of {self.queue}"

    @property
    def is_draft(self) -> bool:
        return self.work is None

    @property
    def is_ended(self) -> bool:
        return self.work is not None and self.work.is_ended

    def counts(self) -> dict[str, int]:
        """Items by state; they always add up to all of them."""
        found = Counter(self.items.values_list("state", flat=True))
        return {state: found.get(state, 0) for state in ItemState.values}


class ReplayItem(models.Model):
    """One message of a batch, known again by its content; equal messages are counted apart."""

    batch = models.ForeignKey(ReplayBatch, models.CASCADE, related_name="items")
    position = models.PositiveIntegerField()
    content_id = models.CharField(max_length=32)
    message_id = models.CharField(max_length=255, blank=True)
    size = models.PositiveIntegerField()
    target_exchange = models.CharField(max_length=255, blank=True)
    target_key = models.CharField(max_length=255, blank=True)
    target_why = models.TextField(blank=True)
    verdict = models.TextField(blank=True)
    verdict_is_good = models.BooleanField(default=True)
    replay_id = models.UUIDField(default=uuid.uuid4, editable=False)
    state = models.CharField(
        max_length=10, choices=ItemState.choices, default=ItemState.PENDING, db_index=True
    )
    attempts = models.PositiveSmallIntegerField(default=0)
    may_be_duplicated = models.BooleanField(default=False)
    error = models.TextField(blank=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("position",)
        constraints = (
            models.UniqueConstraint(fields=("batch", "position"), name="one_item_per_position"),
        )

    def __str__(self) -> str:
        return f"{self.message_id or self.content_id}: {self.state}"
