from __future__ import annotations

from django.db import models


class Recording(models.Model):
    """The position in a topology's tap, so that a returning recorder detects lost copies.

    `lost_since` is set while the tap queue does not exist: copies from that time are lost.

    For a stream tap of an earlier version, `offset` is the last one in the log; -1 before the
    first, and for a queue.
    """

    topology = models.OneToOneField("topology.Topology", models.CASCADE, related_name="+")
    read_at = models.DateTimeField()
    lost_since = models.DateTimeField(null=True)
    offset = models.BigIntegerField(default=-1)

    def __str__(self) -> str:
        return f"tap of {self.topology_id} read until {self.read_at:%Y-%m-%d %H:%M:%S}"


class LogPosition(models.Model):
    """How far a file of the event log was read into the index.

    `path` is relative to the log; it moves on in the transaction that wrote the rows. `log` is the
    name of the log, "" of one that an earlier version read.
    """

    log = models.CharField(max_length=100, blank=True, default="", db_default="")
    path = models.CharField(max_length=300, unique=True)
    bytes_read = models.BigIntegerField(default=0)

    def __str__(self) -> str:
        return f"{self.path} until byte {self.bytes_read}"


class Firehose(models.Model):
    """A vhost whose every publish and delivery RabbitMQ copies, wanted while this row exists.

    `read_at` and `lost_since` are as in Recording.
    """

    broker = models.OneToOneField("topology.Broker", models.CASCADE, related_name="firehose")
    switched_on_at = models.DateTimeField(auto_now_add=True)
    switched_on_by = models.CharField(max_length=150)
    read_at = models.DateTimeField(null=True)
    lost_since = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"firehose of {self.broker}"


class Minute(models.Model):
    """What passed a topology's tap in one minute: `entered`, `left`, `died` (entered by a
    failure), `late` (left more than a second late).

    `lateness_json` maps buckets of lateness to how many measured messages left in it. It is text:
    a page reads thousands of rows.
    """

    topology = models.ForeignKey("topology.Topology", models.CASCADE, related_name="+")
    minute_at = models.DateTimeField()
    entered = models.PositiveIntegerField(default=0)
    left = models.PositiveIntegerField(default=0)
    died = models.PositiveIntegerField(default=0)
    late = models.PositiveIntegerField(default=0)
    lateness_json = models.TextField(blank=True, default="{}")

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("topology", "minute_at"), name="one_row_per_minute"),
        )

    def __str__(self) -> str:
        return f"{self.topology_id} at {self.minute_at:%Y-%m-%d %H:%M}"


class Gap(models.Model):
    """A time in which copies of a topology's messages may have been lost unrecorded."""

    topology = models.ForeignKey("topology.Topology", models.CASCADE, related_name="+")
    from_at = models.DateTimeField()
    until_at = models.DateTimeField()
    at_most = models.PositiveIntegerField(null=True, help_text="Lost copies; unknown if empty.")
    why = models.TextField()

    class Meta:
        ordering = ("-until_at",)

    def __str__(self) -> str:
        return self.why


class Fact(models.Model):
    """Events that Delayboard itself caused, on their way into the event log: one line for each.

    Written in the transaction that did it, and deleted when its lines are on disk.
    """

    line = models.TextField(help_text="The event as a line of the log.")

    class Meta:
        ordering = ("id",)

    def __str__(self) -> str:
        return self.line[:80]
