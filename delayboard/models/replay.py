"""One replay: a frozen choice of messages, each with its target and how far it got."""

from __future__ import annotations

import uuid
from functools import cached_property

from django.conf import settings
from django.db import models

from delayboard.models.dead_letter import Body, ParkedMessage
from delayboard.models.message_group import MessageGroup
from delayboard.models.parking import Parking
from topology.clients.conventions import Convention
from topology.models import Broker, Topology, Work
from topology.models.client_convention import read_conventions


class BatchState(models.TextChoices):
    """preparing -> draft -> waiting -> running -> done; a canary is watched in between.

    `paused` may come of any that was started, and goes back to running. `failed` is a batch that
    could not be prepared: nothing of it was published.
    """

    PREPARING = "preparing", "preparing"
    DRAFT = "draft", "dry run"
    WAITING = "waiting", "waiting (undo possible)"
    RUNNING = "running", "running"
    WATCHING = "watching", "observing the canary"
    PAUSED = "paused", "paused"
    DONE = "done", "done"
    CANCELLED = "cancelled", "cancelled"
    FAILED = "failed", "failed"


ENDED_BATCH = (BatchState.DONE, BatchState.CANCELLED, BatchState.FAILED)


class ItemState(models.TextChoices):
    """pending -> publishing -> one of the others.

    `publishing` is committed before anything is sent: one that is found so after a crash is
    published again with the same replay id, and marked. `unknown` is one that RabbitMQ nacked, or
    whose connections failed: it becomes `done` when it was seen to arrive. `excluded` is a possible
    repeat that is not to be sent: it stays parked.
    """

    PENDING = "pending", "pending"
    PUBLISHING = "publishing", "publishing"
    DONE = "done", "done"
    RETURNED = "returned", "returned (unroutable)"
    FAILED = "failed", "failed"
    UNKNOWN = "unknown", "may have arrived"
    CANCELLED = "cancelled", "cancelled"
    EXCLUDED = "excluded", "excluded (possible repeat)"


OPEN = (ItemState.PENDING, ItemState.PUBLISHING)
# States of items that are not confirmed, which a replay of the remaining messages sends.
REMAINING = (ItemState.RETURNED, ItemState.FAILED, ItemState.UNKNOWN)
# Columns of a batch that count its items by how they ended.
COUNTED = (
    ItemState.DONE,
    ItemState.RETURNED,
    ItemState.FAILED,
    ItemState.UNKNOWN,
    ItemState.CANCELLED,
    ItemState.EXCLUDED,
)


class ReplayOutcome(models.TextChoices):
    """What was seen of a message after its replay; "" as long as nothing was, and time is left."""

    DELAYED = "delayed", "sent to a delay"
    DELIVERED = "delivered", "delivered (observed)"
    DIED = "died", "dead-lettered again"
    UNOBSERVED = "unobserved", "not observed"


class TargetMode(models.TextChoices):
    DEFAULT = "default", "original exchange and routing key"
    FIRST_QUEUE = "first_queue", "queue of the first death"
    TYPED = "typed", "selected exchange and routing key"
    DELAY = "delay", "delay of a topology"


class Order(models.TextChoices):
    OLDEST = "oldest", "oldest first"
    NEWEST = "newest", "newest first"


class ReplayBatch(models.Model):
    """Freezes the exact selection; a draft until it is started.

    Items are in the order of their messages' ids; `order` decides at which end sending begins.

    The selection is one of `messages` (ids), `parking` (the messages that it parks), `group` or
    `query`; of the last two only messages up to the id `newest`, and at most `limit`. `description`
    is the selection in words. `prepared_to` is the last message that has an item; items up to the
    position `claimed_to` have claimed their messages.

    While it runs in `stages`, `canary` and `canary_seconds` are those of the stage after
    `stages_done`. `requested_by` has asked for an approval of the draft as it is.

    `selected` = done + returned + failed + unknown + cancelled + excluded + pending; the counts
    change in the transaction that changes the items. `repeats` counts the items that may be
    repeats, `excluded` those of them that are not sent.
    """

    broker = models.ForeignKey(Broker, models.CASCADE)
    uid = models.UUIDField(default=uuid.uuid4, editable=False, unique=True)
    description = models.TextField()
    parked_messages = models.JSONField(null=True)
    parking = models.OneToOneField(Parking, models.PROTECT, null=True)
    group = models.ForeignKey(MessageGroup, models.SET_NULL, null=True)
    query = models.CharField(max_length=500, blank=True)
    newest = models.BigIntegerField(null=True)
    limit = models.PositiveIntegerField(null=True)
    include_repeats = models.BooleanField(default=False)
    keep_counters = models.BooleanField(default=False)
    unwraps = models.BooleanField(default=False)
    prepared_to = models.BigIntegerField(default=0)
    claimed_to = models.PositiveIntegerField(default=0)

    order = models.CharField(max_length=10, choices=Order.choices, default=Order.OLDEST)
    mode = models.CharField(max_length=12, choices=TargetMode.choices, default=TargetMode.DEFAULT)
    exchange = models.CharField(max_length=255, blank=True)
    key = models.CharField(max_length=255, blank=True)
    topology = models.ForeignKey(Topology, models.SET_NULL, null=True)
    delay = models.DurationField(null=True)
    rate = models.FloatField(null=True, help_text="Messages per second; null means no limit.")
    canary = models.PositiveIntegerField(
        default=0, help_text="Number of canary messages; 0 means no canary."
    )
    canary_seconds = models.PositiveIntegerField(default=0)
    canary_goes_on = models.BooleanField(
        default=False, help_text="Resumes automatically if none is dead-lettered again."
    )
    stages = models.JSONField(
        default=list,
        blank=True,
        help_text="Percent, seconds of observation, and how many may be dead-lettered again.",
    )
    stages_done = models.PositiveSmallIntegerField(default=0)
    undo_seconds = models.PositiveIntegerField(default=0)
    most_replays = models.PositiveIntegerField(default=3)
    stop_after = models.PositiveIntegerField(
        default=10,
        help_text="Pauses at this number of messages dead-lettered again; 0 means no limit.",
    )

    state = models.CharField(
        max_length=10, choices=BatchState.choices, default=BatchState.PREPARING, db_index=True
    )
    state_at = models.DateTimeField()
    state_why = models.TextField(blank=True)
    publish_at = models.DateTimeField(null=True, help_text="Time of the first publish.")
    canary_until = models.DateTimeField(null=True)
    selected = models.PositiveIntegerField(default=0)
    done = models.PositiveIntegerField(default=0)
    returned = models.PositiveIntegerField(default=0)
    failed = models.PositiveIntegerField(default=0)
    unknown = models.PositiveIntegerField(
        default=0, help_text="Number of messages that may have arrived."
    )
    cancelled = models.PositiveIntegerField(default=0)
    excluded = models.PositiveIntegerField(default=0)
    repeats = models.PositiveIntegerField(default=0)
    doubled = models.PositiveIntegerField(
        default=0, help_text="Number of messages that may be duplicated."
    )
    delivered = models.PositiveIntegerField(default=0)
    died = models.PositiveIntegerField(
        default=0, help_text="Number of messages dead-lettered again."
    )
    followed_to = models.DateTimeField(
        null=True, help_text="Outcomes are complete up to this time."
    )

    name = models.CharField(max_length=100, blank=True, default="")
    reason = models.CharField(max_length=500, blank=True, default="")
    link = models.CharField(max_length=500, blank=True, default="")
    requested_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+"
    )
    requested_at = models.DateTimeField(null=True)
    approved_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+"
    )
    work = models.OneToOneField(Work, models.PROTECT, null=True)
    started_at = models.DateTimeField(null=True)
    started_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+"
    )
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-pk",)
        verbose_name_plural = "replay batches"

    def __str__(self) -> str:
        return f"replay {self.pk} of {self.description}"

    @cached_property
    def conventions(self) -> tuple[Convention, ...]:
        """The client conventions by which it was made: a later one never changes what it sends."""
        return read_conventions(self.broker_id, self.created_at)

    @property
    def is_draft(self) -> bool:
        return self.state == BatchState.DRAFT

    @property
    def is_ended(self) -> bool:
        return self.state in ENDED_BATCH

    @property
    def pending(self) -> int:
        ended: int = sum(getattr(self, state) for state in COUNTED)
        return self.selected - ended

    @property
    def to_send(self) -> int:
        """How many are sent when all goes well: all but the excluded ones."""
        return self.selected - self.excluded

    @property
    def settled(self) -> int:
        """How many are sent or cancelled."""
        return self.to_send - self.pending

    @property
    def refused(self) -> int:
        """How many were not published."""
        return self.returned + self.failed

    @property
    def remaining(self) -> int:
        """How many were not confirmed, as REMAINING selects."""
        return self.refused + self.unknown

    @property
    def published(self) -> int:
        """How many were published, or may have been."""
        return self.done + self.unknown

    def counts(self) -> dict[str, int]:
        """How many ended how, and how many are pending; these add up to `selected`."""
        return {**{str(state): getattr(self, state) for state in COUNTED}, "pending": self.pending}


class ReplayRoute(models.Model):
    """One target, with the verdict of the dry run on its items.

    `after_ms` is the longest time that a copy waits on its route: more than 0 makes it a replay
    into a delay. `ending` is the worst of its copies' endings, as the walk names them, or
    `unroutable`, `loops`, `full` (a queue cannot hold all of them), `guarded` (replayed too often),
    `refused` (cannot be published).
    """

    batch = models.ForeignKey(ReplayBatch, models.CASCADE, related_name="routes")
    exchange = models.CharField(max_length=255, blank=True)
    routing_key = models.CharField(max_length=255, blank=True)
    why = models.TextField(blank=True)
    verdict = models.TextField(blank=True)
    ending = models.CharField(max_length=20, blank=True)
    is_good = models.BooleanField(default=True)
    after_ms = models.PositiveBigIntegerField(default=0)
    items_number = models.PositiveIntegerField(default=0)

    class Meta:
        ordering = ("is_good", "-items_number", "pk")
        indexes = (models.Index(fields=("batch", "-items_number"), name="routes_by_number"),)

    def __str__(self) -> str:
        return f"{self.exchange or '(default)'} {self.routing_key}: {self.verdict}"


class ReplayItem(models.Model):
    """One message of a batch, at its `position` from 1.

    `attempts` is 0 before it begins, then 1, and one more for each connection that failed while it
    was in flight. `is_repeat`: its message may be a repeat. `shared_replay_id` is the replay id of
    another item, when both messages may be one message; "" means an id of its own. `parked_message`
    is None when its row was deleted since. `died_as` is the message as which it died again.
    """

    batch = models.ForeignKey(ReplayBatch, models.CASCADE, related_name="items", db_index=False)
    position = models.PositiveIntegerField()
    parked_message = models.ForeignKey(
        ParkedMessage, models.SET_NULL, null=True, related_name="replays"
    )
    route = models.ForeignKey(
        ReplayRoute, models.CASCADE, null=True, related_name="items", db_index=False
    )
    message_id = models.CharField(max_length=255, blank=True)
    size = models.PositiveIntegerField()
    state = models.CharField(max_length=10, choices=ItemState.choices, default=ItemState.PENDING)
    attempts = models.PositiveSmallIntegerField(default=0)
    may_be_duplicated = models.BooleanField(default=False)
    is_repeat = models.BooleanField(default=False)
    shared_replay_id = models.CharField(max_length=64, blank=True)
    error = models.TextField(blank=True)
    ended_at = models.DateTimeField(null=True)
    outcome = models.CharField(max_length=10, choices=ReplayOutcome.choices, blank=True)
    outcome_at = models.DateTimeField(null=True)
    died_as = models.ForeignKey(ParkedMessage, models.SET_NULL, null=True, related_name="+")

    class Meta:
        ordering = ("position",)
        constraints = (
            models.UniqueConstraint(fields=("batch", "position"), name="one_item_per_position"),
        )
        indexes = (
            models.Index(
                fields=("batch", "position"),
                condition=models.Q(state__in=("done", "unknown"), outcome__in=("", "delayed")),
                name="items_to_follow",
            ),
            models.Index(
                fields=("batch",), condition=models.Q(outcome="died"), name="items_that_died"
            ),
            models.Index(
                fields=("shared_replay_id",),
                condition=models.Q(shared_replay_id__gt=""),
                name="items_by_shared_replay_id",
            ),
        )

    def __str__(self) -> str:
        return f"{self.message_id or self.position}: {self.state}"

    @property
    def replay_id(self) -> str:
        return self.shared_replay_id or replay_id(self.batch.uid, self.position)


def replay_id(uid: uuid.UUID, position: int) -> str:
    """The replay id in the header of the replayed message; the same at every attempt."""
    return f"{uid.hex}-{position}"


def parse_replay_id(text: str) -> tuple[uuid.UUID, int] | None:
    """The batch's uid and the position; None for what no replay of this version wrote."""
    head, dash, tail = text.partition("-")
    is_one = len(head) == 32 and dash and tail.isascii() and tail.isdigit() and len(tail) <= 9
    if not is_one:
        return None
    try:
        return uuid.UUID(hex=head), int(tail)
    except ValueError:
        return None


class ReplayEdit(models.Model):
    """What is sent instead of the message; the message stays as it was."""

    item = models.OneToOneField(ReplayItem, models.CASCADE, related_name="edit")
    properties = models.BinaryField()
    body = models.ForeignKey(Body, models.PROTECT, related_name="+")
    edited_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True)
    edited_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"edit of {self.item}"


class RedirectRule(models.Model):
    """Where the messages of a group go by default."""

    group = models.OneToOneField(MessageGroup, models.CASCADE, related_name="redirect")
    exchange = models.CharField(max_length=255, blank=True)
    routing_key = models.CharField(max_length=255, blank=True)
    set_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True)
    set_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.group} goes to {self.exchange or '(default)'} {self.routing_key}"
