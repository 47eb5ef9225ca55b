"""Grants: a role on one broker or on all, and redaction rules, which hide parts of messages from
roles.
"""

from __future__ import annotations

from django.conf import settings
from django.db import models

from topology.models.broker import Broker


class Role(models.IntegerChoices):
    """Each may do what those before it may."""

    VIEWER = 1, "Viewer"
    OPERATOR = 2, "Operator"
    ADMIN = 3, "Admin"


class Grant(models.Model):
    """`broker` None means every broker, those added later too."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="grants")
    broker = models.ForeignKey(
        Broker, models.CASCADE, null=True, blank=True, help_text="Empty: every broker."
    )
    role = models.PositiveSmallIntegerField(choices=Role.choices)

    class Meta:
        # Two constraints: SQLite has no `nulls_distinct`, and Django would omit the whole
        # constraint.
        constraints = (
            models.UniqueConstraint(fields=("user", "broker"), name="one_grant_per_broker"),
            models.UniqueConstraint(
                fields=("user",), condition=models.Q(broker=None), name="one_grant_for_all"
            ),
        )

    def __str__(self) -> str:
        where = self.broker.name if self.broker else "every broker"
        return f"{self.user} is {self.get_role_display()} of {where}"


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
