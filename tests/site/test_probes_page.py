"""Probes on the page of a topology: who may enable them, and what it says where nobody can."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.urls import reverse

from analytics.models import Probe
from tests.brokers import Vhost
from tests.builders import applied_pair, make_user
from tests.site.page_setup import know, signed_in, text_of
from topology.definitions import Exchange
from topology.models import AuditEntry, Role, State, Topology, Work
from topology.operations.topology_rows import create_topology
from topology.patterns.hold_queues.params import Params as Hold
from topology.patterns.table import PATTERNS

pytestmark = pytest.mark.django_db


def test_a_pattern_that_cannot_keep_probes_apart_says_so(pair: Topology) -> None:
    ladder = PATTERNS["retry_ladder"]
    made = create_topology(None, pair.broker, ladder.KIND, ladder.EXAMPLE)
    Topology.objects.filter(pk=made.pk).update(state=State.APPLIED)
    know(pair.broker)
    text = text_of(
        signed_in(Role.OPERATOR).get(reverse("topology:topology_settings", args=[made.slug]))
    )
    assert "Probes are not available, because every delay of this topology ends in" in text
    assert "Enable probes" not in text


def test_a_topology_whose_names_are_too_long_for_a_probe_says_so(pair: Topology) -> None:
    params = Hold("x" * 200, ("made",), (timedelta(minutes=1),))
    made = create_topology(None, pair.broker, "hold_queues", params)
    Topology.objects.filter(pk=made.pk).update(state=State.APPLIED)
    know(pair.broker, Exchange(params.exchange))
    page = reverse("topology:topology_settings", args=[made.slug])
    text = text_of(signed_in(Role.OPERATOR).get(page))
    assert "exceeds 255 bytes. Use a shorter exchange or key." in text


def test_a_viewer_sees_the_probes_and_may_not_enable_them(pair: Topology) -> None:
    Topology.objects.filter(pk=pair.pk).update(state=State.APPLIED, probing="on")
    at = datetime.now(UTC)
    Probe.objects.create(
        topology=pair,
        message_id="one",
        delay=timedelta(seconds=5),
        created_at=at,
        sent_at=at,
        arrived_at=at + timedelta(seconds=5.25),
    )
    know(pair.broker)
    client = signed_in(Role.VIEWER)
    text = text_of(client.get(reverse("topology:topology_settings", args=[pair.slug])))
    assert "<td>arrived</td>" in text
    assert "250ms" in text
    assert "Disable probes" not in text
    address = reverse("topology:topology_probes", args=[pair.slug])
    assert client.post(address, {"probes": "on", "minutes": "5"}).status_code == 403


@pytest.mark.parametrize("minutes", ["", "0", "x", "1441", "٥", "9" * 30])
def test_odd_minutes_get_one_sentence(pair: Topology, minutes: str) -> None:
    Topology.objects.filter(pk=pair.pk).update(state=State.APPLIED)
    address = reverse("topology:topology_probes", args=[pair.slug])
    data = {"probes": "on", "minutes": minutes}
    answer = signed_in(Role.OPERATOR).post(address, data, follow=True)
    assert "Probes not changed. Enter a number of minutes from 1 to 1440." in text_of(answer)


@pytest.mark.generations("4.3", only=True)
def test_an_operator_enables_them_changes_the_interval_and_disables_them(vhost: Vhost) -> None:
    made = applied_pair(vhost)
    client = signed_in(Role.OPERATOR)
    make_user("other", Role.OPERATOR, made.broker)
    address = reverse("topology:topology_probes", args=[made.slug])
    for minutes in (5, 1):
        client.post(address, {"probes": "on", "minutes": str(minutes)})
        made.refresh_from_db()
        assert (made.probing, made.probe_minutes) == ("on", minutes)
    assert Work.objects.filter(kind="probes", subject=made.pk).count() == 1
    client.post(address, {"probes": "off"})
    made.refresh_from_db()
    assert made.probing == "ending"
    actions = AuditEntry.objects.filter(action__startswith="probes ").order_by("pk")
    assert [(row.action, row.outcome) for row in actions] == [
        ("probes enabled", "done"),
        ("probes enabled", "done"),
        ("probes disabled", "done"),
    ]
