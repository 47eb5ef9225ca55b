"""Tokens of programs that use the API, and the answers to their changes."""

from __future__ import annotations

from django.conf import settings
from django.db import models

from topology.models import Role


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
