"""Destinations that RabbitMQ cannot route to, the messages that wait for them, and stuck ones.

A walk on the snapshot checks the binding. Destinations are known from listed messages and from
Delayboard's own bindings. The broker reports how many messages are stuck: among the listed messages
that are due, the newest ones count as stuck.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q, QuerySet

from analytics.buckets import LONG_OVERDUE
from analytics.models import Probe, ScheduledMessage
from analytics.models.scheduled_message import WAITING
from analytics.observation import observe
from analytics.scheduled.summaries import counts
from topology.content.text import count_of
from topology.definitions import Binding
from topology.findings.rules.live import BLOCKED
from topology.models import Broker, MissingBinding, State, Topology
from topology.operations import provision
from topology.patterns.pattern import ParamsError
from topology.provisioning.destinations import (
    Unroutable,
    count_stuck,
    find_unroutable,
    has_free_destinations,
)
from topology.snapshot import Report, Snapshot

# Age of the broker's counts: it counts every five seconds, and a snapshot is a few seconds old.
COUNTED_WITHIN = timedelta(seconds=10)
# Stuck messages at which a level stops for all (dead_letter_worker_consumer_prefetch).
STOPS_AT = 32
# Most destinations of a topology, by name.
MOST_DESTINATIONS = 1000
# Most stuck messages that are distinguished by destination.
MOST_STUCK = 50_000


@dataclass(frozen=True)
class DestinationCheck:
    """The result of one check of a topology.

    `earlier_at` is the time of the check before, None for the worker's first. `stuck` is how many
    messages the broker keeps by queue, None when not reported. `unroutable` are destinations by
    name, `before` the rows of the last check by destination.
    """

    topology: Topology
    at: datetime
    earlier_at: datetime | None
    unroutable: Mapping[str, Unroutable]
    stuck: Mapping[str, int] | None
    before: Mapping[str, MissingBinding]

    @property
    def total(self) -> int:
        return sum((self.stuck or {}).values())

    @property
    def is_stopped(self) -> bool:
        """Whether a level keeps so many that it lets nothing through."""
        return any(number >= STOPS_AT for number in (self.stuck or {}).values())


def update_missing_bindings(
    topology: Topology, snapshot: Snapshot, earlier: Snapshot | None
) -> list[MissingBinding]:
    """Bring the rows of a topology up to a snapshot; the rows that there are now.

    `earlier` is the snapshot of the last check, some seconds older: with None nothing is taken for
    stuck yet. Raises ParamsError for a row that no longer reads.
    """
    params = topology.parsed
    rows = {row.destination: row for row in MissingBinding.objects.filter(topology=topology)}
    if not has_free_destinations(topology.pattern, params):
        return []
    waiting = _destinations(topology)
    own = {obj.identity for obj in topology.definitions if isinstance(obj, Binding)}
    owned = {one[3] for one in topology.owned_identities if one[0] == "binding" and one not in own}
    names = [name for name in {*waiting, *owned, *rows} if name]
    check = DestinationCheck(
        topology,
        snapshot.taken_at,
        earlier.taken_at if earlier else None,
        find_unroutable(topology.pattern, params, names, snapshot),
        count_stuck(provision.queues_of(topology, snapshot), snapshot, earlier)
        if earlier
        else None,
        rows,
    )
    wanted = _rows(check, owned)
    if not rows and not wanted:
        return []
    with transaction.atomic():
        kept = [row.destination for row in wanted]
        MissingBinding.objects.filter(topology=topology).exclude(destination__in=kept).delete()
        for row in wanted:
            row.save()
    return wanted


def _destinations(topology: Topology) -> list[str]:
    """The destinations of listed messages."""
    rows = ScheduledMessage.objects.filter(WAITING, topology=topology).order_by("destination")
    return list(rows.values_list("destination", flat=True).distinct()[:MOST_DESTINATIONS])


def _rows(check: DestinationCheck, owned: Collection[str]) -> list[MissingBinding]:
    """The rows as they should be from now on; not saved."""
    rows = [
        *(_missing(check, name, problem) for name, problem in check.unroutable.items()),
        *(
            _restored(check, row)
            for name, row in check.before.items()
            if name and name not in check.unroutable and not row.is_dropped
        ),
    ]
    oldest = _oldest_stuck(check, rows)
    found = []
    for row in rows:
        _count(check, row, oldest.get(row.destination))
        if _is_worth_storing(check, row, is_owned=row.destination in owned):
            found.append(row)
    unknown = _unknown(check, [row for row in found if row.from_at is not None])
    return [*found, *([unknown] if unknown else [])]


def _missing(check: DestinationCheck, name: str, problem: Unroutable) -> MissingBinding:
    row = check.before.get(name)
    if row is None or row.restored_at is not None:
        pk = row.pk if row else None
        row = MissingBinding(
            pk=pk,
            topology=check.topology,
            destination=name,
            since_at=check.at,
            from_at=check.earlier_at or check.at,
        )
    row.is_bound, row.is_dropped = problem.is_bound, problem.is_dropped
    return row


def _restored(check: DestinationCheck, row: MissingBinding) -> MissingBinding:
    row.restored_at = row.restored_at or check.at
    return row


def _oldest_stuck(check: DestinationCheck, rows: Iterable[MissingBinding]) -> dict[str, datetime]:
    """Destination -> the due time of the first of its messages that are stuck, as far as known."""
    now = Q(pk__in=[])
    ending = [row.destination for row in rows if row.restored_at is None and not row.is_dropped]
    now |= Q(destination__in=ending, due_at__lt=check.at)
    for row in rows:
        if row.restored_at is not None:
            now |= Q(destination=row.destination, due_at__lt=row.restored_at)
    newest = _due(check).filter(now).order_by("-due_at", "-id")
    oldest: dict[str, datetime] = {}
    for destination, due_at in newest.values_list("destination", "due_at")[
        : min(check.total, MOST_STUCK)
    ]:
        if due_at is not None:
            oldest[destination] = due_at
    return oldest


def _due(check: DestinationCheck) -> QuerySet[ScheduledMessage]:
    return ScheduledMessage.objects.filter(WAITING, topology=check.topology, due_at__lt=check.at)


def _count(check: DestinationCheck, row: MissingBinding, oldest: datetime | None) -> None:
    """Since when its messages are stuck, how many, and how many more wait.

    What fell due since the broker counted is taken to be stuck as well.
    """
    if row.is_dropped:
        row.from_at = None
    elif check.stuck is not None:
        lately = max(row.from_at or check.at, check.at - COUNTED_WITHIN)
        if row.restored_at is not None and check.at - row.restored_at > COUNTED_WITHIN:
            row.from_at = oldest
        else:
            row.from_at = min(oldest or lately, lately)
    scope = counts.scope_of([check.topology], check.at, destination=row.destination)
    row.waiting = scope.rows(check.at).count() if row.restored_at is None else 0
    row.stuck = 0
    if row.from_at is not None:
        due = _due(check).filter(destination=row.destination, due_at__gte=row.from_at)
        row.stuck = due.filter(due_at__lt=row.restored_at or check.at).count()


def _is_worth_storing(check: DestinationCheck, row: MissingBinding, *, is_owned: bool) -> bool:
    """Whether a message is stuck or waits, or may still turn out to be; or the binding is ours."""
    is_young = check.at - (row.restored_at or row.since_at) <= COUNTED_WITHIN
    if row.restored_at is not None:
        return bool(row.stuck) or (is_young and row.pk is not None)
    return bool(row.stuck or row.waiting) or is_owned or (is_young and row.pk is not None)


def _unknown(check: DestinationCheck, named: Iterable[MissingBinding]) -> MissingBinding | None:
    """The row of what is stuck beyond the messages that are listed; None where nothing is."""
    row = check.before.get("")
    if check.stuck is None:
        return row
    # A level keeps probes too, and no list has them.
    probes = len(Probe.late([check.topology], check.at))
    surplus = check.total - sum(one.stuck for one in named) - probes
    if surplus <= 0:
        return None
    row = row or MissingBinding(topology=check.topology, destination="", since_at=check.at)
    row.stuck, row.from_at = surplus, None
    if check.is_stopped:
        others = _due(check).filter(due_at__gte=row.since_at - COUNTED_WITHIN)
        others = others.exclude(destination__in=[one.destination for one in named])
        dues = others.order_by("-due_at").values_list("due_at", flat=True)
        row.from_at = min((at for at in dues[: min(surplus, MOST_STUCK)] if at), default=None)
    return row


def find_blocked(broker: Broker, now: datetime) -> Iterator[Report]:
    """One for each queue; only where taps see what leaves, and the recorder reads them."""
    applied = list(Topology.objects.filter(broker=broker, state=State.APPLIED))
    observed = observe(applied, now)
    seen = {
        row.pk: row for row in applied if row.observes_arrivals and not observed[row.pk].is_silent
    }
    late = ScheduledMessage.objects.filter(
        WAITING, topology__in=seen, due_at__lt=now - LONG_OVERDUE
    )
    for pk, queue in late.order_by().values_list("topology", "queue").distinct():
        # A row that no longer reads says so on its own page.
        with suppress(ParamsError):
            if report := _find_blocked(seen[pk], queue, now):
                yield report


def _find_blocked(topology: Topology, queue: str, now: datetime) -> Report | None:
    rows = ScheduledMessage.objects.filter(WAITING, topology=topology, queue=queue)
    first = rows.filter(due_at__gt=now).order_by("entered_at", "pk").first()
    # A message that waits in several queues may have left this one.
    if first is None or len(topology.pattern.waits(topology.parsed, first.requested_delay)) > 1:
        return None
    late = rows.filter(due_at__lt=now - LONG_OVERDUE, entered_at__gt=first.entered_at)
    if not (number := late.count()):
        return None
    messages = count_of(number, "message", "is")
    sentence = (
        f"{messages} overdue by a minute or more in “{queue}”, behind one that is due at "
        f"{first.due_at:%Y-%m-%d %H:%M:%S} UTC."
    )
    return Report(BLOCKED.id, queue, number, sentence)
