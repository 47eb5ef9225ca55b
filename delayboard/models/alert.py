"""Alerts: receivers, the problems that are alerted, and each message with its outcome."""

from __future__ import annotations

from datetime import datetime, time

from django.db import models
from django.db.models import Q, Value
from django.utils import timezone

from analytics.models import NightlyReport
from topology.models.broker import Broker
from topology.models.secrets import open_secret


class AlertChannel(models.TextChoices):
    EMAIL = "email", "E-mail"
    WEBHOOK = "webhook", "Webhook"
    SLACK = "slack", "Slack"
    TEAMS = "teams", "Microsoft Teams"
    PAGERDUTY = "pagerduty", "PagerDuty"
    SIGNED = "signed", "Signed webhook"


class AlertReceiver(models.Model):
    """An address that gets alerts, nightly reports or both. New kinds of problems are sent until
    they are excluded.

    Of the channel SIGNED it gets `events` in place of them, those after `events_from`, of the
    brokers with these ids if not None.
    """

    channel = models.CharField(max_length=10, choices=AlertChannel.choices)
    name = models.CharField(max_length=254, help_text="What pages show; never the address.")
    encrypted_address = models.TextField()
    excluded_kinds = models.JSONField(default=list, blank=True)
    group_minutes = models.PositiveSmallIntegerField(default=5)
    quiet_from = models.TimeField(null=True)
    quiet_until = models.TimeField(null=True)
    sends_all_clear = models.BooleanField(default=True)
    sends_alerts = models.BooleanField(default=True)
    reports_from = models.DateTimeField(
        null=True, help_text="Nightly reports that are made later are sent; none if empty."
    )
    encrypted_secret = models.TextField(blank=True, default="", db_default="")
    events = models.JSONField(default=list, db_default=Value([], models.JSONField()), blank=True)
    broker_ids = models.JSONField(null=True, default=None)
    events_from = models.DateTimeField(null=True)
    is_enabled = models.BooleanField(default=True, db_default=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("channel", "name", "id")

    def __str__(self) -> str:
        return self.name

    @property
    def address(self) -> str:
        """Raises DecryptionError when the key is missing."""
        return open_secret(self.encrypted_address)

    @property
    def secret(self) -> str:
        """The secret that signs deliveries. Raises DecryptionError when the key is missing."""
        return open_secret(self.encrypted_secret)

    def is_quiet(self, now: datetime) -> bool:
        """Whether this is in its quiet hours, in the installation's time zone."""
        if self.quiet_from is None or self.quiet_until is None:
            return False
        clock: time = timezone.localtime(now).time()
        if self.quiet_from <= self.quiet_until:
            return self.quiet_from <= clock < self.quiet_until
        return clock >= self.quiet_from or clock < self.quiet_until


class AlertProblem(models.Model):
    """A problem of Now from its beginning to its end; `resolved_at` is empty while it lasts."""

    identity = models.CharField(max_length=300)
    kind = models.CharField(max_length=30)
    severity = models.CharField(max_length=10)
    sentence = models.TextField()
    path = models.TextField(
        blank=True, default="", db_default="", help_text="Where to act; relative to the site."
    )
    broker = models.ForeignKey(Broker, models.CASCADE, null=True)
    since_at = models.DateTimeField()
    resolved_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("since_at", "pk")
        constraints = (
            models.UniqueConstraint(
                fields=("identity",), condition=Q(resolved_at=None), name="one_open_problem"
            ),
        )

    def __str__(self) -> str:
        return self.sentence


class AlertState(models.TextChoices):
    WAITING = "waiting", "waiting"
    SENDING = "sending", "sending"
    SENT = "sent", "sent"
    FAILED = "failed", "failed"


class AlertMessage(models.Model):
    """One message for one receiver: a nightly report, or alerts, written in the transaction that
    marks what it reports. `has_new`: it reports problems that began, not only resolved ones.

    Or the delivery of an event: `event` is its key, `title` its type, `body` the JSON, and `status`
    the last answer.

    `may_be_repeat`: an attempt ended without an answer, or by a kill of the worker.
    """

    receiver = models.ForeignKey(AlertReceiver, models.CASCADE, related_name="messages")
    title = models.CharField(max_length=200)
    body = models.TextField()
    is_test = models.BooleanField(default=False)
    has_new = models.BooleanField(default=True, db_default=True)
    report = models.ForeignKey(NightlyReport, models.CASCADE, null=True)
    event = models.CharField(max_length=100, blank=True, default="", db_default="")
    status = models.PositiveSmallIntegerField(null=True)
    state = models.CharField(
        max_length=10, choices=AlertState.choices, default=AlertState.WAITING, db_index=True
    )
    may_be_repeat = models.BooleanField(default=False)
    attempts = models.PositiveSmallIntegerField(default=0)
    next_at = models.DateTimeField(null=True)
    error = models.TextField(blank=True)
    created_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("-created_at", "-pk")
        constraints = (
            models.UniqueConstraint(fields=("receiver", "report"), name="one_message_of_each"),
            models.UniqueConstraint(
                fields=("receiver", "event"),
                condition=~Q(event=""),
                name="one_delivery_of_each_event",
            ),
        )

    def __str__(self) -> str:
        return f"{self.title} to {self.receiver}"

    @classmethod
    def failed(cls) -> models.QuerySet[AlertMessage]:
        """The messages that were abandoned, and those whose last attempt failed; without tests and
        disabled webhooks.

        An abandoned one no longer counts when its receiver got a later one.
        """
        later = cls.objects.filter(
            receiver=models.OuterRef("receiver"),
            state=AlertState.SENT,
            ended_at__gt=models.OuterRef("ended_at"),
        )
        rows = cls.objects.exclude(state=AlertState.SENT).exclude(error="").exclude(is_test=True)
        rows = rows.filter(receiver__is_enabled=True)
        return rows.exclude(models.Exists(later))


class Heartbeat(models.Model):
    """The address that the worker calls; there is one row at most.

    `called_at` is the last call, and `error` why it was not accepted.
    """

    name = models.CharField(max_length=254, help_text="The host; pages never show the address.")
    encrypted_address = models.TextField()
    every_seconds = models.PositiveIntegerField(default=60)
    called_at = models.DateTimeField(null=True)
    error = models.TextField(blank=True)

    def __str__(self) -> str:
        return self.name

    @property
    def address(self) -> str:
        """Raises DecryptionError when the key is missing."""
        return open_secret(self.encrypted_address)


class AlertNotice(models.Model):
    """The record that a receiver was informed of a problem, and of its end."""

    receiver = models.ForeignKey(AlertReceiver, models.CASCADE, related_name="notices")
    problem = models.ForeignKey(AlertProblem, models.CASCADE, related_name="notices")
    is_cleared = models.BooleanField(default=False)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("receiver", "problem"), name="one_notice_of_each"),
        )

    def __str__(self) -> str:
        return f"{self.problem} to {self.receiver}"
