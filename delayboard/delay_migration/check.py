"""What a migration would do, and why it cannot begin: nothing is changed here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Count, Max, Min

from analytics.models import ScheduledMessage
from analytics.models.scheduled_message import WAITING
from delayboard.delay_migration.places import (
    CHAIN_KINDS,
    OTHERS,
    REASONS,
    find_chain_obstacle,
    list_places,
)
from delayboard.delay_migration.steps import Step, list_steps
from delayboard.models import ScheduledChange
from delayboard.models.scheduled_change import OPEN
from delayboard.publishing.destinations import Destinations
from topology import snapshots
from topology.broker.management.client import Management
from topology.content.text import count_of
from topology.definitions import Definitions
from topology.delays import format_delay
from topology.models import State, Topology
from topology.operations.ownership import Refusal
from topology.patterns.delay_levels.params import KIND as LEVELS
from topology.patterns.hold_queues.params import KIND as HOLDS


@dataclass(frozen=True)
class Line:
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

    lines: Sequence[Line]
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
    return "" if source.kind in (LEVELS, HOLDS, *REASONS) else OTHERS


def refuse_unfit(source: Topology, target: Topology) -> None:
    """Raises Refusal where nothing can be moved from the one to the other."""
    if problem := find_source_problem(source):
        raise Refusal(problem)
    for topology in (source, target):
        if topology.state == State.DELETED:
            raise Refusal(f"“{topology.name}” is deleted. Choose another topology.")
        if topology.state != State.APPLIED:
            raise Refusal(f"“{topology.name}” is {topology.get_state_display()}. Apply it first.")
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
        Line(
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
    """Those that hold something, as the broker last reported: up to five seconds ago."""
    with Management(source.broker.address) as management:
        totals = {str(one.get("name")): one.get(counted) for one in management.queue_totals()}
    numbers = {name: totals.get(name) for name in queues}
    return {name: number for name, number in numbers.items() if isinstance(number, int) and number}
