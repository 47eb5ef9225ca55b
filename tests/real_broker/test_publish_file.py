"""Messages of a file come through delay levels on real brokers, when they are due."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from pytest_django import Settings

from delayboard.models import PublishJob
from tests.brokers import Vhost
from tests.builders import address_of, applied_levels, eventually
from tests.real_broker.refusing import refuse_beside
from topology.broker.amqp.consumer import Consumer
from topology.broker.amqp.frames import Delivery
from topology.broker.management.client import Management
from topology.broker.management.observe import observe
from topology.definitions import Binding, Definitions, Exchange, Queue
from topology.management.exit_codes import ExitCode
from topology.message import DOUBLED_HEADER, PUBLISHED_AT_HEADER, TRACKING_HEADER
from topology.models import Topology
from topology.patterns.delay_levels.params import Params, level_name

pytestmark = pytest.mark.django_db

DELIVERY = "nsb.v2.delay-delivery"
SOON = timedelta(seconds=12)


@pytest.fixture
def management(vhost: Vhost, settings: Settings, tmp_path: Path) -> Iterator[Management]:
    """An endpoint of NServiceBus, “Retail.Sales”, and a queue “work”."""
    settings.VAR = tmp_path
    with Management(address_of(vhost)) as session:
        session.declare_exchange(Exchange("Retail.Sales", "fanout"))
        for queue in ("Retail.Sales", "work"):
            session.declare_queue(Queue(queue))
        session.bind(Binding("Retail.Sales", "Retail.Sales", ""))
        session.declare_exchange(Exchange("work", "fanout"))
        session.bind(Binding("work", "work", ""))
        yield session


def a_timeout(destination: str, due_at: datetime, message_id: str, **values: Any) -> str:
    return json.dumps(
        {
            "destination": destination,
            "due_at": due_at.isoformat(),
            "body": f"{destination} {message_id}",
            "message_id": message_id,
            "headers": {"NServiceBus.IsSagaTimeoutMessage": "True", "x-death": []},
            **values,
        }
    )


def run(topology: Topology, file: Path, *options: str) -> int:
    """The exit code of the command."""
    try:
        call_command("publish", f"--topology={topology.slug}", f"--file={file}", *options)
    except SystemExit as ended:
        return int(str(ended.code))
    return 0


def test_what_another_queue_refused_is_possibly_published_and_marked_by_the_next_run(
    vhost: Vhost, management: Management, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    params = Params("nsb-v2")
    topology = applied_levels(vhost, params)
    for level in range(params.levels):
        refuse_beside(management, level_name(params, level), "#")
    file = tmp_path / "timeouts.jsonl"
    file.write_text(a_timeout("work", datetime.now(UTC) + SOON, "m"))
    assert run(topology, file) == ExitCode.PARTLY
    said = capsys.readouterr().out
    assert "1 lines: 1 possibly published" in said
    assert "line 1 for “work”: possibly published: RabbitMQ rejected the message" in said
    assert "It may have arrived in" in said
    management.delete_queue("log", only_if_empty=False)
    assert run(topology, file) == 0
    assert "may be duplicated" in capsys.readouterr().out
    assert PublishJob.objects.get().repeated == 1
    first, second = taken(vhost, "work", 2)
    tags = {one.message.headers[TRACKING_HEADER] for one in (first, second)}
    assert len(tags) == 1
    assert sum(DOUBLED_HEADER in one.message.headers for one in (first, second)) == 1


def standing(management: Management) -> Definitions:
    return observe(management).declared


def taken(vhost: Vhost, queue: str, number: int) -> list[Delivery]:
    with Consumer(address_of(vhost), queue) as consumer:
        found: list[Delivery] = []
        while len(found) < number:
            batch = consumer.batch(limit=number, limit_bytes=10**6, wait=60, linger=0.2)
            assert batch, f"{len(found)} of {number} came"
            consumer.ack(through=batch[-1].tag)
            found += batch
        assert not consumer.batch(limit=1, limit_bytes=10**6, wait=0.5)
    return found


def test_timeouts_arrive_in_their_queues_when_due_and_a_second_run_adds_nothing(
    vhost: Vhost, management: Management, tmp_path: Path
) -> None:
    topology = applied_levels(vhost, Params("nsb-v2", destinations="exchanges"))
    due_at = datetime.now(UTC) + SOON
    file = tmp_path / "timeouts.jsonl"
    file.write_text(
        "\n".join(
            [
                a_timeout("Retail.Sales", due_at, "late", content_type="text/plain"),
                a_timeout("Retail.Sales", due_at - timedelta(days=2), "past"),
                a_timeout("work", due_at, "work"),
            ]
        )
    )
    before = standing(management)
    assert run(topology, file, "--dry-run") == 0
    assert standing(management) == before
    assert run(topology, file) == 0
    assert run(topology, file) == 0
    past, late = taken(vhost, "Retail.Sales", 2)
    (work,) = taken(vhost, "work", 1)
    ids = [delivery.message.properties.message_id for delivery in (past, late, work)]
    assert ids == ["past", "late", "work"]
    for delivery in (late, work):
        assert timedelta(0) <= delivery.received_at - due_at < timedelta(seconds=4)
    assert past.received_at < due_at
    message = late.message
    assert message.body == b"Retail.Sales late"
    assert (message.properties.content_type, message.properties.delivery_mode) == ("text/plain", 2)
    assert message.headers["NServiceBus.IsSagaTimeoutMessage"] == "True"
    assert {TRACKING_HEADER, PUBLISHED_AT_HEADER} <= set(message.headers)
    topology.refresh_from_db()
    bound = {
        Binding(DELIVERY, name, f"#.{name}", destination_is_queue=False)
        for name in ("Retail.Sales", "work")
    }
    assert set(standing(management)) - set(before) == bound
    assert {binding.identity for binding in bound} <= topology.owned_identities


def test_the_example_of_the_document_is_exported_mapped_and_published(
    vhost: Vhost, management: Management, tmp_path: Path
) -> None:
    """A row of SQL persistence, with the due time of today."""
    document = Path(__file__).resolve().parents[2] / "docs" / "timeouts.md"
    (line, *_) = [one for one in document.read_text().splitlines() if one.startswith('{"Desti')]
    row = json.loads(line) | {"Time": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S}"}
    file = tmp_path / "timeouts.jsonl"
    file.write_text(json.dumps(row))
    topology = applied_levels(vhost, Params("nsb-v2", destinations="exchanges"))
    assert run(topology, file, "--mapping=nservicebus") == 0
    (arrived,) = taken(vhost, "Retail.Sales", 1)
    message = arrived.message
    assert message.body == b'{"OrderId":7}'
    assert message.properties.message_id == "4c0f7c0e-0d4b-4f0b-8a35-ac1b00f5a4a1"
    assert message.properties.content_type == "application/json"
    assert message.headers["NServiceBus.IsSagaTimeoutMessage"] == "True"


def test_what_cannot_go_is_left_out_and_the_rest_goes(
    vhost: Vhost, management: Management, tmp_path: Path
) -> None:
    topology = applied_levels(vhost, Params("own", "shop", 4))
    due_at = datetime.now(UTC)
    file = tmp_path / "timeouts.jsonl"
    lines = [
        a_timeout("nobody", due_at, "1"),
        "no json",
        a_timeout("Retail.Sales", due_at, "2"),
        a_timeout("Sales", due_at, "3"),
        a_timeout("work", due_at + timedelta(days=1), "4"),
        a_timeout("work", due_at, "5"),
    ]
    file.write_text("\n".join(lines))
    management.declare_queue(Queue("Sales"))
    before = standing(management)
    assert run(topology, file, "--dry-run") == 3
    assert standing(management) == before
    assert run(topology, file) == 3
    assert [d.message.body for d in taken(vhost, "work", 1)] == [b"work 5"]
    assert [d.message.body for d in taken(vhost, "Retail.Sales", 1)] == [b"Retail.Sales 2"]
    assert standing(management).queue("nobody") is None
    bound = {binding.destination for binding in standing(management).leaving("shop.delay-delivery")}
    assert bound == {"work", "Retail.Sales"}
    eventually(
        lambda: management.queue("Sales").get("messages") == 0, "nothing is in the refused queue"
    )
