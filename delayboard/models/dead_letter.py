"""A parked dead letter: everything of the message, so that it can go back as it was."""

from __future__ import annotations

from dataclasses import replace

from django.conf import settings
from django.db import models
from django.dispatch import Signal

from delayboard.models.message_group import MessageGroup
from topology.broker.properties.read import read_properties
from topology.message import Message
from topology.models import Broker

# Sent for parked messages that name a replay, in the transaction that writes them, with `broker`,
# `returned` (pairs of the replay header's value and a ReturnedMessage) and `at`.
replayed_messages_returned = Signal()


class Body(models.Model):
    """The bytes of a body, kept once however many messages have it; never joined into lists."""

    sha256 = models.CharField(max_length=64, primary_key=True)
    size = models.PositiveIntegerField()
    data = models.BinaryField()

    class Meta:
        verbose_name_plural = "bodies"

    def __str__(self) -> str:
        return f"{self.size} bytes {self.sha256[:12]}"


class ParkedState(models.TextChoices):
    """`replaying` is the claim of one replay; `delayed` was given to a delay and not seen since.

    A group has a column of the name of each, which counts its messages in that state.
    """

    PARKED = "parked", "parked"
    DISCARDED = "discarded", "discarded"
    REPLAYING = "replaying", "in a replay"
    DELAYED = "delayed", "sent to a delay"
    REPLAYED = "replayed", "replayed"


class ParkedMessage(models.Model):
    """A message that Delayboard stores until it is replayed or discarded.

    `properties` are the content header's bytes as received. `exchange`, `routing_key` and `queue`
    are those of its delivery. `repeat_of` is set when it may be the same message as an earlier row:
    that one was stored, but it is unknown whether the broker got the ack. `imported_uid` is its id
    in the file that it came from, "" when it was parked here.
    """

    broker = models.ForeignKey(Broker, models.PROTECT)
    queue = models.CharField(max_length=255)
    group = models.ForeignKey(MessageGroup, models.PROTECT, related_name="parked_messages")
    state = models.CharField(max_length=10, choices=ParkedState.choices, default=ParkedState.PARKED)
    exchange = models.CharField(max_length=255, blank=True)
    routing_key = models.CharField(max_length=255, blank=True)
    properties = models.BinaryField()
    body = models.ForeignKey(Body, models.PROTECT)
    size = models.PositiveIntegerField(help_text="Size of the body in bytes.")
    redelivered = models.BooleanField()
    content_id = models.CharField(max_length=32)
    message_id = models.CharField(max_length=255, blank=True)
    deaths = models.PositiveIntegerField(help_text="Number of deaths in all rounds.")
    died_at = models.DateTimeField(null=True, help_text="Time of the first failure, if recorded.")
    session = models.ForeignKey("ParkSession", models.PROTECT, null=True)
    repeat_of = models.ForeignKey("self", models.SET_NULL, null=True)
    parked_at = models.DateTimeField()
    imported_uid = models.CharField(max_length=64, blank=True)
    state_at = models.DateTimeField(help_text="Time of the last state change.")
    state_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True)

    class Meta:
        ordering = ("-pk",)
        indexes = (
            models.Index(fields=("broker", "state", "-id"), name="parked_messages_of_broker"),
            models.Index(fields=("group", "state", "-id"), name="parked_messages_of_group"),
            models.Index(
                fields=("broker", "queue", "content_id"), name="parked_messages_by_content"
            ),
            models.Index(fields=("state", "state_at"), name="parked_messages_by_age"),
            models.Index(
                fields=("broker", "queue", "state", "-id"), name="parked_messages_of_queue"
            ),
        )
        constraints = (
            models.UniqueConstraint(
                fields=("broker", "imported_uid"),
                condition=~models.Q(imported_uid=""),
                name="one_parked_message_per_import",
            ),
        )

    def __str__(self) -> str:
        return self.message_id or self.content_id

    @property
    def message(self) -> Message:
        """The message as it was in its queue; reads the body."""
        return replace(self.without_body, body=bytes(self.body.data))

    @property
    def without_body(self) -> Message:
        """The same with an empty body, which costs nothing to read."""
        properties = read_properties(bytes(self.properties))
        return Message(self.exchange, self.routing_key, properties, b"", self.redelivered)
