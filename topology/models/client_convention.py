"""What operators declared of the client libraries that Delayboard does not know."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import datetime
from typing import TypeAlias

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone

from topology.clients.conventions import LONGEST_NAME, Convention, find_own
from topology.clients.parts import Pointer
from topology.models.broker import Broker

# Name of a fact, and where a convention finds it.
Place: TypeAlias = tuple[str, Pointer]


class ClientConvention(models.Model):
    """The TOML of one library at a broker, as `topology.clients` reads it.

    Rows are never changed: another text is another row, and `retired_at` ends the one before. A
    redaction rule hides what an ended one read, too: groups keep it.
    """

    broker = models.ForeignKey(Broker, models.CASCADE, related_name="client_conventions")
    name = models.CharField(max_length=LONGEST_NAME)
    text = models.TextField()
    saved_at = models.DateTimeField(default=timezone.now)
    saved_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True)
    retired_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("name", "pk")
        constraints = (
            models.UniqueConstraint(
                fields=("broker", "name"),
                condition=Q(retired_at=None),
                name="one_convention_of_a_name",
            ),
        )

    def __str__(self) -> str:
        return self.name

    @property
    def convention(self) -> Convention | None:
        """None where this version of Delayboard cannot read it."""
        return find_own(self.text)


def read_conventions(broker: Broker | int, at: datetime | None = None) -> tuple[Convention, ...]:
    """The conventions in force at the broker, now or at a time, for `topology.clients.describe`."""
    in_force = Q(retired_at=None) if at is None else Q(retired_at=None) | Q(retired_at__gt=at)
    rows = ClientConvention.objects.filter(in_force, broker=broker)
    rows = rows if at is None else rows.filter(saved_at__lte=at)
    texts = rows.values_list("text", flat=True)
    return tuple(own for text in texts if (own := find_own(text)) is not None)


def list_places(brokers: Collection[int]) -> Iterator[tuple[int, Place]]:
    """Each broker's facts and their pointers, of all conventions that were ever in force."""
    rows = ClientConvention.objects.filter(broker__in=brokers)
    for broker, text in rows.values_list("broker", "text"):
        own = find_own(text)
        for name, facts in own.facts.items() if own else ():
            yield from ((broker, (name, fact.pointer)) for fact in facts)
