"""Dead letters: what died of the same cause, and the queues where more of it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from delayboard.dead_letters.parked import groups
from delayboard.dead_letters.queues.candidates import Candidate, candidates
from delayboard.dead_letters.queues.confirmed import Queues, destinations, queues
from delayboard.models import MessageGroup
from topology import access, redaction, snapshots
from topology.models import Broker, Role
from topology.redaction import Redaction
from topology.snapshots import Latest
from topology.structure.ends import Ends, find_ends
from topology.views.background import SnapshotCache

# Most queues on the page: ten thousand take a second and three megabytes.
MOST_CANDIDATES = 300

_ends = SnapshotCache[Ends]()


@dataclass(frozen=True)
class BrokerPart:
    """What the page has of one broker; `parked` counts its parked messages."""

    broker: Broker
    latest: Latest
    queues: Queues
    parked: int
    may_operate: bool

    @property
    def others(self) -> int:
        """The queues that match and do not look like dead-letter queues, listed or not."""
        return self.queues.total - len(self.queues.proposed)


@require_safe
def dead_letters(request: HttpRequest) -> HttpResponse:
    """The groups of the brokers, and their queues: confirmed, proposed, others."""
    choice = access.choose_brokers(request)
    group_filter = groups.parse(request.GET.dict())
    now = datetime.now(UTC)
    parked = groups.count_parked(choice.shown)
    parts = [
        BrokerPart(
            broker,
            known,
            _queues(broker, known, group_filter.text, now),
            parked.get(broker.pk, 0),
            access.may(request.user, broker, Role.OPERATOR),
        )
        for broker, known in zip(choice.shown, snapshots.fresh_all(choice.shown), strict=True)
    ]
    context: dict[str, Any] = {
        "brokers": choice.visible,
        "broker": choice.only,
        "shows_brokers": choice.only is None,
        "parts": parts,
        "confirmed": sum(len(part.queues.confirmed) for part in parts),
        "proposed": sum(len(part.queues.proposed) for part in parts),
        "operates": any(part.may_operate for part in parts),
        "group_filter": group_filter,
        "next": request.get_full_path(),
    }
    if choice.only:
        (part,) = parts
        context |= {
            "latest": part.latest,
            "queues": part.queues,
            "may_operate": part.may_operate,
            "may_redact": access.may(request.user, choice.only, Role.ADMIN),
        }
    rules = redaction.rules_by_broker(request.user, choice.shown)
    context |= _groups(choice.shown, group_filter, rules, request.GET.get("trend", ""), now)
    return render(request, "delayboard/dead_letters.html", context)


def _groups(
    brokers: Sequence[Broker],
    group_filter: groups.GroupFilter,
    rules: Mapping[int, Redaction],
    trend: str,
    now: datetime,
) -> dict[str, Any]:
    page = groups.page(brokers, group_filter, rules)
    span = trend if trend in groups.SPANS else "day"
    drawn = groups.trends(page.rows, groups.SPANS[span], now)
    return {
        "page": page,
        "lines": [(group, drawn[group.pk]) for group in page.rows],
        "sorts": groups.SORTS,
        "spans": groups.SPANS,
        "span": span,
        "has_groups": MessageGroup.objects.filter(broker__in=brokers).exists(),
    }


def _queues(broker: Broker, known: Latest, text: str, now: datetime) -> Queues:
    found = find_candidates(broker, known)
    is_current = known.is_reachable
    return queues(broker, found, text, now, most=MOST_CANDIDATES, is_current=is_current)


def find_candidates(broker: Broker, known: Latest) -> list[Candidate] | None:
    """None while the broker has never answered."""
    snapshot = known.snapshot
    if snapshot is None:
        return None
    ends = _ends.get(broker.pk, snapshot, lambda: find_ends(snapshot))
    return candidates(snapshot, destinations(broker, snapshot), ends)
