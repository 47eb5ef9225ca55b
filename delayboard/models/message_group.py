"""Dead letters with the same cause, as far as it is known."""

from __future__ import annotations

from django.conf import settings
from django.db import models

from topology.deaths import REASONS
from topology.models import Broker

REPUBLISHED_WORDS = "the consumer failed and published the message to this queue"


class MessageGroup(models.Model):
    """What is the same in all of them, how many there are, and what people wrote about it.

    `died_in`, `reason`, `exchange` and `routing_key` are those of the first failure. `routing_key`
    and `exception_message` have placeholders for ids. `parked_from` is the queue of its messages
    where nothing records the queue in which they failed. The counts change in the transaction that
    changes a message.
    """

    broker = models.ForeignKey(Broker, models.CASCADE)
    fingerprint = models.CharField(max_length=32, help_text="Hash of the common cause.")
    died_in = models.CharField(max_length=255, blank=True)
    reason = models.CharField(max_length=255, blank=True)
    exchange = models.CharField(max_length=255, blank=True)
    routing_key = models.CharField(max_length=255, blank=True)
    exception = models.CharField(max_length=255, blank=True)
    message_type = models.CharField(max_length=255, blank=True)
    exception_message = models.CharField(max_length=255, blank=True)
    parked_from = models.CharField(max_length=255, blank=True)
    parked = models.PositiveIntegerField(default=0)
    discarded = models.PositiveIntegerField(default=0)
    replaying = models.PositiveIntegerField(default=0)
    delayed = models.PositiveIntegerField(default=0)
    replayed = models.PositiveIntegerField(default=0)
    total = models.PositiveIntegerField(default=0, help_text="Number of messages ever parked.")
    first_at = models.DateTimeField(help_text="Time of the first death, or of the first parking.")
    last_at = models.DateTimeField()
    created_at = models.DateTimeField(auto_now_add=True, null=True, db_index=True)
    note = models.TextField(blank=True)
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+"
    )
    link = models.URLField(max_length=500, blank=True)
    name = models.CharField(max_length=100, blank=True, help_text="Name from a merge of groups.")
    merged_into = models.ForeignKey(
        "self",
        models.SET_NULL,
        null=True,
        blank=True,
        related_name="merged",
        help_text="Group that shows these messages; each message keeps its own group.",
    )

    class Meta:
        ordering = ("-last_at", "-pk")
        constraints = (
            models.UniqueConstraint(fields=("broker", "fingerprint"), name="one_group_per_cause"),
        )
        indexes = (models.Index(fields=("broker", "-last_at", "-id"), name="groups_of_broker"),)

    def __str__(self) -> str:
        place = f" in {self.died_in}" if self.died_in else ""
        return self.title + place + (f" from {self.parked_from}" if self.parked_from else "")

    @property
    def title(self) -> str:
        """What it is known by: its name, its exception, or why it died."""
        return self.name or self.exception or self.reason or "unknown cause"

    @property
    def member_ids(self) -> list[int]:
        """The ids of all groups whose messages it shows: its own, then those merged into it."""
        merged = MessageGroup.objects.filter(merged_into=self.pk).order_by("pk")
        return [self.pk, *merged.values_list("pk", flat=True)]

    @property
    def why(self) -> str:
        """The reason in words, "" for one that is not known."""
        return (REASONS | {"republished": REPUBLISHED_WORDS}).get(self.reason, "")

    @property
    def note_line(self) -> str:
        """The first line of the note."""
        return self.note.partition("\n")[0]


class GroupHour(models.Model):
    """How many of a group died in one UTC hour: its trend."""

    group = models.ForeignKey(MessageGroup, models.CASCADE, related_name="hours")
    hour = models.DateTimeField()
    died = models.PositiveIntegerField(default=0)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("group", "hour"), name="one_count_per_hour"),
        )

    def __str__(self) -> str:
        return f"{self.died} at {self.hour}"
