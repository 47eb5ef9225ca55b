from __future__ import annotations

from django.db import models

from topology.models.topology import Topology


class Drift(models.Model):
    """How an applied topology differs from its definition, as the worker last saw it.

    `objects_count` are all objects of the definition, `missing` those that do not exist, `changed`
    those that exist with other arguments. `since_at` is when the worker first saw a difference.
    """

    topology = models.OneToOneField(Topology, models.CASCADE, related_name="drift")
    since_at = models.DateTimeField()
    objects_count = models.PositiveIntegerField()
    missing = models.PositiveIntegerField()
    changed = models.PositiveIntegerField()

    def __str__(self) -> str:
        return self.sentence

    @property
    def sentence(self) -> str:
        parts = []
        if self.missing:
            are = "is" if self.missing == 1 else "are"
            parts.append(f"{self.missing} of {self.objects_count} objects {are} missing")
        if self.changed:
            differ = "differs" if self.changed == 1 else "differ"
            parts.append(f"{self.changed} {differ} from the definition")
        return f"{', '.join(parts)} since {self.since_at:%Y-%m-%d %H:%M:%S} UTC."
