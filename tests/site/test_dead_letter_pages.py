from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.messages import get_messages
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from delayboard.dead_letters.queues import peek
from delayboard.models import DeadLetterQueue, ReplayBatch, TargetMode
from tests.site.page_setup import know, parked_messages, signed_in, text_of
from topology import snapshots
from topology.definitions import Queue
from topology.models import AuditEntry, Broker, Role
from topology.snapshots import Latest

pytestmark = pytest.mark.django_db


@pytest.fixture
def looked(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Client:
    seen = parked_messages(b'{"n": 1}', b"<script>alert(2)</script>", bytes(range(40)), b"")
    allowed = peek.Permission(True, ("It is safe.",))
    monkeypatch.setattr(peek, "peek_queue", lambda *_, **__: peek.Peek(seen, False, allowed))
    know(broker, Queue("parked"), Queue("work"))
    return signed_in(Role.OPERATOR)


def test_an_unknown_queue_is_not_found(broker: Broker) -> None:
    know(broker, Queue("parked"))
    address = reverse("dead_letter_queue", args=["test-broker"])
    for name in ("", "other"):
        assert signed_in(Role.ADMIN).get(address, {"name": name}).status_code == 404


def test_a_look_shows_every_kind_of_body_and_is_audited(looked: Client) -> None:
    address = reverse("dead_letter_queue", args=["test-broker"])
    text = text_of(looked.post(f"{address}?name=parked"))
    assert text.count('name="message"') == 4
    assert "&lt;script&gt;alert(2)&lt;/script&gt;" in text
    assert "<script>alert" not in text
    assert "00000000  00 01 02" in text
    assert "The body is empty." in text
    assert AuditEntry.objects.filter(action="queue peeked", what="parked").count() == 1


def test_chosen_messages_are_parked_and_become_a_draft_with_the_typed_target(
    looked: Client, broker: Broker
) -> None:
    chosen = [parked_message.handle for parked_message in parked_messages(b'{"n": 1}', b"")]
    DeadLetterQueue.objects.create(
        broker=broker, queue="parked", is_confirmed=True, decided_at=timezone.now()
    )
    values = {"name": "parked", "message": chosen, "target": "typed", "routing_key": "work"}
    address = reverse("replay_prepare", args=["test-broker"])
    text = text_of(looked.post(address, values, follow=True))
    assert "Preparation" in text
    made = ReplayBatch.objects.get()
    assert made.parking is not None
    assert made.parking.handles == chosen
    assert (made.mode, made.key) == (TargetMode.TYPED, "work")
    assert reverse("parking", args=["test-broker", made.parking.pk]) in text


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"message": []}, "Select 1 to 200 messages of the list"),
        ({"target": "typed"}, "Type an exchange and a key"),
        ({"target": "typed", "exchange": "x" * 300}, "more than 255 bytes"),
        ({"name": "gone"}, "The replay was not prepared."),
    ],
)
def test_a_replay_that_cannot_be_prepared_is_explained(
    looked: Client, broker: Broker, values: dict[str, str], said: str
) -> None:
    chosen = [parked_message.handle for parked_message in parked_messages(b"")]
    DeadLetterQueue.objects.create(
        broker=broker, queue="parked", is_confirmed=True, decided_at=timezone.now()
    )
    address = reverse("replay_prepare", args=["test-broker"])
    answer = looked.post(address, {"name": "parked", "message": chosen} | values)
    reported = [str(message) for message in get_messages(answer.wsgi_request)]
    assert len(reported) == 1
    assert said in reported[0]
    assert ReplayBatch.objects.count() == 0


def test_a_queue_that_nobody_confirmed_is_confirmed_before_a_replay(looked: Client) -> None:
    address = reverse("dead_letter_queue", args=["test-broker"])
    text = text_of(looked.post(f"{address}?name=parked"))
    assert "You can park only a queue that is marked as a dead-letter queue" in text
    assert reverse("dead_letter_queue_decide", args=["test-broker"]) in text


def test_a_queue_of_a_dead_broker_says_what_is_unknown_and_what_is_old(broker: Broker) -> None:
    address = f"{reverse('dead_letter_queue', args=['test-broker'])}?name=parked"
    client = signed_in(Role.OPERATOR, broker)
    snapshots._latest[broker.pk] = Latest(None, datetime.now(UTC) + timedelta(days=1), "No answer.")
    text = text_of(client.get(address))
    assert "Test broker cannot be reached.</strong> No answer." in text
    assert "Type, messages and consumers are unknown until Test broker answers." in text
    assert "classic queue" not in text
    know(broker, Queue("parked"), error="No answer.", parked=3)
    text = text_of(client.get(address))
    assert "At the last answer: classic queue, messages: <strong>3</strong>" in text
