"""Pages, findings and replays name the same dead-letter queues of what real clients declare."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from django.urls import reverse

from delayboard.dead_letters.replay.observers import make_scene
from delayboard.models import DeadLetterQueue
from tests.builders import make_broker
from tests.site.page_setup import draft, know, signed_in, text_of
from topology.broker.management.definitions_file import read_export
from topology.findings.find import LIVE_RULES, find
from topology.models import Broker, Role
from topology.snapshot import Snapshot

pytestmark = pytest.mark.django_db

CLIENTS = Path(__file__).parents[1] / "topology" / "structure" / "client_definitions"
XQ = "shop.orders.XQ"


def know_client(broker: Broker, client: str) -> Snapshot:
    """What a client declared, three messages in each queue and no consumer."""
    exported = json.loads((CLIENTS / f"{client}.json").read_text(encoding="utf-8"))
    (seen,) = read_export(exported, "").values()
    counts: dict[str, Any] = {queue.name: 3 for queue in seen.definitions.queues}
    return know(broker, *seen.definitions, **counts)


@pytest.mark.parametrize(
    ("client", "work", "dead"),
    [
        ("celery", "shop.orders", set()),
        ("dramatiq", "shop.orders", {XQ}),
        ("faststream", "shop.orders", set()),
        ("golevelup", "shop.orders", {"shop.failed"}),
        ("kombu", "shop.orders", set()),
        ("rascal", "registration_service:user:save", {"dead_letters:registration_service"}),
        ("taskiq", "shop.orders", {"shop.dead_letter"}),
    ],
)
def test_all_name_the_same_dead_letter_queues(client: str, work: str, dead: set[str]) -> None:
    broker = make_broker()
    batch = draft(broker, key=work)
    snapshot = know_client(broker, client)
    user = signed_in(Role.OPERATOR)

    start = text_of(user.get(reverse("broker_start", args=[broker.slug])))
    assert set(re.findall(r'aria-label="Watch ([^"]+)" checked', start)) == dead

    page = text_of(user.get(f"{reverse('dead_letters')}?broker={broker.slug}"))
    proposed = set(
        re.findall(
            r'name="name" value="([^"]+)">Mark as', page.split("The broker configuration")[0]
        )
    )
    assert proposed - {"shop.errors"} == dead

    unread = [one for one in find(snapshot, LIVE_RULES) if one.rule.id == "L11"]
    assert {hit.object[1] for one in unread for hit in one.evidence} == dead

    ends = {name for name in make_scene(batch, snapshot).ends if name != "parked"}
    assert ends == dead


def test_every_page_says_that_rabbitmq_deletes_dead_letters_by_age() -> None:
    broker, user = make_broker(), signed_in(Role.OPERATOR)
    snapshot = know_client(broker, "dramatiq")
    pages = [
        reverse("broker_start", args=[broker.slug]),
        f"{reverse('dead_letters')}?broker={broker.slug}",
        f"{reverse('dead_letter_queue', args=[broker.slug])}?name={XQ}",
    ]
    for page in pages:
        assert "RabbitMQ deletes its messages after 7d" in text_of(user.get(page)), page
    found = find(snapshot)
    (kept,) = [one for one in found if one.rule.id == "F29"]
    assert kept.evidence[0].sentence == f"“{XQ}” deletes dead letters after 7d."
    (unread,) = [one for one in find(snapshot, LIVE_RULES) if one.rule.id == "L11"]
    assert unread.evidence[0].sentence.endswith("RabbitMQ deletes each after 7d.")


def test_a_delay_queue_is_not_marked_because_its_messages_leave_by_themselves() -> None:
    broker, user = make_broker(), signed_in(Role.OPERATOR)
    address = reverse("dead_letter_queue_decide", args=[broker.slug])
    know_client(broker, "kombu")
    sent = {"name": "shop.retry", "confirmed": "1"}
    assert "its messages leave by themselves" in text_of(user.post(address, sent, follow=True))
    assert not DeadLetterQueue.objects.exists()
    know_client(broker, "dramatiq")
    user.post(address, {"name": XQ, "confirmed": "1"})
    assert DeadLetterQueue.objects.get().queue == XQ
