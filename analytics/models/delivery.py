from __future__ import annotations

from django.db import models

from analytics.models.nightly_report import NightlyReport
from topology.models.secrets import open_secret


class Channel(models.TextChoices):
    EMAIL = "email", "E-mail"
    WEBHOOK = "webhook", "Webhook"


class Subscriber(models.Model):
    """Who gets each new nightly report. The address of a webhook may hold a token."""

    channel = models.CharField(max_length=10, choices=Channel.choices)
    encrypted_address = models.TextField()
    name = models.CharField(max_length=254)
    """What pages show: the mail address, or the host of the webhook and the end of its address."""

    class Meta:
        ordering = ("channel", "name", "id")

    def __str__(self) -> str:
        return self.name

    @property
    def address(self) -> str:
        """Raises DecryptionError when the key is missing."""
        return open_secret(self.encrypted_address)


class Delivery(models.Model):
    """One report for one subscriber: sent, or tried again at `next_at` until that is None."""

    report = models.ForeignKey(NightlyReport, models.CASCADE, related_name="deliveries")
    subscriber = models.ForeignKey(Subscriber, models.CASCADE, related_name="deliveries")
    attempts = models.PositiveSmallIntegerField(default=0)
    next_at = models.DateTimeField(null=True)
    sent_at = models.DateTimeField(null=True)
    error = models.TextField(blank=True)

    class Meta:
        ordering = ("-report__day", "subscriber")
        constraints = (
            models.UniqueConstraint(fields=("report", "subscriber"), name="one_delivery_of_each"),
        )

    def __str__(self) -> str:
        return f"{self.report} to {self.subscriber}"

    @classmethod
    def failed(cls) -> models.QuerySet[Delivery]:
        """Those that failed and were not repeated with success yet."""
        return cls.objects.filter(sent_at=None).exclude(error="")
