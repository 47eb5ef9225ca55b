from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from delayboard.dead_letters import browse
from delayboard.dead_letters.replay import batch as batches
from delayboard.models import ItemState, ReplayBatch
from tests.site.desk import draft, know, letters, signed_in, text_of
from topology.definitions import Queue
from topology.models import AuditEntry, Broker, Role, Work, WorkState

pytestmark = pytest.mark.django_db


@pytest.fixture
def looked(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Client:
    seen = letters(b'{"n": 1}', b"<script>alert(2)</script>", bytes(range(40)), b"")
    allowed = browse.Permission(True, ("It is safe.",))
    monkeypatch.setattr(browse, "look", lambda *_: browse.Look(seen, False, allowed))
    know(broker, Queue("parked"), Queue("work"))
    return signed_in(Role.OPERATOR)


def test_an_unknown_queue_is_not_found(broker: Broker) -> None:
    know(broker, Queue("parked"))
    address = reverse("dead_letter_queue", args=["test-broker"])
    for name in ("", "other"):
        assert signed_in(Role.ADMIN).get(address, {"name": name}).status_code == 404


def test_a_look_shows_every_kind_of_body_and_is_audited(looked: Client) -> None:
    address = reverse("dead_letter_queue", args=["test-broker"])
    text = text_of(looked.get(address, {"name": "parked", "look": "1"}))
    assert text.count('name="message"') == 4
    assert "&lt;script&gt;alert(2)&lt;/script&gt;" in text
    assert "<script>alert" not in text
    assert "00000000  00 01 02" in text
    assert "The body is empty." in text
    assert AuditEntry.objects.filter(action="queue looked into", what="parked").count() == 1


def test_chosen_messages_become_a_draft_with_the_typed_target(looked: Client) -> None:
    chosen = [letter.handle for letter in letters(b'{"n": 1}', b"")]
    values = {"name": "parked", "message": chosen, "target": "typed", "routing_key": "work"}
    address = reverse("replay_prepare", args=["test-broker"])
    text = text_of(looked.post(address, values, follow=True))
    assert "Dry run of replay" in text
    assert "All 2 would arrive." in text
    assert Work.objects.count() == 0


@pytest.mark.parametrize(
    ("values", "said"),
    [({}, "No message was chosen"), ({"target": "default"}, "type the exchange and key")],
)
def test_a_replay_that_cannot_be_prepared_is_explained(
    looked: Client, values: dict[str, str], said: str
) -> None:
    chosen = [letter.handle for letter in letters(b"")] if values else []
    address = reverse("replay_prepare", args=["test-broker"])
    answer = looked.post(address, {"name": "parked", "message": chosen, **values}, follow=True)
    assert said in text_of(answer)
    assert ReplayBatch.objects.count() == 0


def test_a_bad_verdict_wants_a_typed_yes(broker: Broker) -> None:
    made = draft(broker, key="nowhere")
    client = signed_in(Role.OPERATOR)
    address = reverse("replay_batch", args=[made.pk])
    assert "2 of 2 would not arrive well." in text_of(client.get(address))
    start = reverse("replay_start", args=[made.pk])
    assert "Not started." in text_of(client.post(start, {"typed": "no"}, follow=True))
    assert Work.objects.count() == 0
    text = text_of(client.post(start, {"typed": "yes"}, follow=True))
    assert 'data-live="replay/state">waiting' in text
    assert "The worker gives no sign of life" in text
    assert f'data-live-url="/ws/replays/{made.pk}/"' in text
    cancel = reverse("replay_cancel", args=[made.pk])
    assert "Cancelled" in text_of(client.post(cancel, follow=True))


def test_an_ended_replay_counts_what_was_left_and_marks_possible_copies(broker: Broker) -> None:
    made = draft(broker)
    batches.start(None, made, despite_verdict=False)
    Work.objects.update(state=WorkState.DONE)
    made.items.filter(position=1).update(state=ItemState.DONE, may_be_duplicated=True)
    made.items.filter(position=2).update(state=ItemState.RETURNED, error="No queue took it.")
    text = text_of(signed_in(Role.VIEWER).get(reverse("replay_batch", args=[made.pk])))
    assert "1 of 2 was not replayed." in text
    assert "may be duplicated" in text
    assert "No queue took it." in text
    assert "data-live-url" not in text
