"""The pages of a busy wait: its explanation, its form, its own page, and publishing through it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.urls import reverse

from tests.site.desk import know, signed_in, text_of
from tests.topology.builders import a_queue
from topology.models import Broker, Role, State, Topology
from topology.patterns import busy_wait
from topology.provision import create_topology

pytestmark = pytest.mark.django_db
HOOKS = busy_wait.Params("hooks", (timedelta(minutes=1), timedelta(minutes=5)))


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
    assert "laps a second = messages waiting divided by" in explained
    form = text_of(client.get(reverse("topology:topology_add"), {"kind": busy_wait.KIND}))
    assert "1000 laps a second" in form
    assert "rounded up to one" in form


def test_its_page_says_what_a_lap_takes_and_what_nobody_sees(hooks: Topology) -> None:
    text = text_of(signed_in(Role.VIEWER).get(reverse("topology:topology", args=[hooks.slug])))
    assert "A lap takes 1m" in text
    assert "no tap sees the default exchange" in text
    assert "hooks-busy-wait" in text


def test_a_delay_that_is_no_multiple_is_rounded_up_and_the_prediction_says_so(
    hooks: Topology,
) -> None:
    values = {"topology": hooks.pk, "delay": "150s", "predict": "1"}
    text = text_of(signed_in(Role.OPERATOR).post(reverse("publish"), values))
    assert "2m30s is rounded up to 3m." in text
    assert "It arrives in hooks after 3m." in text
