"""What of parked messages is searched, written some time after they were parked."""

from __future__ import annotations

from django.conf import settings
from django.db import models

from delayboard.models.dead_letter import ParkedMessage
from topology.models import Broker


class ParkedText(models.Model):
    """Ids, headers and the beginning of a text body, case folded; and the searched columns.

    The message's own columns are repeated here, because their indexes cost too much while a message
    is parked. The database also has an index of every three characters of `text` (`SEARCH_INDEX` of
    the migrations).
    """

    parked_message = models.OneToOneField(
        ParkedMessage, models.CASCADE, primary_key=True, related_name="searched"
    )
    text = models.TextField()
    message_id = models.CharField(
        max_length=255, blank=True, help_text="Message id in lower case (case folded)."
    )
    size = models.PositiveIntegerField()
    deaths = models.PositiveIntegerField()
    died_at = models.DateTimeField(null=True)
    parked_at = models.DateTimeField()

    class Meta:
        indexes = (
            models.Index(fields=("message_id", "parked_message"), name="texts_by_message"),
            models.Index(fields=("size", "parked_message"), name="texts_by_size"),
            models.Index(fields=("deaths", "parked_message"), name="texts_by_deaths"),
            models.Index(fields=("died_at", "parked_message"), name="texts_by_death"),
            models.Index(fields=("parked_at", "parked_message"), name="texts_by_parking"),
        )

    def __str__(self) -> str:
        return f"text of {self.parked_message_id}"


class ParkedField(models.Model):
    """One value of a header (`header.tenant`) or of a JSON body (`body.order.amount`).

    Names and texts are case folded, the items of a list have the name of their list. `number`
    is set where the value is one, or a text that reads as one.
    """

    parked_message = models.ForeignKey(
        ParkedMessage, models.CASCADE, related_name="fields", db_index=False
    )
    name = models.CharField(max_length=255)
    text = models.CharField(max_length=255)
    number = models.FloatField(null=True)

    class Meta:
        indexes = (
            models.Index(fields=("parked_message", "name"), name="fields_of_parked_message"),
            models.Index(fields=("name", "text", "parked_message"), name="fields_by_text"),
            models.Index(
                fields=("name", "number", "parked_message"),
                condition=models.Q(number__isnull=False),
                name="fields_by_number",
            ),
        )

    def __str__(self) -> str:
        return f"{self.name}:{self.text}"


class ParkedPosition(models.Model):
    """One row: all messages up to this id have their texts."""

    read_to = models.BigIntegerField(default=0)

    def __str__(self) -> str:
        return f"parked messages up to {self.read_to}"


class SearchedList(models.TextChoices):
    PARKED_MESSAGES = "parked_messages", "Parked messages"
    SCHEDULED = "scheduled", "Scheduled"
    FINDINGS = "findings", "Findings"
    RETRYING = "retrying", "Retrying"
    DEAD_LETTERS = "dead_letters", "Dead letters"
    REPLAYS = "replays", "Replays"


class SavedView(models.Model):
    """A list as a person wants to see it again.

    Without an `owner` it is shared with everybody of its broker; without a `broker` it is of all
    brokers. `query` is in the query language of parked messages; of other lists their query string.
    `display` has the chosen columns, and the order where `query` cannot have it, as a query string.
    """

    searched = models.CharField(
        max_length=20, choices=SearchedList.choices, default=SearchedList.PARKED_MESSAGES
    )
    broker = models.ForeignKey(Broker, models.CASCADE, null=True)
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.CASCADE, null=True, related_name="saved_views"
    )
    name = models.CharField(max_length=100)
    query = models.CharField(max_length=2000)
    display = models.CharField(max_length=500, blank=True, default="", db_default="")
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        # The version before, whose rows are shared views, still runs during an upgrade.
        db_table = "delayboard_savedsearch"
        ordering = ("name",)
        constraints = (
            models.UniqueConstraint(
                fields=("broker", "searched", "name"),
                condition=models.Q(owner=None),
                name="one_shared_view_per_name",
            ),
            models.UniqueConstraint(
                fields=("owner", "broker", "searched", "name"), name="one_own_view_per_name"
            ),
            # NULL differs from NULL in a constraint.
            models.UniqueConstraint(
                fields=("owner", "searched", "name"),
                condition=models.Q(broker=None),
                name="one_own_view_of_all_brokers",
            ),
        )

    def __str__(self) -> str:
        return self.name
