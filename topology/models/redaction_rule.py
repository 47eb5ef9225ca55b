"""What of a message is hidden from whom."""

from __future__ import annotations

from django.db import models

from topology.models.broker import Broker
from topology.models.grant import Role


class RedactionKind(models.TextChoices):
    HEADER = "header", "header"
    BODY = "body", "value in a JSON body"


class RedactionRule(models.Model):
    """Hides a header by its name, or a value of a JSON body by its path, below a role.

    A rule without a broker holds for all of them.
    """

    broker = models.ForeignKey(Broker, models.CASCADE, null=True, blank=True)
    kind = models.CharField(max_length=10, choices=RedactionKind.choices)
    pattern = models.CharField(max_length=255)
    least_role = models.PositiveSmallIntegerField(choices=Role.choices, default=Role.ADMIN)

    class Meta:
        ordering = ("kind", "pattern")

    def __str__(self) -> str:
        return f"{self.kind} {self.pattern}"
