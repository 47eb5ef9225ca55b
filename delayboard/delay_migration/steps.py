"""The steps of a migration in their order, for publishers and consumers, and how far each is."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db.models import Max

from analytics.models import ScheduledMessage
from topology.models import Topology

# Publishers that are not switched over would have published by then.
QUIET = timedelta(minutes=10)


class Step(NamedTuple):
    """What somebody does, whether it is done, and what is known of it."""

    text: str
    is_done: bool
    known: str


def list_steps(
    source: Topology, target: Topology, problems: Sequence[str], waiting: int, now: datetime
) -> list[Step]:
    """`problems` are of destinations, `waiting` counts the messages in the source."""
    rows = ScheduledMessage.objects.filter(topology=source)
    entered_at: datetime | None = rows.aggregate(at=Max("entered_at"))["at"]
    is_quiet = entered_at is None or now - entered_at > QUIET
    entered = "No message is known."
    if entered_at is not None:
        entered = f"The latest known message entered at {entered_at:%Y-%m-%d %H:%M:%S} UTC."
    command = f"manage.py migrate_delays {source.slug} {target.slug}"
    return [
        Step("Apply the target topology.", True, "It is applied."),
        Step(
            "Let the consumers bind their queues to the target, or let the migration do it.",
            not problems,
            problems[0] if problems else "All known destinations can be bound.",
        ),
        Step("Let the publishers use the target.", is_quiet, entered),
        Step(
            f"Run “{command}” again until it moves nothing.",
            is_quiet and not waiting,
            f"{waiting} messages wait in the source.",
        ),
        Step("Delete the source topology.", False, "Not before all other steps are done."),
    ]
