"""Removes what the demo made: its topologies and queues, its messages, its generated reports."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.db.models import Q, QuerySet

from analytics.models import NightlyReport, Run, ScheduledMessage
from analytics.models.run import GENERATED
from analytics.results.load import MODELS as RESULTS
from delayboard.dead_letters.replay import batch_state
from delayboard.demo import incidents
from delayboard.demo.script import DEMO_BROKER, FLOWS, MAIL, REMINDERS
from delayboard.models import (
    DeadLetterQueue,
    MessageGroup,
    ParkedChange,
    ParkedMessage,
    Parking,
    ParkSession,
    Publication,
    ReplayBatch,
    ScheduledChange,
)
from delayboard.models.replay import ENDED_BATCH
from topology import audit
from topology.broker.management.client import Management
from topology.models import Broker, FindingPeriod, State, Topology
from topology.operations import provision
from topology.operations.ownership import Refusal

# Queues that no topology owns.
QUEUES = (
    REMINDERS,
    *(flow.queue for flow in FLOWS if flow.gives_back == "publishes"),
    *(flow.dead for flow in FLOWS if flow.dead),
    *(queue.name for queue in incidents.QUEUES),
)
# Rows of the demo's topologies, which are deleted; those of a user's own ones stay.
OF_TOPOLOGIES: tuple[Any, ...] = (ScheduledChange, Publication, ScheduledMessage)
DATA: tuple[Any, ...] = (
    ReplayBatch,
    ParkedChange,
    ParkedMessage,
    ParkSession,
    Parking,
    MessageGroup,
    FindingPeriod,
)


def demo_broker() -> Broker | None:
    return Broker.objects.filter(name=DEMO_BROKER, environment="demo").first()


def demo_topologies(broker: Broker) -> QuerySet[Topology]:
    """The topologies that the demo created; never one of a user."""
    own = Q()
    for flow in FLOWS:
        own |= Q(kind=flow.kind, params=flow.pattern.store(flow.params))
    return Topology.objects.filter(own, broker=broker)


def is_removed(broker: Broker) -> bool:
    """Whether somebody removed the demo: all topologies that it created are deleted."""
    topologies = demo_topologies(broker)
    return topologies.exists() and not topologies.exclude(state=State.DELETED).exists()


def remove_demo(user: Any, broker: Broker) -> None:
    """Delete the topologies with their messages, then the queues, then the rows.

    Raises BrokerError, and Refusal while other objects use them or a replay still runs; another
    call deletes the rest.
    """
    with audit.recorded(user, "demo removed", broker=broker, what=broker.name):
        batches = ReplayBatch.objects.filter(broker=broker).exclude(state__in=ENDED_BATCH)
        for batch in batches:
            batch_state.cancel(user, batch)
        if batches.all().exists():
            raise Refusal("A replay of the demo is still running. Try again in a few seconds.")
        # Before their rows go, so that the worker ends its parkers meanwhile.
        topologies = demo_topologies(broker)
        owned = [one.owned_identities for one in topologies]
        names = {str(name) for one in owned for kind, name, *_ in one if kind == "queue"}
        queues = DeadLetterQueue.objects.filter(broker=broker, queue__in={*names, *QUEUES})
        queues.update(parks_automatically=False)
        for topology in topologies.exclude(state=State.DELETED):
            provision.remove(user, topology, typed_name=topology.name)
        with Management(broker.address) as management:
            # Traffic that still ran may have declared hold queues again.
            held = [str(queue["name"]) for queue in management.queues()]
            late = [name for name in held if name.endswith(f".{REMINDERS}.{MAIL}")]
            for name in (*QUEUES, *late):
                management.delete_queue(name, only_if_empty=False)
            management.delete_exchange(REMINDERS)
        with transaction.atomic():
            queues.delete()
            others = Topology.objects.filter(broker=broker).exclude(pk__in=topologies)
            for model in OF_TOPOLOGIES:
                model.objects.filter(broker=broker).exclude(topology__in=others).delete()
            for model in DATA:
                model.objects.filter(broker=broker).delete()
            for figures in RESULTS:
                figures.objects.filter(broker=broker.slug).delete()
            runs = Run.objects.filter(error=GENERATED)
            NightlyReport.objects.filter(day__in=runs.values("day")).delete()
            runs.delete()
