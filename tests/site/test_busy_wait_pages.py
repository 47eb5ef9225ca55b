"""The pages of a busy wait: its explanation, its form, its own page, and publishing through it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.urls import reverse

from delayboard.models import Publication
from tests.site.page_setup import know, signed_in, text_of
from tests.topology.builders import a_queue
from topology.models import Broker, Role, State, Topology
from topology.operations.topology_rows import create_topology, take_over
from topology.patterns.busy_wait import params as busy_wait_params
from topology.patterns.busy_wait.pattern import busy_wait

pytestmark = pytest.mark.django_db
HOOKS = busy_wait_params.Params("hooks", (timedelta(minutes=1), timedelta(minutes=5)))


@pytest.fixture
def hooks(broker: Broker) -> Topology:
    topology = create_topology(None, broker, busy_wait.KIND, HOOKS)
    topology.state = State.APPLIED
    topology.save()
    know(broker, *busy_wait.definitions(HOOKS), a_queue("hooks"))
    return topology


def test_its_explanation_and_its_form_say_the_price(broker: Broker) -> None:
    client = signed_in(Role.ADMIN)
    explained = text_of(client.get(reverse("topology:explain", args=[busy_wait.KIND])))
    assert "Each waiting message costs one publish per lap" in explained
    form = text_of(client.get(reverse("topology:topology_add"), {"kind": busy_wait.KIND}))
    assert "1000 publishes a second" in form
    assert "rounds other delays up to whole laps" in form


def test_its_page_says_what_a_lap_takes_and_what_nobody_sees(hooks: Topology) -> None:
    text = text_of(signed_in(Role.VIEWER).get(reverse("topology:topology", args=[hooks.slug])))
    assert "A lap takes 1m" in text
    assert "no tap observes the default exchange" in text
    assert "hooks-busy-wait" in text


def test_a_delay_that_is_no_multiple_is_rounded_up_and_the_prediction_says_so(
    hooks: Topology,
) -> None:
    values = {"topology": hooks.slug, "delay": "150s", "predict": "1"}
    text = text_of(signed_in(Role.OPERATOR).post(reverse("publish"), values))
    assert "2m 30s is rounded up to 3m." in text
    assert "The message arrives in hooks after 3m." in text


@pytest.fixture
def adopted(broker: Broker) -> Topology:
    know(broker, *busy_wait.definitions(HOOKS), a_queue("hooks"))
    return take_over(None, broker, busy_wait.KIND, HOOKS)


@pytest.mark.parametrize("pressed", ["predict", "send"])
def test_through_one_that_others_read_nothing_is_published_with_a_delay(
    adopted: Topology, pressed: str
) -> None:
    values = {"topology": adopted.slug, "delay": "3m", pressed: "1"}
    text = text_of(signed_in(Role.OPERATOR).post(reverse("publish"), values))
    assert "decides when messages of this adopted topology are due" in text
    assert "The message arrives in" not in text
    assert Publication.objects.count() == 0


def test_through_one_that_others_read_a_message_without_a_delay_arrives_at_once(
    adopted: Topology,
) -> None:
    values = {"topology": adopted.slug, "predict": "1"}
    text = text_of(signed_in(Role.OPERATOR).post(reverse("publish"), values))
    assert "The message arrives in hooks at once." in text


def test_a_plan_of_what_stands_already_says_that_our_forwarder_begins(hooks: Topology) -> None:
    Topology.objects.update(state=State.PLANNED)
    text = text_of(signed_in(Role.VIEWER).get(reverse("topology:topology", args=[hooks.slug])))
    assert "starts monitoring and the forwarder." in text


def test_the_page_of_one_that_others_read_shows_no_code_with_a_header_that_is_guessed(
    adopted: Topology, broker: Broker
) -> None:
    client = signed_in(Role.VIEWER)
    text = text_of(client.get(reverse("topology:topology_code", args=[adopted.slug])))
    (forwarder,) = busy_wait.forwarders(HOOKS)
    assert forwarder.due_header not in text
    assert "Delayboard cannot show code" in text
    Topology.objects.update(is_adopted=False)
    text = text_of(client.get(reverse("topology:topology_code", args=[adopted.slug])))
    assert forwarder.due_header in text
