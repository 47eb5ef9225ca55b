"""Many messages: the request on the page Publish, the progress, the stop."""

from __future__ import annotations

from typing import Any

import pytest
from django.urls import reverse

from delayboard.live import subjects
from delayboard.models import PublishJob
from delayboard.models.publication import NO_PROPERTIES
from delayboard.publishing.publish_file import KIND
from delayboard.publishing.publish_job import Messages, stop_job
from tests.site.page_setup import know, signed_in, text_of
from tests.topology.builders import a_queue
from topology import work
from topology.broker.properties.read import read_properties
from topology.models import AuditEntry, Broker, Role, State, Topology, WorkState
from topology.operations.topology_rows import create_topology
from topology.patterns.hold_queues.params import KIND as HOLD_QUEUES
from topology.patterns.hold_queues.params import Params

pytestmark = pytest.mark.django_db


def values(broker: Broker, **more: str) -> dict[str, str]:
    typed = {"mode": "exchange", "broker": broker.slug, "routing_key": "work", "send_many": "1"}
    return {**typed, "count": "2000", "rate": "100", **more}


def test_a_job_is_requested_shown_and_stopped(broker: Broker) -> None:
    Broker.objects.update(is_production=True, environment="live")
    know(broker, a_queue("work"))
    client = signed_in(Role.OPERATOR)
    asked = text_of(client.post(reverse("publish"), values(broker)))
    assert "Up to 2\u202f000 messages are published" in asked
    assert not PublishJob.objects.exists()
    answer: Any = client.post(reverse("publish"), values(broker, confirm_broker=broker.name))
    job = PublishJob.objects.get()
    assert answer["Location"] == reverse("publish_job", args=[job.pk])
    assert AuditEntry.objects.get(action="publish job requested").details["number"] == 2_000
    PublishJob.objects.update(published=500, returned=1, returned_why="No queue takes it.")
    page = text_of(client.get(answer["Location"]))
    assert "published <span>500<" in page
    subject = subjects.find("jobs", str(job.pk), 1)
    assert subject is not None
    assert f'data-live-version="{subject.read().version}"' in page
    assert "No queue takes it." in page
    assert "Stop publishing" in page
    stop = reverse("publish_job_stop", args=[job.pk])
    assert signed_in(Role.VIEWER).post(stop).status_code == 403
    client.post(stop)
    page = text_of(client.get(answer["Location"]))
    assert "Stopped" in page
    assert "Stop publishing" not in page
    job = PublishJob.objects.select_related("work").get()
    assert (job.work.state, bytes(job.properties)) == (WorkState.CANCELLED, NO_PROPERTIES)
    page = text_of(client.get(reverse("publish")))
    assert "2\u202f000 messages to the default exchange, key work" in page


@pytest.mark.parametrize(
    ("typed", "problem"),
    [
        ({"count": ""}, "Enter the number of messages."),
        ({"count": "100001"}, "less than or equal to 100000"),
        ({"rate": "5001"}, "less than or equal to 5000"),
        ({"message_id": "é" * 125}, "Enter at most 248 bytes."),
        ({"body": "x" * 262_145}, "at most 256 KiB"),
    ],
)
def test_a_wrong_job_is_refused(broker: Broker, typed: dict[str, str], problem: str) -> None:
    know(broker, a_queue("work"))
    text = text_of(signed_in(Role.OPERATOR).post(reverse("publish"), values(broker, **typed)))
    assert problem in text
    assert not PublishJob.objects.exists()


def test_a_typed_message_id_gets_the_number_of_the_message(broker: Broker) -> None:
    know(broker, a_queue("work"))
    client = signed_in(Role.OPERATOR)
    assert "The number of the message is added" in text_of(client.get(reverse("publish")))
    typed = {"message_id": "order", "content_type": "text/plain"}
    answer: Any = client.post(reverse("publish"), values(broker, **typed))
    job = PublishJob.objects.select_related("work").get()
    message = Messages(job, work.lease_of(job.work)).make(7)
    assert message.properties.message_id == "order-7"
    stop_job(None, job)
    page = text_of(client.get(answer["Location"]))
    assert ">order-1<" in page
    assert ">order-2000<" in page
    job.refresh_from_db()
    kept = read_properties(bytes(job.properties))
    assert (kept.message_id, kept.content_type) == ("order", None)


def test_a_job_through_hold_queues_is_requested(broker: Broker) -> None:
    topology = create_topology(None, broker, HOLD_QUEUES, Params("", ("work",)))
    Topology.objects.update(state=State.APPLIED)
    know(broker, a_queue("work"))
    typed = {"topology": topology.slug, "mode": "topology", "delay": "5s", "target": "work"}
    signed_in(Role.OPERATOR).post(reverse("publish"), values(broker, **typed))
    job = PublishJob.objects.get()
    assert (job.topology, job.routing_key, job.target) == (topology, "delay.5000..work", "work")


def test_the_job_of_a_file_says_how_to_continue(broker: Broker, pair: Topology) -> None:
    own = work.create(KIND, broker.pk, broker=broker, user=None, total=3)
    job = PublishJob.objects.create(
        broker=broker,
        topology=pair,
        work=own,
        number=3,
        rate=5,
        published=2,
        returned=1,
        not_published=[2],
        file_name="timeouts.jsonl",
        file_digest="d",
    )
    page = text_of(signed_in(Role.VIEWER).get(reverse("publish_job", args=[job.pk])))
    assert f"{pair.name}, from the file timeouts.jsonl" in page
    assert "publish the same file again to continue" in page
    assert "Message ids" not in page
