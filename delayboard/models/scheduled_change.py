"""Changes of waiting messages, and the interceptions that carry them out."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import models
from django.utils import timezone

from analytics.models import ScheduledMessage
from topology.definitions import Arguments, Binding, Definitions
from topology.models import Broker, Topology, Work
from topology.transfer.interception import Interception as Intercepted


class InterceptionState(models.TextChoices):
    """The step of an interception, stored before the broker is changed."""

    WAITING = "waiting", "not started"
    BEGINNING = "beginning", "beginning"
    OPEN = "open", "intercepting"
    ENDING = "ending", "ending"
    CLOSED = "closed", "closed"


# States in which the bindings may be replaced.
REPLACING = (InterceptionState.BEGINNING, InterceptionState.OPEN, InterceptionState.ENDING)


class Interception(models.Model):
    """A path from an exchange to a queue whose messages are intercepted near the due times of its
    changes.

    All that its steps need is in the row before the first of them: `bindings` are the routing key
    and arguments of each binding that is replaced. `passed` and `taken` count messages, `overtaken`
    those that were forwarded after the bindings were restored, or after younger ones that were on
    the way when they were refused. `bound_again_at` is when somebody else restored one of the
    bindings last, so that messages took both ways.
    """

    broker = models.ForeignKey(Broker, models.PROTECT)
    name = models.CharField(max_length=60, unique=True)
    source = models.CharField(max_length=255)
    queue = models.CharField(max_length=255)
    bindings = models.JSONField()
    queue_type = models.CharField(max_length=10)
    limit = models.DurationField(default=timedelta(minutes=10))
    state = models.CharField(
        max_length=10, choices=InterceptionState.choices, default=InterceptionState.WAITING
    )
    work = models.OneToOneField(Work, models.PROTECT)
    passed = models.PositiveIntegerField(default=0)
    taken = models.PositiveIntegerField(default=0)
    overtaken = models.PositiveIntegerField(default=0)
    bound_again_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("broker", "source", "queue"),
                condition=~models.Q(state="closed"),
                name="one_interception_per_binding",
            ),
        )

    def __str__(self) -> str:
        return f"interception of {self.source} to {self.queue}"

    @property
    def objects_of_broker(self) -> Intercepted:
        """What it declares, and the bindings that it replaces."""
        bindings = (
            Binding(self.source, self.queue, key, arguments=Arguments(arguments))
            for key, arguments in self.bindings
        )
        return Intercepted(self.name, tuple(bindings), self.queue_type, self.limit)

    @classmethod
    def without_replaced(cls, declares: Definitions, broker: Broker) -> Definitions:
        """What may be declared of it: beside an interception, a binding would double messages."""
        rows = cls.objects.filter(broker=broker, state__in=REPLACING)
        replaced = (one for row in rows for one in row.objects_of_broker.bindings)
        return declares.without({one.identity for one in replaced})


class ChangeKind(models.TextChoices):
    CANCEL = "cancel", "cancel"
    RESCHEDULE = "reschedule", "reschedule"
    DELIVER_NOW = "deliver_now", "deliver now"


class ChangeState(models.TextChoices):
    PENDING = "pending", "requested"
    PUBLISHING = "publishing", "publishing"
    DONE = "done", "done"
    UNDONE = "undone", "undone"
    MISSED = "missed", "missed"
    FAILED = "failed", "failed"


OPEN = (ChangeState.PENDING, ChangeState.PUBLISHING)
# Condition of changes that did not take effect, and for which no copy was begun to be published.
UNDOABLE = models.Q(state=ChangeState.PENDING, copy_begun_at=None)


class ScheduledChange(models.Model):
    """The requested change of one waiting message.

    The message is known by `key`, its message id or the hash of its content, and by `content_id`,
    that hash; `id_headers` are the headers that have its id too, with their values, and
    `routing_key` is that of its delay, where others have another. With `is_copied` a copy takes its
    place, and it is taken out only once the copy is confirmed (`copied_at`); else it is itself
    published again when it is intercepted. `is_settled`: the broker has its ack, so that it cannot
    come once more, where a queue is read. `trip` names the first death of the message
    that was taken out. Without an interception, the message is taken out of the delay queue
    `queue`, or by the forwarder of the topology.
    """

    broker = models.ForeignKey(Broker, models.PROTECT)
    topology = models.ForeignKey(Topology, models.PROTECT)
    message = models.ForeignKey(ScheduledMessage, models.SET_NULL, null=True, related_name="+")
    interception = models.ForeignKey(
        Interception, models.PROTECT, null=True, related_name="changes"
    )
    queue = models.CharField(max_length=255, blank=True)
    kind = models.CharField(max_length=12, choices=ChangeKind.choices)
    key = models.CharField(max_length=255)
    content_id = models.CharField(max_length=32)
    id_headers = models.JSONField(default=dict)
    routing_key = models.CharField(max_length=255, blank=True, default="")
    destination = models.CharField(max_length=255)
    due_at = models.DateTimeField()
    new_due_at = models.DateTimeField(null=True)
    is_copied = models.BooleanField(default=False)
    copy_begun_at = models.DateTimeField(null=True)
    copied_at = models.DateTimeField(null=True)
    state = models.CharField(
        max_length=10, choices=ChangeState.choices, default=ChangeState.PENDING
    )
    is_settled = models.BooleanField(default=False)
    trip = models.CharField(max_length=300, blank=True)
    may_be_duplicated = models.BooleanField(default=False)
    error = models.TextField(blank=True)
    requested_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True)
    requested_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("due_at", "pk")
        constraints = (
            models.UniqueConstraint(
                fields=("message",),
                condition=models.Q(state__in=("pending", "publishing")),
                name="one_change_per_message",
            ),
        )
        indexes = (models.Index(fields=("interception", "state", "due_at")),)

    def __str__(self) -> str:
        return f"{self.kind} {self.key}"

    @property
    def is_in_effect(self) -> bool:
        """Whether the message is taken out, or its copy is published: this cannot be undone."""
        is_copied = self.state in OPEN and self.copied_at is not None
        return is_copied or self.state == ChangeState.DONE

    @property
    def can_be_undone(self) -> bool:
        """Whether UNDOABLE selects the change."""
        return self.state == ChangeState.PENDING and self.copy_begun_at is None

    @property
    def audit_details(self) -> dict[str, Any]:
        """The number of the change, when its message was due, and its new due time."""
        times = {"due": self.due_at, "new due time": self.new_due_at}
        moments = {name: f"{at:%Y-%m-%d %H:%M:%S} UTC" for name, at in times.items() if at}
        return {"change": self.pk, **moments}

    @property
    def is_late(self) -> bool:
        """Whether its message is due by a few seconds and was not intercepted."""
        return self.state in OPEN and self.due_at < timezone.now() - timedelta(seconds=5)

    @property
    def status(self) -> str:
        """The state, in the words of the lists."""
        is_copied = self.state == ChangeState.PENDING and self.copied_at is not None
        return "copy published" if is_copied else self.get_state_display()
