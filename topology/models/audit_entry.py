"""Audit entries: who did what, when, to which broker, and how it ended."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import models

from topology.models.broker import Broker

# Outcomes of an action that did not fail.
OUTCOMES = ("done", "begun", "stopped")


class AuditEntry(models.Model):
    """Added before its action begins; only `outcome` changes, once, when the action ends.

    Names are copied, so that an entry remains readable when its objects no longer exist.
    """

    at = models.DateTimeField(auto_now_add=True, db_index=True)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True)
    username = models.CharField(max_length=150)
    action = models.CharField(max_length=60)
    broker = models.ForeignKey(Broker, models.SET_NULL, null=True)
    broker_name = models.CharField(max_length=100, blank=True)
    what = models.CharField(max_length=500, blank=True)
    outcome = models.CharField(max_length=500, default="done")
    details = models.JSONField(default=dict)

    class Meta:
        ordering = ("-at", "-pk")
        verbose_name_plural = "audit entries"

    def __str__(self) -> str:
        return f"{self.at:%Y-%m-%d %H:%M:%S} {self.username} {self.action} {self.what}"

    @property
    def failure(self) -> str:
        """Why the action failed; "" when it did not."""
        return "" if self.outcome in OUTCOMES else self.outcome.removeprefix("failed: ")

    @property
    def facts(self) -> list[tuple[str, Any]]:
        """The details that have a value, by their names in words."""
        return [
            (name.replace("_", " "), value)
            for name, value in self.details.items()
            if value not in (None, "", [], {})
        ]
