from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client
from django.urls import reverse

from tests.builders import make_broker, make_pair
from tests.delayboard.test_retrying import REJECTED, waits
from tests.site.page_setup import know, signed_in, text_of
from topology import snapshots
from topology.models import Broker, RedactionKind, RedactionRule, Role, State, Topology

pytestmark = pytest.mark.django_db


@pytest.fixture
def applied(broker: Broker) -> Topology:
    topology = make_pair(broker, delay="15s")
    topology.state, topology.applied_at = State.APPLIED, datetime.now(UTC)
    topology.save()
    know(broker, *topology.definitions)
    return topology


def page(broker: Broker, client: Client | None = None, **query: str) -> str:
    address = reverse("retrying", args=[broker.slug])
    return text_of((client or signed_in(Role.VIEWER)).get(address, query))


def test_what_waits_for_its_next_attempt_is_listed(applied: Topology) -> None:
    row = waits(applied, 60, REJECTED, attempt=2, message_id="<b>4711</b>")
    text = page(applied.broker)
    assert "&lt;b&gt;4711" in text
    assert "retry 2" in text
    assert "rejected 2 times in a" in text
    assert reverse("analytics:scheduled_message", args=[row.pk]) in text
    assert "Recorded on entry." in text


def test_an_unread_tap_is_told_as_on_the_page_of_what_waits(applied: Topology) -> None:
    Topology.objects.update(applied_at=datetime.now(UTC) - timedelta(hours=1))
    assert "is incomplete" in page(applied.broker)


def test_nothing_that_retries_says_what_to_do(broker: Broker) -> None:
    know(broker)
    assert "No retry topology on this broker" in page(broker)


def test_nothing_that_waits_is_said(applied: Topology) -> None:
    assert "No waiting messages" in page(applied.broker)
    assert "No matching messages" in page(applied.broker, text="nowhere")
    assert "No more messages" in page(applied.broker, after=str(waits(applied).pk))


@pytest.mark.parametrize("after", ["x", "2026-11-22,1", "0001-01-01T00:00:00+23:00,1", ","])
def test_a_place_that_is_none_is_the_first_page(applied: Topology, after: str) -> None:
    waits(applied)
    assert "m60" in page(applied.broker, after=after)


def test_what_cannot_be_read_lists_nothing_and_is_named(applied: Topology) -> None:
    waits(applied)
    text = page(applied.broker, text="x" * 501)
    assert "The filter is not valid, so no message is listed." in text
    assert "m60" not in text


def test_a_broker_that_is_gone_still_has_what_was_recorded(applied: Topology) -> None:
    waits(applied)
    snapshots._latest[applied.broker.pk] = snapshots.Latest(
        None, datetime.now(UTC) + timedelta(days=1), "It does not answer."
    )
    text = page(applied.broker)
    assert "cannot be reached" in text
    assert "m60" in text


def test_the_tab_leads_to_a_broker_that_one_may_see(applied: Topology) -> None:
    other = make_broker(name="Other")
    know(other)
    address = reverse("retrying_anywhere")
    client = signed_in(Role.VIEWER, other)
    assert "No retry topology on this broker" in text_of(client.get(address))
    chosen = signed_in(Role.VIEWER).get(address, {"broker": applied.broker.slug})
    assert chosen["Location"] == reverse("retrying", args=[applied.broker.slug])
    assert "No broker available" in text_of(signed_in().get(address))
    assert client.get(reverse("retrying", args=[applied.broker.slug])).status_code == 404


def test_what_rules_hide_is_neither_shown_nor_searched(applied: Topology) -> None:
    RedactionRule.objects.create(
        kind=RedactionKind.HEADER, pattern="x-death", broker=applied.broker
    )
    waits(applied, 60, REJECTED | {"token": "s3cret"}, attempt=2)
    reported = "rejected 2 times in a"
    for role in (Role.VIEWER, Role.OPERATOR):
        text = page(applied.broker, signed_in(role))
        assert "m60" in text
        assert "redacted" in text
        assert reported not in text
        text = page(applied.broker, signed_in(role), text="s3cret")
        assert "you cannot search for words" in text
        assert "m60" not in text
        assert "m60" in page(applied.broker, signed_in(role), destination="orders")
    admin = signed_in(Role.ADMIN)
    assert reported in page(applied.broker, admin, text="s3cret")


def test_rules_of_another_broker_hide_nothing_here(applied: Topology) -> None:
    other = make_broker(name="Other")
    RedactionRule.objects.create(kind=RedactionKind.HEADER, pattern="*", broker=other)
    waits(applied, 60, REJECTED | {"token": "s3cret"}, attempt=2)
    assert "rejected 2 times in a" in page(applied.broker, text="s3cret")


def test_a_death_with_hidden_parts_tells_nothing_of_them(applied: Topology) -> None:
    waits(applied, 60, REJECTED, attempt=2)
    for pattern in ("reason", "count", "queue", "x-first-death-reason"):
        rule = RedactionRule.objects.create(kind=RedactionKind.HEADER, pattern=pattern)
        text = page(applied.broker)
        assert "m60" in text
        assert "redacted" in text
        assert "rejected 2 times in a" not in text
        rule.delete()


def test_what_others_built_is_named_until_it_is_adopted(applied: Topology) -> None:
    pair = make_pair(applied.broker, name="theirs", delay="30s")
    Topology.objects.filter(pk=pair.pk).delete()
    know(applied.broker, *applied.definitions, *pair.definitions)
    text = page(applied.broker)
    assert "Discovered topologies" in text
    found = reverse("topology:discovered", args=[applied.broker.slug])
    assert f'href="{found}?kind=retry_pair&amp;name=' in text
    assert text.count(f'href="{found}?kind=') == 1
    Topology.objects.update(state=State.DELETED)
    text = page(applied.broker)
    assert "No retry topology on this broker" in text
    assert text.count(f'href="{found}?kind=') == 2


def test_of_a_large_broker_what_others_built_is_said_to_be_worked_out(
    applied: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "delayboard.views.dead_letters.retrying.recognize_snapshot", lambda *_: None
    )
    assert "is still analyzing" in page(applied.broker)
