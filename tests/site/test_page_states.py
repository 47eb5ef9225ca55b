from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from django.urls import reverse

from delayboard.now.board import share_overview
from tests.site.page_setup import know, pages, signed_in, text_of
from topology import audit, snapshots
from topology.definitions import Exchange, Queue
from topology.models import Broker, Role, Topology

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]
HOSTILE = ["<script>alert(1)</script>", "x" * 255, "a/b c?d=e&f", "ü漢字 ‘q’", '"quoted"']


@pytest.mark.parametrize(
    "name", ["topology:broker", "topology:topology", "dead_letters", "dead_letter_queue"]
)
def test_a_broker_that_never_answered_is_no_empty_list(pair: Topology, name: str) -> None:
    client = signed_in(Role.ADMIN)
    address = pages(pair)[name]
    snapshots.forget(pair.broker_id)
    text = text_of(client.get(address))
    assert "Test broker cannot be reached." in text
    assert "http://127.0.0.1:9" in text
    assert "The broker has not answered yet" in text
    assert "No queue" not in text


@pytest.mark.parametrize(
    "name", ["topology:broker", "topology:topology", "dead_letters", "dead_letter_queue"]
)
def test_numbers_from_before_a_failure_are_shown_as_old(pair: Topology, name: str) -> None:
    client = signed_in(Role.ADMIN)
    address = pages(pair)[name]
    know(pair.broker, Queue("parked"), error="It was tried and failed.")
    text = text_of(client.get(address))
    assert "It was tried and failed." in text
    assert "Last answer" in text
    assert "7m ago" in text
    assert "data-stale" in text


def test_the_lists_say_which_broker_does_not_answer(pair: Topology) -> None:
    client = signed_in(Role.VIEWER)
    assert "Unreachable" in text_of(client.get(reverse("topology:brokers")))
    text = text_of(client.get(reverse("now")))
    assert "Test broker: " in text
    assert "The worker is not running" in text
    assert "All systems normal" not in text


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_escaped_and_their_links_lead_somewhere(
    broker: Broker, name: str
) -> None:
    client = signed_in(Role.ADMIN)
    know(broker, Queue(name), Exchange(name))
    audit.record(None, name[:60], broker=broker, what=name, details={name: name})
    for address in ("topology:brokers", "topology:audit", "now", "dead_letters"):
        assert "<script>alert" not in text_of(client.get(reverse(address)))
    link = text_of(client.get(reverse("topology:broker", args=["test-broker"])))
    address = link.split('<a class="name" href="')[1].split('"')[0].replace("&amp;", "&")
    page = client.get(address)
    assert page.context["queue"].name == name
    assert "<script>alert" not in link + text_of(page)


@pytest.mark.parametrize("before", ["", "0", "x", "99999999"])
def test_lists_are_walked_by_place_and_take_any_place(broker: Broker, before: str) -> None:
    for number in range(52):
        audit.record(None, f"action {number}")
    client = signed_in(Role.ADMIN)
    text = text_of(client.get(reverse("topology:audit"), {"after": before}))
    assert ("?after=" in text) is (before in ("", "x", "99999999"))
    text_of(client.get(reverse("replays"), {"after": before}))


def test_empty_pages_say_what_to_do_next() -> None:
    client = signed_in(Role.ADMIN)
    assert "No broker yet" in text_of(client.get(reverse("topology:brokers")))
    assert "No broker yet" in text_of(client.get(reverse("now")))
    assert "No replay yet" in text_of(client.get(reverse("replays")))
    assert "No broker yet" in text_of(client.get(reverse("topology:topologies")))
    nothing = client.get(reverse("topology:audit"), {"q": "never happened"})
    assert "No matching entries" in text_of(nothing)


def test_no_page_has_a_style_attribute_or_an_inline_script(pair: Topology) -> None:
    client = signed_in(Role.ADMIN)
    files = ("parked_messages_export", "parked_message_body")
    for address in (where for name, where in pages(pair).items() if name not in files):
        text = text_of(client.get(address))
        assert " style=" not in text
        assert "<script>" not in text
        assert " onclick=" not in text


def test_a_live_page_is_rendered_once_for_viewers_with_equal_rights(
    broker: Broker, django_assert_num_queries: Any
) -> None:
    know(broker)
    audit.record(None, "replay started", broker=broker)
    version = share_overview([broker], datetime.now(UTC)).version

    def fetch(role: Role) -> str:
        return text_of(signed_in(role, broker).get("/", headers={"X-Refresh": version}))

    whole = text_of(signed_in(Role.ADMIN, broker).get("/"))
    first, again, other = fetch(Role.ADMIN), fetch(Role.ADMIN), fetch(Role.VIEWER)
    assert first == again
    assert "replay started" in first
    assert "replay started" not in other
    assert "<header" not in first
    assert first.count("data-live-part") == whole.count("data-live-part")
    assert f'data-live-version="{version}"' in first
    client = signed_in(Role.ADMIN, broker)
    with django_assert_num_queries(4):
        client.get("/", headers={"X-Refresh": version})
