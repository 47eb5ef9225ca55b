"""The steps of a migration in their order, for publishers and consumers, and how far each is."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Literal, NamedTuple, TypeAlias

from django.db.models import Max

from analytics.models import Firehose, Recording, ScheduledMessage
from analytics.observation import untapped
from analytics.recorder.index import is_seen_by_nobody
from topology.content.text import count_of
from topology.models import Topology

# Publishers that are not switched over would have published by then.
QUIET = timedelta(minutes=10)
# A recorder notes about every second how far it has read.
SILENT = timedelta(minutes=1)


State: TypeAlias = Literal["done", "open", "unknown"]


class Publishers(NamedTuple):
    """Whether publishers still use the source, and what is known of them."""

    state: State
    known: str


class Step(NamedTuple):
    """What somebody does, whether it is done, and what is known of it."""

    text: str
    state: State
    known: str


def find_publishers(source: Topology, now: datetime) -> Publishers:
    """By the messages that entered the source, where they are recorded up to now."""
    if is_seen_by_nobody(source):
        return Publishers(
            "unknown",
            "The number of publishers is unknown: Delayboard does not record the messages that "
            "enter this topology. Enable the firehose, or check the publishers.",
        )
    firehose = Firehose.objects.filter(broker=source.broker_id, read_at__gt=now - SILENT)
    tap = Recording.objects.filter(topology=source, read_at__gt=now - SILENT)
    is_tapped = "entry" not in untapped(source)
    if not ((tap.exists() and is_tapped) or firehose.exists()):
        return Publishers(
            "unknown",
            "The number of publishers is unknown, because no recorder reads the tap or the "
            "firehose of this topology. Start the worker.",
        )
    rows = ScheduledMessage.objects.filter(topology=source)
    entered_at: datetime | None = rows.aggregate(at=Max("entered_at"))["at"]
    if entered_at is None:
        return Publishers("done", "No message is known.")
    state: State = "done" if now - entered_at > QUIET else "open"
    return Publishers(
        state, f"The latest known message entered at {entered_at:%Y-%m-%d %H:%M:%S} UTC."
    )


def list_steps(
    source: Topology,
    target: Topology,
    problems: Sequence[str],
    waiting: int | None,
    now: datetime,
    *,
    are_known: bool = True,
    is_moved: bool = True,
) -> list[Step]:
    """`problems` are of destinations, `waiting` counts the messages in the source, None where
    nobody can. Unless `are_known`, messages for others may wait. Unless `is_moved`, the source
    delivers them itself.
    """
    publishers = find_publishers(source, now)
    bound: State = "done" if are_known else "unknown"
    known_bound = "All known destinations can be bound."
    if not are_known:
        known_bound += " Messages that Delayboard did not record may have others."
    if problems:
        bound, known_bound = "open", " ".join(problems)
    command = f"manage.py migrate_delays {source.slug} {target.slug}"
    request = f"Request the migration, or run “{command}” until the source is empty."
    known = f"{count_of(waiting or 0, 'message', 'waits')} in the source."
    state = "open" if waiting else publishers.state
    if waiting is None:
        state, known = "unknown", "The broker does not report how many messages wait."
    return [
        Step("Apply the target topology.", "done", "It is applied."),
        Step(
            "Let the consumers bind their queues to the target, or let the migration do it.",
            bound,
            known_bound,
        ),
        Step("Let the publishers use the target.", *publishers),
        Step(
            request if is_moved else "Wait until the source has delivered its messages.",
            state,
            known,
        ),
        Step("Delete the source topology.", "open", "Not before all other steps are done."),
    ]
