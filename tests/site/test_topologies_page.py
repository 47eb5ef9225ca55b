from __future__ import annotations

import re

import pytest
from django.urls import reverse
from django.utils import timezone

from tests.builders import make_broker, make_pair
from tests.site.page_setup import know, signed_in, text_of
from topology.models import Broker, MissingBinding, Role, State, Topology
from topology.patterns.table import PATTERNS

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("sort", "names"),
    [("", "a b"), ("-name", "b a"), ("broker", "b a"), ("-applied", "a b"), ("x", "a b")],
)
def test_topologies_are_sorted_by_a_column(sort: str, names: str) -> None:
    first = make_pair(make_broker(name="Two"), name="a")
    make_pair(make_broker(name="One"), name="b")
    first.applied_at = timezone.now()
    first.save()
    query = {"sort": sort}
    text = text_of(signed_in(Role.VIEWER).get(reverse("topology:topologies"), query))
    assert re.findall(r'class="name" href="/topologies/(\w)/"', text) == names.split()


def test_a_topology_is_created_by_way_of_a_page_of_patterns(broker: Broker) -> None:
    client = signed_in(Role.OPERATOR)
    page = reverse("topology:patterns")
    assert f'href="{page}">Create topology</a>' in text_of(
        client.get(reverse("topology:topologies"))
    )
    text = text_of(client.get(page))
    # No broker was reached: each pattern may be created, and one of them is recommended.
    assert text.count("?kind=") == len(PATTERNS)
    assert "Unavailable" not in text


def test_two_answers_and_a_library_lead_to_one_recommendation(broker: Broker) -> None:
    client, page = signed_in(Role.OPERATOR), reverse("topology:patterns")
    text = text_of(client.get(page, {"purpose": "retry", "client": "rascal", "delays": "<b>"}))
    assert "Plan retry ladder…" in text
    assert "rascal can declare delay queues of its own." in text
    assert "<dt>Entries</dt><dd>by a tap</dd>" in text
    celery = text_of(client.get(page, {"client": "celery", "broker": broker.slug}))
    assert f"?kind=delay_levels&amp;preset=celery&amp;broker={broker.slug}" in celery
    assert "<dt>Deliveries</dt><dd>only with the firehose" in celery


def test_an_exchange_of_the_archived_plugin_is_explained_and_not_created() -> None:
    client = signed_in(Role.OPERATOR)
    text = text_of(client.get(reverse("topology:patterns")))
    explanation = reverse("topology:explain", args=["delayed_exchange"])
    assert "?kind=delayed_exchange" not in text
    assert f'Recognized, but not created: <a href="{explanation}">Delayed exchange</a>.' in text
    page = text_of(client.get(explanation))
    assert "Use delay levels instead" in page
    assert "Plan topology" not in page
    form = reverse("topology:topology_add") + "?kind=delayed_exchange"
    assert client.get(form).status_code == 404


def test_a_pattern_that_the_broker_cannot_have_is_unavailable_with_the_reason(
    broker: Broker,
) -> None:
    # RabbitMQ 3.10.8
    know(broker)
    text = text_of(signed_in(Role.OPERATOR).get(reverse("topology:patterns")))
    assert "?kind=quorum_retry" not in text
    assert "?kind=retry_pair" in text
    assert "Unavailable</span>" in text


def test_a_topology_with_stuck_messages_is_not_green(pair: Topology) -> None:
    Topology.objects.update(state=State.APPLIED)
    know(pair.broker, *pair.definitions)
    client = signed_in(Role.VIEWER)
    pages = [
        reverse("topology:topologies"),
        reverse("topology:topology", args=[pair.slug]),
        reverse("analytics:topology_messages", args=[pair.slug]),
    ]
    green = '<span class="state state-ok">Applied</span>'
    assert all(green in text_of(client.get(page)) for page in pages)
    MissingBinding.objects.create(topology=pair, destination="orders", since_at=timezone.now())
    for page in pages:
        text = text_of(client.get(page))
        assert green not in text
        assert "Not routed</span>" in text


def test_the_messages_that_wait_in_delays_lead_to_their_list(broker: Broker) -> None:
    know(broker)
    text = text_of(signed_in(Role.VIEWER).get(reverse("topology:broker", args=[broker.slug])))
    listed = f'<a href="{reverse("topology:discovered", args=[broker.slug])}#waiting"><strong>'
    assert listed in text
