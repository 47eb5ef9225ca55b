from __future__ import annotations

from typing import Any

import pytest
from django.urls import reverse

from tests.builders import make_broker
from tests.site.desk import know, signed_in, text_of
from tests.topology.builders import a_queue
from topology.broker.management.exported import read_export
from topology.findings.find import find
from topology.findings.finding import Finding
from topology.findings.table import RULES
from topology.models import Broker, Role, Topology
from topology.snapshot import Snapshot
from topology.views.background import SnapshotResults

pytestmark = pytest.mark.django_db

LOST = a_queue("lost", dlx="not-there")
LOOP = [a_queue("work", dlx="", key="wait"), a_queue("wait", ttl=5, dlx="", key="work")]


def listed(broker: Broker, **query: str) -> str:
    address = reverse("topology:findings", args=[broker.slug])
    return text_of(signed_in(Role.VIEWER, broker).get(address, query))


def opened(broker: Broker, *things: Any) -> str:
    """The page of the worst finding."""
    key = find(know(broker, *things))[0].key
    address = reverse("topology:finding", args=[broker.slug, key])
    return text_of(signed_in(Role.VIEWER, broker).get(address))


def test_a_viewer_sees_the_findings_of_a_broker_the_worst_first(broker: Broker) -> None:
    know(broker, *LOOP, LOST)
    text = listed(broker)
    assert text.index("Dead-letter exchange missing: not-there") < text.index("Retries without an")
    assert '<span class="state state-error">Loss</span>' in text


def test_findings_are_chosen_by_severity_and_by_the_name_of_an_object(broker: Broker) -> None:
    know(broker, *LOOP, LOST)
    assert "Dead-letter exchange missing" not in listed(broker, severity="style")
    assert "Retries without an end" not in listed(broker, q="LOST")
    assert "No matching findings" in listed(broker, q="nothing has this name")


def test_a_vhost_without_findings_says_what_was_checked(broker: Broker) -> None:
    know(broker, a_queue("work"))
    assert "No findings. The check covers 1 queues and 0 exchanges." in listed(broker)


def test_a_finding_shows_the_setting_the_remedy_and_the_path(broker: Broker) -> None:
    text = opened(broker, LOST)
    assert "RabbitMQ drops each message that dies in “lost”." in text
    assert f"VHOST={broker.vhost}\n" in text
    assert "declare exchange --name not-there" in text
    assert "The exchange “not-there” does not exist." in text
    assert "<svg" in text


def test_a_finding_in_a_managed_topology_leads_to_its_plan(pair: Topology) -> None:
    left = (thing for thing in pair.definitions if thing.identity != ("queue", "orders"))
    text = opened(pair.broker, *left)
    assert "No queue gets a message that dies in “orders-retry”" in text
    assert f'<a href="{reverse("topology:topology", args=[pair.slug])}">orders</a>' in text


def test_a_finding_in_discovered_levels_leads_to_their_differences(broker: Broker) -> None:
    things = read_export(RULES[19].failing.definitions())[""].definitions
    know(broker, *things)
    found = next(one for one in find(know(broker, *things)) if one.rule.id == "F20")
    address = reverse("topology:finding", args=[broker.slug, found.key])
    text = text_of(signed_in(Role.VIEWER, broker).get(address))
    assert "?kind=delay_levels&amp;name=f20.delay-level" in text


def test_a_finding_that_is_gone_leads_back_to_the_list(broker: Broker) -> None:
    know(broker, a_queue("work"))
    address = reverse("topology:finding", args=[broker.slug, "f01-0123456789ab"])
    assert "Finding not found" in text_of(signed_in(Role.VIEWER, broker).get(address))


def test_hostile_names_are_text(broker: Broker) -> None:
    text = opened(broker, a_queue("<b>'; rm -rf $HOME #", dlx="<script>alert(1)</script>"))
    assert "<script>alert(1)" not in text
    assert "<b>&#x27;; rm" not in text
    assert "--name &#x27;&lt;script&gt;alert(1)&lt;/script&gt;&#x27;" in text


def test_five_hundred_queues_with_one_mistake_are_one_row(broker: Broker) -> None:
    know(broker, *(a_queue(f"work-{n}", dlx="not-there") for n in range(500)))
    text = listed(broker)
    assert text.count("Dead-letter exchange missing") == 1
    assert "and 499 more" in text


def test_what_only_counts_anew_is_not_checked_again(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = []

    def check(snapshot: Snapshot) -> tuple[Finding, ...]:
        checked.append(snapshot)
        return find(snapshot)

    monkeypatch.setattr("topology.views.findings.find", check)
    monkeypatch.setattr("topology.views.findings._last", {})
    for waiting in (1, 2, 3):
        know(broker, LOST, lost=waiting)
        listed(broker)
    know(broker, LOST, *LOOP)
    assert "Retries without an end" in listed(broker)
    assert len(checked) == 2


def test_the_page_of_a_broker_counts_its_findings(broker: Broker) -> None:
    know(broker, LOST)
    page = reverse("topology:broker", args=[broker.slug])
    assert "1 loss</span>" in text_of(signed_in(Role.VIEWER, broker).get(page))


def test_of_several_brokers_each_has_its_counts(broker: Broker) -> None:
    other = make_broker(name="Other rabbit")
    know(broker, LOST)
    know(other, a_queue("work"))
    text = text_of(signed_in(Role.VIEWER).get(reverse("topology:findings_overview")))
    assert "1 loss</span>" in text
    assert "Other rabbit" in text


def test_a_broker_that_never_answered_has_unknown_findings(broker: Broker) -> None:
    other = make_broker(name="Other rabbit")
    know(other, LOST)
    text = text_of(signed_in(Role.VIEWER).get(reverse("topology:findings_overview")))
    assert "unknown: " in text
    assert "not yet" in text


def test_of_one_broker_the_findings_are_shown_at_once(broker: Broker) -> None:
    know(broker, LOST)
    text = text_of(signed_in(Role.VIEWER, broker).get(reverse("topology:findings_overview")))
    assert "Dead-letter exchange missing: not-there" in text


def test_of_very_many_objects_the_page_says_that_it_checks(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("topology.views.background.AT_ONCE", 0)
    monkeypatch.setattr("topology.views.findings._results", SnapshotResults())
    monkeypatch.setattr("topology.views.background.PATIENCE_SECONDS", 0)
    know(broker, LOST)
    text = listed(broker)
    assert "Check in progress" in text or "Dead-letter exchange missing" in text
