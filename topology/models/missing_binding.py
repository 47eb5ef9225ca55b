from __future__ import annotations

from datetime import datetime

from django.db import models

from topology.content.text import count_of
from topology.models.topology import Topology


class MissingBinding(models.Model):
    """A destination of a topology to which RabbitMQ cannot route, as the worker last saw it.

    `destination` "" means messages that are stuck without a recorded destination. `since_at` is
    when the worker first saw the problem. Messages due from `from_at` on are stuck, None when
    unknown. `restored_at` is when a route existed again; messages due before it may be stuck until
    RabbitMQ retries. `waiting` counts messages that are not due yet. `is_bound`: the binding
    exists, and nothing behind it takes the message. `is_dropped`: RabbitMQ drops messages instead
    of keeping them (classic levels).
    """

    topology = models.ForeignKey(Topology, models.CASCADE, related_name="missing_bindings")
    destination = models.CharField(max_length=255, blank=True)
    since_at = models.DateTimeField()
    from_at = models.DateTimeField(null=True)
    restored_at = models.DateTimeField(null=True)
    stuck = models.PositiveBigIntegerField(default=0)
    waiting = models.PositiveBigIntegerField(default=0)
    is_bound = models.BooleanField(default=False)
    is_dropped = models.BooleanField(default=False)

    class Meta:
        ordering = ("-stuck", "-waiting", "destination")
        constraints = (
            models.UniqueConstraint(
                fields=("topology", "destination"), name="one_row_per_missing_binding"
            ),
        )

    def __str__(self) -> str:
        return self.sentence

    @property
    def state(self) -> str:
        """The word for it on every page; the problem behind it is a detail."""
        if self.restored_at is not None:
            return "Retry pending"
        if self.is_dropped:
            return "Dropped"
        return "Stuck" if self.stuck else "Not routed"

    @property
    def sentence(self) -> str:
        """What is wrong since when, and how many messages it concerns."""
        if not self.destination:
            return (
                f"At least {count_of(self.stuck, 'message', 'is')} stuck in the delay levels since "
                f"{_utc(self.since_at)}, and no recorded message names the destination."
            )
        if self.restored_at is not None:
            return (
                f"A route to destination “{self.destination}” exists again since "
                f"{_utc(self.restored_at)}, and {count_of(self.stuck, 'message', 'is')} still "
                "stuck. RabbitMQ retries every three minutes."
            )
        problem = "has a binding that leads to no queue" if self.is_bound else "has no binding"
        return (
            f"Destination “{self.destination}” {problem} since {_utc(self.since_at)}: "
            f"{self._messages}."
        )

    @property
    def _messages(self) -> str:
        if self.is_dropped:
            fate = "RabbitMQ drops messages for it"
            waits = f"{count_of(self.waiting, 'message', 'waits')} for it"
            return f"{fate}, and {waits}" if self.waiting else fate
        if self.stuck and self.waiting:
            return f"{count_of(self.stuck, 'message', 'is')} stuck, {self.waiting} more not due yet"
        if self.stuck:
            return f"{count_of(self.stuck, 'message', 'is')} stuck"
        if not self.waiting:
            return "no message waits for it"
        return f"{count_of(self.waiting, 'message', 'waits')} for it"


def _utc(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
