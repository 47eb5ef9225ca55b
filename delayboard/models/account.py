"""What belongs to an account: tokens of programs, their answers, roles of groups, preferences."""

from __future__ import annotations

from django.conf import settings
from django.db import models

from topology.models import Broker, Role

# Group of everybody whom the provider or the proxy signs in.
EVERYBODY = "*"
LONGEST_VALUE = 200


class ApiToken(models.Model):
    """Acts as its user, with at most `role`, and only on the brokers with these ids if not None.

    Only a digest of the secret is stored; `hint` is how the secret begins. `addresses` are networks
    separated by commas, "" for any.
    """

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="api_tokens")
    name = models.CharField(max_length=60)
    digest = models.CharField(max_length=64, unique=True, editable=False)
    hint = models.CharField(max_length=16, editable=False)
    role = models.PositiveSmallIntegerField(choices=Role.choices, default=Role.VIEWER)
    broker_ids = models.JSONField(null=True, default=None)
    addresses = models.CharField(max_length=1000, blank=True)
    expires_at = models.DateTimeField()
    created_at = models.DateTimeField(auto_now_add=True)
    used_at = models.DateTimeField(null=True)
    used_from = models.CharField(max_length=45, blank=True)
    revoked_at = models.DateTimeField(null=True)
    # The newest minute, in minutes since 1970, and the requests that all processes have taken in
    # it.
    minute = models.PositiveIntegerField(default=0, db_default=0, editable=False)
    requests = models.PositiveIntegerField(default=0, db_default=0, editable=False)

    class Meta:
        ordering = ("-pk",)

    def __str__(self) -> str:
        return self.name


class ApiAnswer(models.Model):
    """The answer to a change with an Idempotency-Key; `status` is None until there is one.

    `request` is a digest of what was requested.
    """

    token = models.ForeignKey(ApiToken, models.CASCADE)
    key = models.CharField(max_length=255)
    request = models.CharField(max_length=64)
    status = models.PositiveSmallIntegerField(null=True)
    headers = models.JSONField(default=dict)
    body = models.TextField(blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("token", "key"), name="one_answer_per_key"),)

    def __str__(self) -> str:
        return self.key


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


class Preference(models.Model):
    """How pages look for one user; without a `time_zone`, times are in that of the site.

    `columns` has the chosen columns of lists, as `delayboard.columns` reads them.
    """

    user = models.OneToOneField(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+")
    time_zone = models.CharField(max_length=64, blank=True, default="")
    columns = models.JSONField(blank=True, default=dict)

    def __str__(self) -> str:
        return f"preferences of {self.user}"
