from __future__ import annotations

from django.db import models


class NightlyReport(models.Model):
    """The report of one UTC day over all brokers, as the newest run of the day left it."""

    day = models.DateField(unique=True)
    made_at = models.DateTimeField()
    html = models.TextField()
    pdf = models.BinaryField(null=True)
    pdf_error = models.TextField(blank=True)
    """Why there is no PDF."""

    class Meta:
        ordering = ("-day",)

    def __str__(self) -> str:
        return f"report of {self.day}"
