"""Switching the keeping of bodies on and off, for one topology."""

from __future__ import annotations

import pytest
from django.urls import reverse

from tests.site.page_setup import signed_in, text_of
from topology.models import AuditEntry, Role, State, Topology

pytestmark = pytest.mark.django_db


def test_an_operator_switches_it_on_and_off_and_both_are_in_the_audit(pair: Topology) -> None:
    client = signed_in(Role.OPERATOR)
    address = reverse("topology:topology_bodies", args=[pair.slug])
    page = reverse("topology:topology_settings", args=[pair.slug])
    assert "Delayboard records only headers and sizes." in text_of(client.get(page))
    for keep, action in (("yes", "enabled"), ("no", "disabled")):
        assert client.post(address, {"keep": keep}).status_code == 302
        pair.refresh_from_db()
        assert pair.keep_bodies is (keep == "yes")
        entry = AuditEntry.objects.get(action=f"body storage {action}")
        assert (entry.what, entry.broker) == (pair.name, pair.broker)


def test_a_viewer_is_told_but_not_offered_it(pair: Topology) -> None:
    client = signed_in(Role.VIEWER)
    text = text_of(client.get(reverse("topology:topology_settings", args=[pair.slug])))
    assert "Delayboard records only headers and sizes." in text
    assert "Enable body storage" not in text
    answer = client.post(reverse("topology:topology_bodies", args=[pair.slug]), {"keep": "yes"})
    assert answer.status_code == 403


def test_one_that_was_torn_down_keeps_none(pair: Topology) -> None:
    Topology.objects.update(state=State.DELETED)
    address = reverse("topology:topology_bodies", args=[pair.slug])
    answer = signed_in(Role.OPERATOR).post(address, {"keep": "yes"}, follow=True)
    assert "Body storage not changed. This topology is deleted" in text_of(answer)
    pair.refresh_from_db()
    assert not pair.keep_bodies
