"""A publish job through hold queues whose worker dies and whose connections break."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from urllib.parse import quote
from uuid import UUID

import pytest
from django.db.models.functions import Now
from pytest_django import Settings

from delayboard.demo.node import PrivateNode
from delayboard.models import PublishJob
from delayboard.publishing.publish_job import WINDOW, request_job
from delayboard.publishing.publish_message import OutgoingMessage, predict_message
from tests.brokers import Vhost, call_api, every_generation
from tests.builders import address_of, applied_topology, eventually, make_broker
from tests.faults.forking import forked
from topology import snapshots
from topology.broker.amqp.consumer import getter
from topology.broker.management.client import Management
from topology.definitions import Queue
from topology.delays import parse_delay
from topology.message import DOUBLED_HEADER
from topology.models import Topology, Work, WorkState
from topology.operations.topology_rows import create_topology
from topology.patterns.hold_queues.params import KIND, Params
from topology.patterns.hold_queues.pattern import hold_queues

pytestmark = pytest.mark.django_db(transaction=True)
NUMBER, RATE, DELAY = 3_000, 500, parse_delay("2s")


@pytest.fixture(autouse=True)
def event_log(settings: Settings, tmp_path: Path) -> None:
    settings.EVENT_LOG = tmp_path / "log"


def request(vhost: Vhost) -> PublishJob:
    """Many messages into a hold queue that expires 2 seconds after the last message left."""
    broker = make_broker(vhost)
    params = Params("", ("work",), (), "double")
    topology: Topology = applied_topology(create_topology(None, broker, KIND, params))
    with Management(address_of(vhost)) as management:
        management.declare_queue(Queue("work"))
    way = hold_queues.route(params, DELAY, "work")
    outgoing = OutgoingMessage(
        way,
        b"{}",
        topology=topology,
        target="work",
        delay=DELAY,
    )
    snapshot = snapshots.fresh(broker).snapshot
    assert snapshot is not None
    prediction = predict_message(broker, snapshot, outgoing)
    return request_job(None, broker, outgoing, prediction, number=NUMBER, rate=RATE)


def read_all(vhost: Vhost, found: list[tuple[str, bool]]) -> None:
    with getter(address_of(vhost), "work") as source:
        while delivery := source.get():
            message = delivery.message
            found.append((message.properties.message_id or "", DOUBLED_HEADER in message.headers))
            source.ack([delivery.tag])


def break_connections(node: PrivateNode, vhost: Vhost) -> None:
    names = [one["name"] for one in call_api(node, "GET", f"vhosts/{vhost.name}/connections")]
    for name in names:
        call_api(node, "DELETE", f"connections/{quote(name, safe='')}")


def has_begun(key: UUID, number: int) -> bool:
    return PublishJob.objects.filter(pk=key, begun__gte=number).exists()


@every_generation
def test_each_message_of_a_job_arrives_once_or_is_marked(
    vhost: Vhost, broker_node: PrivateNode
) -> None:
    job = request(vhost)
    for begun in (NUMBER // 4, NUMBER // 2):
        with forked("worker"):
            eventually(partial(has_begun, job.pk, begun), "the job goes on")
        Work.objects.filter(pk=job.work_id).update(leased_until_at=Now())
    with forked("worker"):
        eventually(lambda: has_begun(job.pk, NUMBER * 5 // 8), "the job goes on")
        break_connections(broker_node, vhost)
        done = Work.objects.filter(pk=job.work_id, state=WorkState.DONE)
        eventually(done.exists, "the job is done", seconds=120)
    found: list[tuple[str, bool]] = []
    names = {f"{job.pk}-{number}" for number in range(1, NUMBER + 1)}

    def all_arrived() -> bool:
        read_all(vhost, found)
        return {name for name, _ in found} == names

    eventually(all_arrived, "all messages arrive", seconds=60)
    often = Counter(name for name, _ in found)
    doubled = {name for name, times in often.items() if times > 1}
    assert doubled <= {name for name, is_marked in found if is_marked}
    job.refresh_from_db()
    assert (job.published, job.returned, job.unanswered) == (NUMBER, 0, [])
    marked = sum(is_marked for _, is_marked in found)
    assert len(found) - NUMBER <= marked <= job.repeated <= 4 * WINDOW
