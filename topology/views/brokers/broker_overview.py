"""The overview of a broker: recognized topologies, waiting messages, dead letters, findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.utils import timezone

from topology.findings.rules.live import UNREAD
from topology.models import Broker
from topology.operations.finding_rows import find_mutes
from topology.snapshot import Snapshot
from topology.views.brokers.discovered_topologies import recognize_snapshot
from topology.views.findings import FindingLine, get_findings, make_line

WORST = 3


@dataclass(frozen=True)
class BrokerOverview:
    """Numbers are None while they are unknown; `worst` are findings without muted ones.

    `doubts` are sentences on what the account may not see.
    """

    recognized: int | None
    waiting: int | None
    dead: int | None
    worst: Sequence[FindingLine]
    doubts: Sequence[str]


def make_overview(broker: Broker, snapshot: Snapshot) -> BrokerOverview:
    """Sends no request to the broker."""
    recognition = recognize_snapshot(broker, snapshot)
    findings = get_findings(broker, snapshot)
    mutes = find_mutes(broker, timezone.now())
    found = findings.value if findings else ()
    unread = (one.evidence for one in found if one.rule is UNREAD)
    return BrokerOverview(
        recognized=len(recognition.value.found) if recognition else None,
        waiting=recognition.value.waiting if recognition else None,
        dead=sum(int(each.value) for evidence in unread for each in evidence) if findings else None,
        worst=[make_line(one) for one in found if one.key not in mutes][:WORST],
        doubts=_find_doubts(broker, snapshot),
    )


def _find_doubts(broker: Broker, snapshot: Snapshot) -> Sequence[str]:
    if snapshot.node:
        return snapshot.doubts
    sentence = (
        f"RabbitMQ does not report its node to the user “{broker.username}”. Add the tag "
        f"“monitoring” (rabbitmqctl set_user_tags {broker.username} monitoring)."
    )
    return (*snapshot.doubts, sentence)
