from __future__ import annotations

from datetime import datetime, timedelta
from typing import Protocol

from django.db import models

# Begin of a tracking id that is a replay's.
REPLAYED = "replay:"
# Ends of messages that no longer wait: with a recorded exit, and without one where no exit is
# recorded.
LEFT, NOT_OBSERVED = "left the delay", "due, delivery not observed"


# Condition of messages that wait in a delay, as far as the taps saw.
WAITING = models.Q(left_at=None, entered_at__isnull=False)


class Departure(Protocol):
    """A message with a due time that may have left its delay."""

    @property
    def due_at(self) -> datetime | None: ...
    @property
    def left_at(self) -> datetime | None: ...


def measure_lateness(message: Departure) -> timedelta | None:
    """How long after its due time it left; negative when early, None until both are known."""
    if message.left_at is None or message.due_at is None:
        return None
    return message.left_at - message.due_at


class ScheduledMessage(models.Model):
    """One trip of a message through a delay, as the tap saw it.

    Waiting while `left_at` is empty. A row without `entered_at` saw only the exit: the
    entry may still come from another recorder, or was before the tap. `key` is the
    message id, or the content's hash where there is none; the same key may wait many times.
    `exchange` and `routing_key` are those of its entry; `source` is that of the event.
    `tracking_id` is what Delayboard follows it by: of a replayed message REPLAYED and then its
    replay id.
    """

    broker = models.ForeignKey("topology.Broker", models.CASCADE, related_name="+")
    topology = models.ForeignKey("topology.Topology", models.CASCADE, null=True, related_name="+")
    key = models.CharField(max_length=255)
    message_id = models.CharField(max_length=255, blank=True)
    content_id = models.CharField(max_length=32)
    tracking_id = models.CharField(max_length=100, blank=True)
    attempt = models.PositiveIntegerField()
    requested_delay = models.DurationField()
    entered_at = models.DateTimeField(null=True)
    due_at = models.DateTimeField(null=True)
    left_at = models.DateTimeField(null=True)
    destination = models.CharField(max_length=255, blank=True)
    queue = models.CharField(max_length=255, blank=True)
    size = models.PositiveBigIntegerField(default=0, help_text="Bytes of the body.")
    caught_up = models.BooleanField(default=True)
    source = models.CharField(max_length=20, blank=True, default="tap")
    correlation_id = models.CharField(max_length=255, blank=True, default="")
    exchange = models.CharField(max_length=255, blank=True, default="")
    routing_key = models.CharField(max_length=255, blank=True, default="")
    published_at = models.DateTimeField(null=True)
    published_at_source = models.CharField(max_length=40, blank=True, default="")
    published_by = models.CharField(max_length=255, blank=True, default="")
    content_type = models.CharField(max_length=255, blank=True, default="")
    headers_json = models.TextField(default="{}")

    class Meta:
        # Those of what waits have all columns that counts read.
        indexes = (
            models.Index(fields=("topology", "key", "attempt"), name="scheduled_trip"),
            models.Index(
                fields=("due_at", "id", "topology", "destination"),
                name="scheduled_waiting",
                condition=WAITING,
            ),
            models.Index(
                fields=("topology", "due_at", "id", "destination"),
                name="scheduled_in_topology",
                condition=WAITING,
            ),
            models.Index(
                fields=("destination", "due_at", "id", "topology"),
                name="scheduled_for_destination",
                condition=WAITING,
            ),
            models.Index(
                fields=("tracking_id",),
                name="scheduled_tracked",
                condition=~models.Q(tracking_id=""),
            ),
        )

    def __str__(self) -> str:
        return f"{self.key} due {self.due_at}"

    @property
    def ending(self) -> str:
        """How one that no longer waits ended: `settle` writes the due time of unobserved exits.

        What passed without a delay entered, was due and left at one moment.
        """
        is_settled = self.left_at == self.due_at != self.entered_at and not self.caught_up
        is_seen = self.left_at is not None and not is_settled
        return LEFT if is_seen else NOT_OBSERVED

    def overdue_by(self, now: datetime) -> timedelta:
        """How long it should have left by now; zero when it is not due."""
        if self.left_at is not None or self.due_at is None:
            return timedelta(0)
        return max(now - self.due_at, timedelta(0))


class ScheduledBody(models.Model):
    """The body and the AMQP properties of a message, byte for byte, where bodies are kept.

    Apart from it, to keep lists light. `properties` is empty where the log has none.
    """

    message = models.OneToOneField(
        ScheduledMessage, models.CASCADE, primary_key=True, related_name="kept_body"
    )
    body = models.BinaryField()
    properties = models.BinaryField(default=b"")

    def __str__(self) -> str:
        return f"body of {self.message_id}"


class ScheduledText(models.Model):
    """What of a waiting message is searched: its ids, headers and text body, case folded.

    The database keeps an index of every three characters of it beside (`SEARCH_INDEX` of the
    migrations). Written and removed by `analytics.scheduled.queries.texts` some time after
    the message itself, which `check_at` is the next time for.
    """

    message = models.OneToOneField(
        ScheduledMessage, models.CASCADE, primary_key=True, related_name="searched"
    )
    text = models.TextField()
    check_at = models.DateTimeField(db_index=True)

    def __str__(self) -> str:
        return f"text of {self.message_id}"


class TextPosition(models.Model):
    """One row: the messages up to this id have their text, as far as they wait."""

    read_to = models.BigIntegerField(default=0)

    def __str__(self) -> str:
        return f"texts up to {self.read_to}"
