from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from analytics.models import Firehose
from analytics.recorder import firehose_switch as firehose
from analytics.recorder.firehose_switch import SwitchState
from delayboard.models import BackgroundTask
from tests.site.page_setup import signed_in, text_of
from topology.models import Broker, Role

pytestmark = pytest.mark.django_db


def page_of(broker: Broker) -> str:
    return reverse("firehose", args=[broker.slug])


def switch(client: Client, broker: Broker, **values: str) -> str:
    """Post the form and follow it to the page that answers."""
    address = reverse("firehose_switch", args=[broker.slug])
    return text_of(client.post(address, values, follow=True))


def test_a_refusal_of_the_broker_is_a_sentence_and_leaves_nothing(broker: Broker) -> None:
    client = signed_in(Role.ADMIN, broker)
    text = switch(client, broker, switch="on")
    assert "Firehose not enabled. Nothing listens at" in text
    assert "The status is unknown" in text
    assert not Firehose.objects.exists()
    Firehose.objects.create(broker=broker, switched_on_by="ada")
    assert "Firehose not disabled. Nothing listens at" in switch(client, broker, switch="off")
    assert Firehose.objects.exists()


@pytest.mark.parametrize(
    ("late", "values", "said"),
    [
        (False, {}, "Running"),
        (True, {}, "No heartbeat"),
        (False, {"last_error": "The <b>disk</b> is full."}, "The &lt;b&gt;disk&lt;/b&gt; is full."),
        (
            False,
            {"details": {"trouble": "It lost its tag."}},
            "Delayboard cannot keep the firehose enabled: It lost its tag.",
        ),
    ],
)
def test_the_recorders_state_stands_on_the_page(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, late: bool, values: dict[str, str], said: str
) -> None:
    monkeypatch.setattr(firehose, "read_state", lambda *_: SwitchState(True, copies=12345, full=3))
    Firehose.objects.create(broker=broker, switched_on_by="ada")
    text = text_of(signed_in(Role.VIEWER).get(page_of(broker)))
    assert "Not started" in text
    beat_at = timezone.now() - timedelta(hours=late)
    BackgroundTask.objects.create(
        key=f"firehose:{broker.slug}", name="it", beat_at=beat_at, **values
    )
    text = text_of(signed_in(Role.VIEWER).get(page_of(broker)))
    assert said in text
    assert "12 345, the queue is 3 % full" in text.replace("\u202f", " ").replace("\u00a0", " ")


def test_it_is_linked_from_the_brokers_page(broker: Broker) -> None:
    address = reverse("topology:broker", args=[broker.slug])
    assert page_of(broker) in text_of(signed_in(Role.VIEWER).get(address))
