"""A message that Delayboard published, and its outcome."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta

from django.conf import settings
from django.db import models
from django.utils import timezone


class Sent(models.TextChoices):
    SENDING = "sending", "sending"
    CONFIRMED = "confirmed", "confirmed by the broker"
    REFUSED = "refused", "not published"
    UNKNOWN = "unknown", "possibly published"


# Longest publish: connect, handshake and heartbeat times are together well under this.
LONGEST_SEND = timedelta(seconds=30)
# Empty properties, as AMQP writes them.
NO_PROPERTIES = b"\x00\x00"


class PublishTemplate(models.Model):
    """What somebody typed on the page Publish, by field; all operators of the broker share it."""

    broker = models.ForeignKey("topology.Broker", models.CASCADE)
    name = models.CharField(max_length=100)
    values = models.JSONField()
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("name", "pk")
        constraints = (
            models.UniqueConstraint(fields=("broker", "name"), name="one_template_per_name"),
        )

    def __str__(self) -> str:
        return self.name


class Publication(models.Model):
    """Written before the publish, so that a crash in the middle leaves it as `SENDING`."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    broker = models.ForeignKey("topology.Broker", models.CASCADE)
    topology = models.ForeignKey("topology.Topology", models.SET_NULL, null=True)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True)
    exchange = models.CharField(max_length=255, blank=True)
    routing_key = models.CharField(max_length=255, blank=True)
    message_id = models.CharField(max_length=255, blank=True)
    size = models.PositiveIntegerField()
    predicted_delay_ms = models.BigIntegerField(null=True)
    prediction = models.TextField(blank=True)
    hops = models.JSONField(default=list, help_text="As Prediction.hops")
    unobservable_why = models.TextField(blank=True)
    sent = models.CharField(max_length=10, choices=Sent.choices, default=Sent.SENDING)
    error = models.TextField(blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    confirmed_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("-created_at",)

    def __str__(self) -> str:
        return f"{self.exchange or '(default)'} {self.routing_key} {self.created_at:%H:%M:%S}"

    @property
    def outcome(self) -> Sent:
        """`SENDING` for longer than a send can take means that the site died meanwhile."""
        if self.sent == Sent.SENDING and timezone.now() - self.created_at > LONGEST_SEND:
            return Sent.UNKNOWN
        return Sent(self.sent)

    @property
    def predicted_delay(self) -> timedelta:
        return timedelta(milliseconds=self.predicted_delay_ms or 0)

    @property
    def due_at(self) -> datetime | None:
        if self.predicted_delay_ms is None:
            return None
        return self.created_at + timedelta(milliseconds=self.predicted_delay_ms)


class PublishJob(models.Model):
    """Equal messages that the worker publishes at a rate (delayboard/publishing/publish_job.py).

    The messages have the numbers 1 to `number`. Those up to `begun` may be published; those in
    `unanswered` have no answer of the broker, and are published again, marked. `published` were
    confirmed, `returned` were not published, `unknown` may be. `repeated` may be duplicated. The
    content is deleted at the end.

    Of a file (publishing/publish_file.py) the numbers are its lines that are not blank. Those in
    `not_published` were refused, and are tried again when the same file is published again, which
    `file_digest` (SHA-256) shows.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    broker = models.ForeignKey("topology.Broker", models.CASCADE)
    topology = models.ForeignKey("topology.Topology", models.CASCADE, null=True)
    work = models.OneToOneField("topology.Work", models.CASCADE)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True)
    exchange = models.CharField(max_length=255, blank=True)
    routing_key = models.CharField(max_length=255, blank=True)
    target = models.CharField(max_length=255, blank=True)
    delay_ms = models.BigIntegerField(default=0)
    properties = models.BinaryField(default=NO_PROPERTIES)
    body = models.BinaryField(default=b"")
    number = models.PositiveIntegerField()
    rate = models.FloatField(help_text="Messages a second")
    file_name = models.CharField(max_length=255, blank=True, default="")
    file_digest = models.CharField(max_length=64, blank=True, default="")
    not_published = models.JSONField(default=list)
    begun = models.PositiveIntegerField(default=0)
    unanswered = models.JSONField(default=list)
    published = models.PositiveIntegerField(default=0)
    returned = models.PositiveIntegerField(default=0)
    returned_why = models.TextField(blank=True)
    unknown = models.PositiveIntegerField(default=0)
    repeated = models.PositiveIntegerField(default=0)
    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("-created_at",)
        constraints = (
            models.UniqueConstraint(
                fields=("topology", "file_digest"),
                condition=~models.Q(file_digest=""),
                name="one_job_per_file",
            ),
        )

    def __str__(self) -> str:
        return f"{self.number} messages to {self.destination}"

    @property
    def destination(self) -> str:
        if self.file_name:
            return f"{self.topology}, from the file {self.file_name}"
        if self.topology is not None:
            return (
                f"{self.topology.name}, target {self.target}" if self.target else str(self.topology)
            )
        return f"{self.exchange or 'the default exchange'}, key {self.routing_key}"

    @property
    def answered(self) -> int:
        return self.published + self.returned + self.unknown

    @property
    def remaining(self) -> timedelta:
        """The time that the rest takes at the requested rate."""
        return timedelta(seconds=round((self.number - self.answered) / self.rate))

    @property
    def measured_rate(self) -> float | None:
        """Messages a second since the start; None in the first second."""
        if self.started_at is None:
            return None
        seconds = ((self.work.ended_at or timezone.now()) - self.started_at).total_seconds()
        return self.answered / seconds if seconds >= 1 else None
