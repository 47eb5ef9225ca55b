"""Removes what the demo made: its topologies and queues, its messages, its generated reports."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.db.models import QuerySet

from analytics.models import NightlyReport, Run, ScheduledMessage
from analytics.models.run import GENERATED
from analytics.results.load import MODELS as RESULTS
from delayboard.dead_letters.replay.batch import change_state
from delayboard.demo.incidents import NEWSLETTER, REFUNDS, REFUNDS_DEAD, RETURNS
from delayboard.demo.reminders import HOLD, KEY, LEVELS, REMINDERS, SHOP
from delayboard.demo.retries import TRADES
from delayboard.demo.seed import DEMO_BROKER
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
from topology.patterns.table import PATTERNS

# Queues that no topology owns.
QUEUES = (
    REMINDERS,
    *(trade.parked for trade in TRADES if trade.parks),
    *(trade.queue for trade in TRADES if trade.gives_back == "publishes"),
    REFUNDS,
    REFUNDS_DEAD,
    RETURNS,
    NEWSLETTER,
)
# Rows of a topology: those of a user's own ones stay.
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
    """Those that the demo created; never one of a user."""
    own = [(flow.kind, flow.params) for flow in (HOLD, LEVELS, SHOP)]
    own += [(trade.kind, trade.params) for trade in TRADES]
    rows = Topology.objects.filter(broker=broker)
    found = [rows.filter(kind=kind, params=PATTERNS[kind].store(params)) for kind, params in own]
    return rows.filter(pk__in=[row.pk for each in found for row in each])


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
        _cancel_replays(user, broker)
        # Before their rows go, so that the worker ends its parkers meanwhile.
        queues = DeadLetterQueue.objects.filter(broker=broker, queue__in=_queues(broker))
        queues.update(parks_automatically=False)
        topologies = demo_topologies(broker)
        for topology in topologies.exclude(state=State.DELETED):
            provision.remove(user, topology, typed_name=topology.name)
        with Management(broker.address) as management:
            # Traffic that still ran may have declared hold queues again.
            names = [str(queue["name"]) for queue in management.queues()]
            late = [name for name in names if name.endswith(f".{REMINDERS}.{KEY}")]
            for name in (*QUEUES, *late):
                management.delete_queue(name, only_if_empty=False)
            management.delete_exchange(REMINDERS)
        with transaction.atomic():
            queues.delete()
            own = Topology.objects.filter(broker=broker).exclude(pk__in=topologies)
            for model in OF_TOPOLOGIES:
                model.objects.filter(broker=broker).exclude(topology__in=own).delete()
            for model in DATA:
                model.objects.filter(broker=broker).delete()
            for figures in RESULTS:
                figures.objects.filter(broker=broker.slug).delete()
            runs = Run.objects.filter(error=GENERATED)
            NightlyReport.objects.filter(day__in=runs.values("day")).delete()
            runs.delete()


def _queues(broker: Broker) -> list[str]:
    """Its queues, also those of the topologies that it created."""
    owned = [one.owned_identities for one in demo_topologies(broker)]
    return [*QUEUES, *(str(name) for one in owned for kind, name, *_ in one if kind == "queue")]


def _cancel_replays(user: Any, broker: Broker) -> None:
    batches = ReplayBatch.objects.filter(broker=broker)
    for batch in batches.exclude(state__in=ENDED_BATCH):
        change_state.cancel(user, batch)
    if batches.exclude(state__in=ENDED_BATCH).exists():
        raise Refusal("A replay of the demo is still running. Try again in a few seconds.")
