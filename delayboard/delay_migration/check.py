"""What a migration would do, why it cannot begin, and its steps: nothing is changed here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, NamedTuple, TypeAlias

from django.db.models import Count, Max, Min

from analytics.models import Firehose, Recording, ScheduledMessage
from analytics.models.scheduled_message import WAITING
from analytics.observation import untapped
from analytics.recorder.follow import is_seen_by_nobody
from delayboard.delay_migration.places import (
    CHAIN_KINDS,
    OTHERS,
    REASONS,
    find_chain_obstacle,
    list_places,
)
from delayboard.models import ScheduledChange
from delayboard.models.scheduled_change import OPEN
from delayboard.publishing.destinations import Destinations
from topology import snapshots
from topology.broker.management.client import Management
from topology.content.text import count_of
from topology.definitions import Definitions
from topology.delays import format_delay
from topology.models import Topology
from topology.operations.ownership import Refusal, refuse_unapplied
from topology.patterns.delay_levels.params import KIND as LEVELS

# Time without an entry after which all publishers are switched over.
QUIET = timedelta(minutes=10)
# Time without a mark after which a recorder is silent: it notes about every second how far it has
# read.
SILENT = timedelta(minutes=1)


StepState: TypeAlias = Literal["done", "open", "unknown"]


@dataclass(frozen=True)
class DestinationLine:
    """The known messages for one destination: how many, when they arrive, and why they cannot."""

    destination: str
    number: int
    first_due_at: datetime | None
    last_due_at: datetime | None
    problem: str = ""


@dataclass(frozen=True)
class Waiting:
    """A queue of the source: how many wait in it, and before when each of them is due."""

    queue: str
    number: int
    due_before: datetime


@dataclass(frozen=True)
class DryRun:
    """The known messages, what is in each queue in the order of moving, and the steps.

    With an `obstacle` nothing can be moved: the steps wait until the source has delivered them.
    """

    lines: Sequence[DestinationLine]
    queues: Sequence[Waiting]
    steps: Sequence[Step]
    obstacle: str = ""

    @property
    def known(self) -> int:
        return sum(line.number for line in self.lines)

    @property
    def waiting(self) -> int:
        return sum(queue.number for queue in self.queues)


def describe_too_long(target: Topology, delay: timedelta) -> str:
    """Why the target cannot take a message with so much of its delay left; "" where it can."""
    longest = target.pattern.longest(target.parsed)
    if delay <= longest:
        return ""
    return (
        f"The longest delay of “{target.name}” is {format_delay(longest)}. Choose a target with "
        "longer delays, or wait until less of the delay is left."
    )


def find_source_problem(source: Topology) -> str:
    """Why nothing can be moved from it, wherever to; "" where something can."""
    if source.kind in CHAIN_KINDS:
        return find_chain_obstacle(source.parsed)
    return "" if source.pattern.OFFERS_MIGRATION else OTHERS


def refuse_unfit(source: Topology, target: Topology) -> None:
    """Raises Refusal where nothing can be moved from the one to the other."""
    if problem := find_source_problem(source):
        raise Refusal(problem)
    for topology in (source, target):
        refuse_unapplied(topology)
    if target.kind != LEVELS:
        raise Refusal(f"“{target.name}” is not a delay levels topology. Choose delay levels.")
    if source.pk == target.pk:
        raise Refusal("Source and target are the same topology. Choose two different topologies.")
    if source.probing:
        raise Refusal(
            f"Probes of “{source.name}” wait in its delays. Disable probes, and wait until the "
            "last probe has arrived."
        )
    changes = ScheduledChange.objects.filter(topology=source, state__in=OPEN).count()
    if changes:
        raise Refusal(
            f"Messages of “{source.name}” have {count_of(changes, 'requested change')}. Undo what "
            "is requested, or wait until it takes effect."
        )


def read_objects(source: Topology) -> Definitions:
    """What is in the broker of the source. Raises BrokerError."""
    with Management(source.broker.address) as management:
        return snapshots.for_action(source.broker, management, source.definitions).definitions


def check(source: Topology, target: Topology, now: datetime) -> DryRun:
    """What a migration would move, and how far its steps are. Raises Refusal and BrokerError."""
    refuse_unfit(source, target)
    obstacle = REASONS.get(source.kind, "")
    places = [] if obstacle else list_places(source, read_objects(source))
    destinations = Destinations(target)
    waiting = ScheduledMessage.objects.filter(WAITING, topology=source)
    groups = waiting.values_list("destination").annotate(Count("pk"), Min("due_at"), Max("due_at"))
    lines = [
        DestinationLine(
            *(name, number, first, last),
            destinations.problem(name) or (describe_too_long(target, last - now) if last else ""),
        )
        for name, number, first, last in groups.order_by("destination")
    ]
    problems = [f"{line.destination}: {line.problem}" for line in lines if line.problem]
    if obstacle:
        steps = list_steps(source, target, problems, _count_delayed(source), now, is_moved=False)
        return DryRun(lines, (), steps, obstacle)
    depths = read_depths(source, [place.queue for place in places])
    waits = {place.queue: place.longest_wait for place in places}
    queues = [Waiting(name, number, now + waits[name]) for name, number in depths.items()]
    known = sum(line.number for line in lines)
    total = sum(depths.values())
    steps = list_steps(
        source, target, problems, total, now, are_known=known >= total, is_moved=True
    )
    return DryRun(lines, queues, steps)


def _count_delayed(source: Topology) -> int | None:
    """How many messages the plugin reports of the exchange; None where it reports none."""
    with Management(source.broker.address) as management:
        found = {str(one.get("name")): one for one in management.exchanges()}
    number = found.get(source.parsed.name, {}).get("messages_delayed")
    return number if isinstance(number, int) else None


def read_depths(
    source: Topology, queues: Sequence[str], counted: str = "messages"
) -> dict[str, int]:
    """The queues that hold something, as the broker last reported: up to five seconds ago."""
    with Management(source.broker.address) as management:
        totals = {str(one.get("name")): one.get(counted) for one in management.queue_totals()}
    numbers = {name: totals.get(name) for name in queues}
    return {name: number for name, number in numbers.items() if isinstance(number, int) and number}


class Publishers(NamedTuple):
    """Whether publishers still use the source, and what is known of them."""

    state: StepState
    known: str


class Step(NamedTuple):
    """What somebody does, whether it is done, and what is known of it."""

    text: str
    state: StepState
    known: str


def find_publishers(source: Topology, now: datetime) -> Publishers:
    """The publishers by the messages that entered the source, where they are recorded up to now."""
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
    state: StepState = "done" if now - entered_at > QUIET else "open"
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
    bound: StepState = "done" if are_known else "unknown"
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
