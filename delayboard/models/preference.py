from __future__ import annotations

from django.conf import settings
from django.db import models


class Preference(models.Model):
    """How pages look for one user; without a `time_zone`, times are in that of the site.

    `columns` has the chosen columns of lists, as `delayboard.columns` reads them.
    """

    user = models.OneToOneField(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+")
    time_zone = models.CharField(max_length=64, blank=True, default="")
    columns = models.JSONField(blank=True, default=dict)

    def __str__(self) -> str:
        return f"preferences of {self.user}"
