"""The warning of a stream tap on each page, and the button that replaces it."""

from __future__ import annotations

import pytest
import responses
from django.test import Client
from django.urls import reverse

from tests.builders import make_broker, make_pair, make_user
from tests.topology.test_provision import takes_changes
from topology.models import Broker, Role, State, Topology

pytestmark = pytest.mark.django_db
BUTTON = "Replace tap<"


def signed_in(role: Role, broker: Broker | None = None) -> Client:
    client = Client()
    client.force_login(make_user(f"{role.label} of {broker}", role, broker))
    return client


@pytest.fixture
def stream() -> Topology:
    """As one that was applied before the default changed."""
    row = make_pair(make_broker(), tap_type="stream")
    Topology.objects.update(state=State.APPLIED)
    row.refresh_from_db()
    return row


def pages(client: Client, topology: Topology) -> dict[str, str]:
    addresses = {
        "now": reverse("now"),
        "topologies": reverse("topology:topologies"),
        "topology": reverse("topology:topology", args=[topology.slug]),
    }
    return {name: client.get(at).content.decode() for name, at in addresses.items()}


def test_every_page_warns_of_a_stream_tap_and_only_operators_get_the_button(
    stream: Topology,
) -> None:
    for name, page in pages(signed_in(Role.OPERATOR), stream).items():
        assert "stream tap" in page, name
        assert page.count(BUTTON) == 1, name
        assert reverse("topology:replace_tap", args=[stream.slug]) in page, name
    for name, page in pages(signed_in(Role.VIEWER), stream).items():
        assert "stream tap" in page, name
        assert BUTTON not in page, name
    address = reverse("topology:replace_tap", args=[stream.slug])
    assert signed_in(Role.VIEWER, stream.broker).post(address).status_code == 403


def test_no_page_warns_of_a_classic_tap_or_of_others_brokers(stream: Topology) -> None:
    other = make_pair(make_broker(name="Other"))
    for name, page in pages(signed_in(Role.OPERATOR, other.broker), other).items():
        assert "stream tap" not in page, name


def test_one_that_is_not_applied_changes_its_row_alone(stream: Topology) -> None:
    Topology.objects.update(state=State.PLANNED)
    address = reverse("topology:replace_tap", args=[stream.slug])
    page = signed_in(Role.OPERATOR).post(address, follow=True).content.decode()
    assert f"{stream.name} now records into a bounded queue." in page
    stream.refresh_from_db()
    assert (stream.tap_type, stream.tap_name, stream.retired_tap) == ("", "", "")
    again = signed_in(Role.ADMIN).post(address, follow=True).content.decode()
    assert "Tap not replaced. This topology has a tap that does no harm on this broker." in again


def test_one_that_was_begun_is_applied_first(stream: Topology) -> None:
    Topology.objects.update(state=State.APPLYING)
    address = reverse("topology:replace_tap", args=[stream.slug])
    page = signed_in(Role.OPERATOR).post(address, follow=True).content.decode()
    assert "The last apply did not finish. Apply the topology again first." in page


@responses.activate
def test_a_stream_that_we_did_not_create_is_not_deleted(stream: Topology) -> None:
    url = f"{stream.broker.management_url}/api/queues/nowhere/{stream.tap_queue}"
    responses.get(url, json={"name": stream.tap_queue, "type": "stream"})
    takes_changes()
    address = reverse("topology:replace_tap", args=[stream.slug])
    page = signed_in(Role.OPERATOR).post(address, follow=True).content.decode()
    assert f"Delayboard did not create the stream tap “{stream.tap_queue}”" in page
    stream.refresh_from_db()
    assert stream.has_stream_tap
    assert not [call for call in responses.calls if call.request.method != "GET"]


def test_the_tap_of_a_new_topology_is_chosen_when_it_is_applied_unless_it_is_a_stream() -> None:
    broker = make_broker()
    client = signed_in(Role.OPERATOR)
    address = reverse("topology:topology_add")
    form = client.get(address).content.decode()
    assert '<option value="" selected>bounded queue' in form
    assert "breaks a stream" in form
    for name, chosen in (("a", {}), ("b", {"tap_type": "stream"}), ("c", {"tap_type": ""})):
        client.post(address, {"broker": broker.slug, "name": name, "delay": "5s", **chosen})
    kinds = dict(Topology.objects.values_list("name", "tap_type"))
    assert kinds == {"a": "", "b": "stream", "c": ""}
