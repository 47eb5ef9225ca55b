"""What the pages say of destinations without a binding."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from tests.builders import make_tapped
from tests.site.page_setup import know, signed_in, text_of
from topology.definitions import Queue
from topology.models import AuditEntry, Broker, MissingBinding, Role, State, Topology
from topology.patterns.delay_levels import params as delay_levels_params
from topology.patterns.delay_levels.pattern import delay_levels

pytestmark = pytest.mark.django_db
PARAMS = delay_levels_params.Params("own", "shop", 3)


@pytest.fixture
def levels(broker: Broker) -> Topology:
    made = make_tapped(broker, delay_levels.KIND, PARAMS)
    Topology.objects.filter(pk=made.pk).update(state=State.APPLIED, applied_at=timezone.now())
    made.refresh_from_db()
    know(broker, *made.definitions, Queue("sales"))
    for name, stuck in (("sales", 3), ("<b>gone", 0), ("", 2)):
        MissingBinding.objects.create(
            topology=made, destination=name, since_at=timezone.now(), stuck=stuck, waiting=1
        )
    return made


def page(client: Client, topology: Topology) -> str:
    return text_of(client.get(reverse("topology:topology_destinations", args=[topology.slug])))


def test_the_page_names_them_and_offers_to_bind_what_exists(levels: Topology) -> None:
    client = signed_in(Role.OPERATOR)
    text = text_of(client.get(reverse("topology:topology", args=[levels.slug])))
    assert ": 3 messages are stuck, 1 more not due yet." in text
    assert "At least 2 messages are stuck" in text
    assert "In sync" in text
    assert text.index("3 messages are stuck") < text.index("Current state") < text.index("In sync")
    text = page(client, levels)
    assert ">Stuck</span>: no binding" in text
    assert ">Not routed</span>: no binding" in text
    assert text.count("Restore binding</button>") == 1
    assert "has no queue and no exchange" in text
    assert "<b>gone" not in text


def test_a_viewer_sees_them_and_no_button(levels: Topology) -> None:
    client = signed_in(Role.VIEWER)
    assert "Restore binding</button>" not in page(client, levels)
    address = reverse("topology:topology_restore", args=[levels.slug])
    assert client.post(address, {"destination": "sales"}).status_code == 403


def test_what_could_not_be_restored_is_said_and_audited(levels: Topology) -> None:
    client = signed_in(Role.OPERATOR)
    address = reverse("topology:topology_restore", args=[levels.slug])
    assert "Binding not restored." in text_of(
        client.post(address, {"destination": "sales"}, follow=True)
    )
    entry = AuditEntry.objects.get(action="binding restored")
    assert entry.outcome.startswith("failed: ")
    assert "Binding not restored." in text_of(
        client.post(address, {"destination": ""}, follow=True)
    )


def test_the_list_of_topologies_and_now_say_so(levels: Topology) -> None:
    client = signed_in(Role.VIEWER)
    assert ">Stuck</span>" in text_of(client.get(reverse("topology:topologies")))
    text = text_of(client.get(reverse("now")))
    assert "All systems normal" not in text
    assert f"/topologies/{levels.slug}/destinations/" in text


def test_a_restored_one_waits_for_the_retry(levels: Topology) -> None:
    at = timezone.now() - timedelta(seconds=5)
    MissingBinding.objects.filter(destination="sales").update(restored_at=at)
    text = page(signed_in(Role.OPERATOR), levels)
    assert ">Retry pending</span>" in text
    assert "Restore binding</button>" not in text
