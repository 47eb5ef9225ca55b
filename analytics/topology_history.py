"""What passed a topology by minute, hour or day, from its counts per minute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Literal, NamedTuple

from django.db.models import F, Sum
from django.db.models.functions import TruncDay, TruncHour
from django.utils import timezone

from analytics.charts.figures import Span
from analytics.models import Gap, Minute
from analytics.scheduled.summaries import counts
from topology.models import State, Topology

Width = Literal["minute", "hour", "day"]


class Spacing(NamedTuple):
    """How many points of a width are shown, how far apart, and how a point is named."""

    shown: int
    step: timedelta
    form: str
    truncate: Callable[[str], F | TruncHour | TruncDay]


SPACINGS: dict[Width, Spacing] = {
    "minute": Spacing(60, timedelta(minutes=1), "%H:%M", F),
    "hour": Spacing(48, timedelta(hours=1), "%a %H:00", TruncHour),
    "day": Spacing(28, timedelta(days=1), "%b %d", TruncDay),
}
LABELS = {width: f"{spacing.shown} {width}s" for width, spacing in SPACINGS.items()}
# Time after applying within which minutes are drawn: hours would be a line of one or two points.
FEW_HOURS = timedelta(hours=3)
OBSERVED: Mapping[str, datetime] = MappingProxyType({})


@dataclass(frozen=True)
class History:
    """`unobserved` names the missing sides in words; `no_depth` says why the depth is unknown.

    `recorded_from` is when the record begins, if that is in the shown time and anything is seen.
    """

    spans: tuple[Span, ...]
    unobserved: str
    no_depth: str
    recorded_from: datetime | None = None

    @property
    def is_empty(self) -> bool:
        return not any(one.entered or one.left for one in self.spans)


def read_width(text: str, topology: Topology, now: datetime) -> Width:
    """The width in the address, else hours, and minutes for a topology applied just now."""
    if text in SPACINGS:
        return text
    applied_at = topology.applied_at
    return "minute" if applied_at and now - applied_at < FEW_HOURS else "hour"


def read_history(
    topology: Topology,
    width: Width,
    now: datetime,
    not_observed: frozenset[str],
    begun: Mapping[str, datetime] = OBSERVED,
    deleted_before: datetime | None = None,
) -> History:
    """The newest minutes, hours or days, oldest first.

    `not_observed` are the sides that nobody observes; of others `begun` says since when, if not
    always. Counts from before `deleted_before` may be deleted.
    """
    local = timezone.localtime(now).replace(second=0, microsecond=0)
    hour = local.replace(minute=0)
    last_at = {"minute": local, "hour": hour, "day": hour.replace(hour=0)}[width]
    shown, step, form, truncate = SPACINGS[width]
    starts = [last_at - step * place for place in reversed(range(shown))]
    rows = Minute.objects.filter(topology=topology, minute_at__gte=starts[0])
    sums = rows.annotate(at=truncate("minute_at")).values_list("at").order_by("at")
    by_start = {
        at: (entered, left, late)
        for at, entered, left, late in sums.annotate(Sum("entered"), Sum("left"), Sum("late"))
    }
    no_depth = _no_depth(topology, starts[0], not_observed)
    known_from = min((at for at in (topology.applied_at, *by_start) if at), default=now)

    def is_recorded(at: datetime) -> bool:
        return at + step > known_from and (deleted_before is None or at >= deleted_before)

    def is_seen(side: str, at: datetime) -> bool:
        return side not in not_observed and (side not in begun or at + step > begun[side])

    waiting = None if no_depth else counts.scope_of([topology], now).by_topology
    depth = waiting[topology.pk] if waiting is not None else 0
    spans = []
    for at in reversed(starts):
        if not is_recorded(at):
            spans.append(Span(f"{at:{form}}", None, None, None, None))
            continue
        entered, left, late = by_start.get(at, (0, 0, 0))
        sees_entries, sees_exits = is_seen("entry", at), is_seen("exit", at)
        spans.append(
            Span(
                f"{at:{form}}",
                entered if sees_entries else None,
                left if sees_exits else None,
                late if sees_exits else None,
                max(0, depth) if sees_entries and sees_exits and not no_depth else None,
            )
        )
        depth -= entered - left
    missing = {"entry": "entries", "exit": "deliveries"}
    words = " and ".join(missing[side] for side in ("entry", "exit") if side in not_observed)
    is_observed = {"entry", "exit"} - not_observed
    recorded_from = known_from if is_observed and starts[0] < known_from < now else None
    return History(tuple(reversed(spans)), words, no_depth, recorded_from)


def _no_depth(topology: Topology, from_at: datetime, not_observed: frozenset[str]) -> str:
    """Why the waiting messages of the past are unknown, "" where they are computed."""
    if not_observed:
        return "Waiting messages are unknown, because not all entries and deliveries are observed."
    if topology.state != State.APPLIED:
        return "Waiting messages are unknown, because the topology is not applied."
    if Gap.objects.filter(topology=topology, until_at__gt=from_at).exists():
        return "Waiting messages are unknown, because the recording has gaps in this time."
    return ""
