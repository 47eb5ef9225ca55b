"""Which role a group of the company gives: by a claim of the provider or a header of the proxy."""

from __future__ import annotations

from django.db import models

from topology.models import Broker, Role

# Matches everybody whom the provider or the proxy signs in.
EVERYBODY = "*"
LONGEST_VALUE = 200


class GroupRole(models.Model):
    """`broker` None means every broker. A value may have a role on several brokers."""

    value = models.CharField(max_length=LONGEST_VALUE)
    broker = models.ForeignKey(Broker, models.CASCADE, null=True, blank=True)
    role = models.PositiveSmallIntegerField(choices=Role.choices)

    class Meta:
        ordering = ("value", "pk")
        # Two constraints, as of Grant.
        constraints = (
            models.UniqueConstraint(fields=("value", "broker"), name="one_role_per_group_broker"),
            models.UniqueConstraint(
                fields=("value",), condition=models.Q(broker=None), name="one_role_per_group"
            ),
        )

    def __str__(self) -> str:
        where = self.broker.name if self.broker else "every broker"
        return f"{self.value}: {self.get_role_display()} of {where}"
