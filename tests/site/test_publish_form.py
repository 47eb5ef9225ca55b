"""The fields of the publish form: time zone, own queues, bytes of the body."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.urls import reverse

from delayboard.forms.publish import PublishForm
from delayboard.publishing.form_offers import make_offers
from delayboard.sign_in.time_zone import SESSION_KEY
from tests.builders import make_pair
from tests.site.page_setup import signed_in, text_of
from tests.topology.builders import a_queue
from topology.definitions import Binding, Definitions, Exchange
from topology.models import Broker, Role, State, Topology
from topology.operations.topology_rows import create_topology
from topology.patterns.delay_levels import params as delay_levels_params

pytestmark = pytest.mark.django_db


@pytest.mark.usefixtures("broker")
def test_the_page_names_the_time_zone_that_due_at_is_read_in() -> None:
    client = signed_in(Role.OPERATOR)
    session = client.session
    session[SESSION_KEY] = "Asia/Tokyo"
    session.save()
    assert "Times are in Asia/Tokyo." in text_of(client.get(reverse("publish")))


OWN_QUEUES = [("delayboard.tap.x", "a tap"), ("delayboard-probe-x", "a probe queue")]


@pytest.mark.parametrize(("queue", "kind"), OWN_QUEUES)
def test_nothing_is_published_to_a_queue_of_delayboard(
    broker: Broker, queue: str, kind: str
) -> None:
    problem = f"This queue is {kind} of Delayboard. Enter another queue."
    made = create_topology(
        None, broker, "delay_levels", delay_levels_params.Params("own", "shop", 4)
    )
    Topology.objects.update(state=State.APPLIED)
    for name, typed in (
        ("routing_key", {"broker": broker.slug}),
        ("target", {"topology": made.slug}),
    ):
        form = PublishForm({**typed, name: queue}, brokers=Broker.objects.all())
        assert problem in form.errors[name]


def test_queues_of_delayboard_are_not_offered() -> None:
    own = [name for name, _ in OWN_QUEUES]
    shop = Exchange("shop", "topic")
    bound = [Binding("shop", name, name) for name in own]
    found = Definitions.of([shop, a_queue("work"), *map(a_queue, own), *bound])
    assert make_offers(found, None, "").routing_keys == ("work",)
    assert make_offers(found, None, "shop").routing_keys == ()


def test_fixed_delays_and_the_only_target_are_offered(broker: Broker) -> None:
    pair = make_pair(broker, delay="15s")
    levels = create_topology(
        None, broker, "delay_levels", delay_levels_params.Params("own", "shop", 4)
    )
    found = Definitions.of([a_queue("work"), a_queue("other")])
    offers = make_offers(found, pair, "")
    assert (offers.delays, offers.only_target, offers.targets) == (("15s",), "orders", ("orders",))
    offers = make_offers(found, levels, "")
    assert (offers.delays, offers.only_target, offers.step) == ((), "", "1s")
    # Where no destination is bound yet any can be; then the bound ones are offered.
    assert (offers.bound, set(offers.targets)) == (False, {"work", "other"})
    route = levels.pattern.route(levels.parsed, timedelta(seconds=2), "work")
    offers = make_offers(found | route.declares, levels, "")
    assert (offers.bound, offers.targets) == (True, ("work",))


def test_a_body_keeps_its_spaces(broker: Broker) -> None:
    typed = {"broker": broker.slug, "routing_key": "work", "body": " a\n"}
    form = PublishForm(typed, brokers=Broker.objects.all())
    assert form.is_valid()
    assert form.outgoing().body == b" a\n"
