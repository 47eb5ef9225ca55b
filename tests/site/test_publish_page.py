from __future__ import annotations

from typing import Any

import pytest
from django.urls import reverse

from delayboard.models import Publication
from tests.site.desk import know, signed_in, text_of
from topology.models import Broker, Role, State, Topology

pytestmark = pytest.mark.django_db


def test_nothing_is_published_while_the_broker_does_not_answer(broker: Broker) -> None:
    client = signed_in(Role.OPERATOR)
    text = text_of(client.post(reverse("publish"), {"broker": broker.pk, "send": "1"}))
    assert "Nothing was published." in text
    assert Publication.objects.count() == 0


@pytest.mark.parametrize(
    ("typed", "problem"),
    [
        ({"broker": ""}, "Choose a topology, or a broker"),
        ({"headers": "[1]"}, "must be a JSON object"),
        ({"headers": "{"}, "are no JSON"),
        ({"expiration": "soon"}, "is no duration"),
        ({"delay": "delayed"}, "A delay needs a topology"),
        ({"routing_key": "delayboard.tap.orders"}, "That is Delayboard&#x27;s own tap."),
    ],
)
def test_a_wrong_message_is_said_and_not_published(
    broker: Broker, typed: dict[str, str], problem: str
) -> None:
    know(broker)
    values = {"broker": broker.pk, "routing_key": "x", "send": "1", **typed}
    text = text_of(signed_in(Role.OPERATOR).post(reverse("publish"), values))
    assert problem in text
    assert Publication.objects.count() == 0


def test_a_prediction_names_every_stay_and_sends_nothing(pair: Topology) -> None:
    Topology.objects.update(state=State.APPLIED)
    know(pair.broker, *pair.definitions)
    values = {"topology": pair.pk, "delay": "delayed", "predict": "1"}
    text = text_of(signed_in(Role.OPERATOR).post(reverse("publish"), values))
    assert "It arrives in orders after 15s." in text
    assert 'Waits 15s in <span class="name">orders-retry</span>' in text
    assert Publication.objects.count() == 0


@pytest.mark.parametrize("also", ["broker", "exchange", "routing_key"])
def test_a_topology_and_an_exchange_are_not_both_taken(pair: Topology, also: str) -> None:
    Topology.objects.update(state=State.APPLIED)
    know(pair.broker, *pair.definitions)
    values = {"topology": pair.pk, also: pair.broker.pk, "send": "1"}
    text = text_of(signed_in(Role.OPERATOR).post(reverse("publish"), values))
    assert "Choose a topology, or a broker and an exchange, not both." in text
    assert Publication.objects.count() == 0


def test_a_link_through_a_topology_fills_the_form_so_that_it_can_be_sent(pair: Topology) -> None:
    Topology.objects.update(state=State.APPLIED)
    know(pair.broker, *pair.definitions)
    client = signed_in(Role.OPERATOR)
    answer = client.get(reverse("publish"), {"topology": str(pair.pk), "delay": "delayed"})
    form = answer.context["form"]
    filled = {field.name: field.value() or "" for field in form}
    assert (filled["topology"], filled["broker"]) == (str(pair.pk), "")
    text = text_of(client.post(reverse("publish"), filled | {"predict": "1"}))
    assert "It arrives in orders after 15s." in text


def test_a_prediction_of_a_loss_says_so(broker: Broker) -> None:
    know(broker)
    values = {"broker": broker.pk, "exchange": "<b>", "routing_key": "x", "predict": "1"}
    text = text_of(signed_in(Role.OPERATOR).post(reverse("publish"), values))
    assert "<strong>Lost</strong>" in text
    assert "Publish it all the same" in text
    assert "<b>" not in text


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"sent": "refused", "error": "No such exchange."}, "It was not published."),
        ({"sent": "confirmed", "unobservable_why": "Nobody sees it."}, "Nobody sees it."),
        ({"sent": "confirmed", "predicted_delay_ms": 60_000}, "due in"),
    ],
)
def test_a_publication_says_where_it_is(broker: Broker, values: dict[str, Any], said: str) -> None:
    row = Publication.objects.create(broker=broker, size=1, **values)
    text = text_of(signed_in(Role.VIEWER).get(reverse("publication", args=[row.pk])))
    assert said in text
    assert ("data-live-url" in text) is ("predicted_delay_ms" in values)
