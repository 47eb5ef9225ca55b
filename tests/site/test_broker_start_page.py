"""The setup of a new broker: what is proposed, and that only the last button changes something."""

from __future__ import annotations

import re

import pytest
from django.urls import reverse
from django.utils import timezone

from delayboard.models import DeadLetterQueue
from tests.builders import make_broker
from tests.site.page_setup import know, signed_in, text_of
from tests.topology.builders import a_queue
from topology import snapshots
from topology.models import AuditEntry, Broker, Role

pytestmark = pytest.mark.django_db


@pytest.fixture
def broker() -> Broker:
    """A work queue that dead-letters into `dead`, and one that a consumer may fill."""
    broker = make_broker()
    queues = (a_queue("orders", dlx="", key="dead"), a_queue("dead"), a_queue("shop_error"))
    know(broker, *queues, dead=7)
    return broker


def address(broker: Broker) -> str:
    return reverse("broker_start", args=[broker.slug])


def test_probable_dead_letter_queues_are_proposed_and_nothing_is_changed(broker: Broker) -> None:
    text = text_of(signed_in(Role.OPERATOR).get(address(broker)))
    assert 'value="dead" aria-label="Watch dead" checked' in text
    assert 'value="shop_error" aria-label="Watch shop_error">' in text
    assert "Watch orders" not in text
    url = reverse("topology:discovered", args=[broker.slug])
    assert re.search(f'href="{url}#waiting"><strong>.*?messages waiting in recognized', text)
    assert not DeadLetterQueue.objects.exists()
    assert not AuditEntry.objects.filter(broker=broker).exists()


def test_the_last_button_marks_and_parks_what_was_chosen(broker: Broker) -> None:
    client = signed_in(Role.OPERATOR)
    chosen = {"mark": ["dead", "shop_error"], "park": ["shop_error"]}
    text = text_of(client.post(address(broker), chosen, follow=True))
    assert "is set up" in text
    rows = DeadLetterQueue.objects.values_list("queue", "is_confirmed", "parks_automatically")
    assert sorted(rows) == [("dead", True, False), ("shop_error", True, True)]
    assert "proposes no more dead-letter queues" in text_of(client.get(address(broker)))


def test_a_queue_that_is_gone_is_named_and_the_others_are_marked(broker: Broker) -> None:
    chosen = {"mark": ["dead", "gone"]}
    text = text_of(signed_in(Role.OPERATOR).post(address(broker), chosen, follow=True))
    assert "gone: Test broker has no queue with this name." in text
    assert DeadLetterQueue.objects.get().queue == "dead"


def test_nothing_is_marked_while_the_broker_has_not_answered(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = snapshots.Latest(None, timezone.now(), "No answer.")
    monkeypatch.setattr(snapshots, "fresh", lambda one: unknown)
    client = signed_in(Role.OPERATOR)
    assert "No data yet" in text_of(client.get(address(broker)))
    text = text_of(client.post(address(broker), {"mark": ["dead"]}, follow=True))
    assert "Nothing was changed." in text
    assert not DeadLetterQueue.objects.exists()
