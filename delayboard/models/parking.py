"""Parking: the request, and whether each stored message has certainly left its queue."""

from __future__ import annotations

from django.conf import settings
from django.db import models

from delayboard.models.message_group import MessageGroup
from topology.models import Broker, Work


class Requested(models.Model):
    """What a person requests and the worker does. `work` is None until the request is queued."""

    broker = models.ForeignKey(Broker, models.PROTECT)
    work = models.OneToOneField(Work, models.PROTECT, null=True)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        abstract = True
        ordering = ("-pk",)

    @property
    def is_ended(self) -> bool:
        return self.work is not None and self.work.is_ended


class Parking(Requested):
    """One request to park all messages of a queue, or selected ones.

    `handles` are those that are still missing; None requests everything that was there at the
    begin. `requested` is their number, None before the begin. `parked` and `repeats` (those of them
    that may be repeats) change in the transaction that stores the messages.
    """

    queue = models.CharField(max_length=255)
    handles = models.JSONField(null=True)
    requested = models.PositiveIntegerField(null=True)
    parked = models.PositiveIntegerField(default=0)
    repeats = models.PositiveIntegerField(default=0)

    def __str__(self) -> str:
        return f"parking {self.pk} of {self.queue}"


class ParkSession(models.Model):
    """One connection's worth of parking. Its messages were kept in order of their ids.

    Those up to `acked_to` left their queue for sure; what is above it, up to `stored_to`, may come
    once more.
    """

    broker = models.ForeignKey(Broker, models.PROTECT)
    queue = models.CharField(max_length=255)
    parking = models.ForeignKey(Parking, models.PROTECT, null=True)
    started_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True)
    began_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    stored_to = models.BigIntegerField(default=0)
    acked_to = models.BigIntegerField(default=0)

    class Meta:
        indexes = (models.Index(fields=("broker", "queue", "-id"), name="sessions_of_queue"),)

    def __str__(self) -> str:
        return f"{self.queue} since {self.began_at}"


class ParkedChange(Requested):
    """Messages to be discarded or restored: those that matched at the time of the request.

    Messages above `newest` came later and are not changed. `position` is the last id that was done.
    `requested` is their number, None when a count reads every message.
    """

    to_state = models.CharField(max_length=10)
    group = models.ForeignKey(MessageGroup, models.CASCADE, null=True)
    query = models.CharField(max_length=500, blank=True)
    newest = models.BigIntegerField()
    position = models.BigIntegerField(default=0)
    requested = models.PositiveIntegerField(null=True)
    changed = models.PositiveIntegerField(default=0)

    def __str__(self) -> str:
        number = (
            "parked_messages" if self.requested is None else f"{self.requested} parked messages"
        )
        return f"{number} {self.to_state}"
