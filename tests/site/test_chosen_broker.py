"""Forms and links that carry a broker choose that broker, and never another one."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.urls import reverse

from analytics.models import ScheduledMessage
from analytics.scheduled import projection
from delayboard.models import DeadLetterQueue, Publication, ScheduledChange
from delayboard.now.navigation import PAGES, count_badges
from tests.analytics.builders import an_entry
from tests.builders import make_broker, make_pair
from tests.delayboard.builders import a_message, parked
from tests.delayboard.replay_rows import a_batch
from tests.site.page_setup import know, pages, signed_in, text_of
from topology.definitions import Queue
from topology.models import Broker, Role, State, Topology

pytestmark = pytest.mark.django_db

# The pages of the header that are of brokers, and pages below them with lists.
OF_BROKERS = (
    *(page.url_name for page in PAGES if page.has_brokers),
    "scheduled_changes",
    "topology:patterns",
    "topology:topology_add",
    "search",
)
CARRY_A_BROKER = (
    "now",
    "topology:topologies",
    "dead_letters",
    "retrying_anywhere",
    "analytics:reports",
    "analytics:scheduled",
    "replays",
    "topology:findings_overview",
    "scheduled_changes",
    "search",
)
# Reports add up, and the others list pages and patterns.
NAME_NO_BROKER = ("analytics:reports", "topology:patterns", "search")
NOW = datetime.now(UTC)


@pytest.fixture
def first() -> Broker:
    """The first of all brokers, which a form that ignores the address chooses."""
    return make_broker(name="A first broker")


@pytest.fixture
def pair(first: Broker, broker: Broker) -> Topology:
    """On the second broker."""
    assert Broker.objects.first() == first
    return make_pair(broker, delay="15s")


def links(text: str) -> list[str]:
    """Without those of the switcher, which lead to the other brokers."""
    text = re.sub(r'<details class="menu menu-broker">.*?</details>', "", text, flags=re.DOTALL)
    return [unescape(found) for found in re.findall(r'href="([^"]+)"', text)]


def selected(text: str, field: str) -> list[str]:
    """The values that the browser would send of a drop-down as it is served."""
    box = re.search(rf'<select[^>]* name="{field}"[^>]*>(.*?)</select>', text, re.DOTALL)
    assert box is not None
    options = re.findall(r'<option value="([^"]*)"( selected)?', box[1])
    return [value for value, chosen in options if chosen] or [options[0][0]]


def test_every_link_on_a_page_of_a_broker_carries_that_broker(pair: Topology) -> None:
    client, seen = signed_in(Role.ADMIN), 0
    addresses = pages(pair)
    know(pair.broker, *pair.definitions)
    for state in State:
        Topology.objects.filter(pk=pair.pk).update(state=state)
        for name, address in addresses.items():
            # The pages of a topology show its state.
            if state != State.APPLIED and not name.startswith("topology:"):
                continue
            answer = client.get(address)
            if not answer["Content-Type"].startswith("text/html") or not answer.context:
                continue
            if answer.context.get("broker") != pair.broker:
                continue
            for link in links(answer.content.decode()):
                for value in parse_qs(urlsplit(link).query).get("broker", []):
                    seen += 1
                    assert value == pair.broker.slug, (address, link)
    assert seen > 10


def test_from_a_page_of_a_broker_the_form_of_a_topology_chooses_it(pair: Topology) -> None:
    client = signed_in(Role.ADMIN)
    know(pair.broker)
    start = text_of(client.get(reverse("topology:broker", args=[pair.broker.slug])))
    page = reverse("topology:patterns")
    (listed,) = (link for link in links(start) if urlsplit(link).path == page)
    offered = links(text_of(client.get(listed)))
    forms = [link for link in offered if urlsplit(link).path == reverse("topology:topology_add")]
    # RabbitMQ 3.10.8 can have neither a delayed exchange nor a quorum retry.
    assert len(set(forms)) == 7
    for form in forms:
        assert selected(text_of(client.get(form)), "broker") == [pair.broker.slug], form


def test_a_topology_is_made_on_the_broker_that_was_sent(pair: Topology) -> None:
    know(pair.broker)
    values = {"broker": pair.broker.slug, "name": "new", "delay": "1m"}
    signed_in(Role.ADMIN).post(reverse("topology:topology_add") + "?kind=retry_pair", values)
    assert Topology.objects.get(name="new").broker == pair.broker


def test_of_several_brokers_none_is_chosen_beforehand(pair: Topology) -> None:
    client = signed_in(Role.ADMIN)
    address = reverse("topology:topology_add")
    assert selected(text_of(client.get(address)), "broker") == [""]
    text = text_of(client.post(address + "?kind=retry_pair", {"name": "new", "delay": "1m"}))
    assert "This field is required." in text
    assert not Topology.objects.filter(name="new").exists()


def test_the_only_broker_is_chosen(broker: Broker) -> None:
    text = text_of(signed_in(Role.ADMIN).get(reverse("topology:topology_add")))
    assert selected(text, "broker") == [broker.slug]


@pytest.fixture
def three() -> list[Broker]:
    """Brokers that each have a retry topology with a waiting message, and a parked message."""
    brokers = [make_broker(name=f"{name} broker") for name in ("Alpha", "Beta", "Gamma")]
    for broker in brokers:
        made = make_pair(broker, delay="15s")
        Topology.objects.filter(pk=made.pk).update(state=State.APPLIED)
        projection.project(made, [an_entry("waits", NOW, due_at=NOW + timedelta(hours=1))])
        row = ScheduledMessage.objects.get(topology=made)
        change = {"kind": "cancel", "key": row.key, "due_at": NOW, "content_id": row.content_id}
        ScheduledChange.objects.create(broker=broker, topology=made, message=row, **change)
        know(broker, *made.definitions, Queue("parked"), parked=5)
        DeadLetterQueue.objects.create(
            broker=broker, queue="parked", is_confirmed=True, decided_at=NOW
        )
        parked(broker, a_message(), queue="parked")
        Publication.objects.create(broker=broker, size=1, exchange="orders")
        a_batch(broker)
    return brokers


def main_of(answer: Any) -> str:
    """What the page shows below its header."""
    return text_of(answer).partition("<main")[2]


@pytest.mark.parametrize("name", OF_BROKERS)
def test_a_page_without_a_chosen_broker_covers_all_or_asks_which(
    three: list[Broker], name: str
) -> None:
    answer = signed_in(Role.ADMIN).get(reverse(name))
    text = main_of(answer)
    assert answer.context["header"].broker is None
    assert all(broker.name in text for broker in three) or name in NAME_NO_BROKER


@pytest.mark.parametrize("name", [name for name in CARRY_A_BROKER if name not in NAME_NO_BROKER])
def test_a_page_of_a_chosen_broker_shows_no_other(three: list[Broker], name: str) -> None:
    first, chosen, last = three
    client = signed_in(Role.ADMIN)
    answer = client.get(reverse(name), {"broker": chosen.slug}, follow=True)
    assert answer.context["header"].broker == chosen
    text = main_of(answer)
    assert first.name not in text
    assert last.name not in text


def test_badges_count_what_the_lists_of_all_brokers_have(three: list[Broker]) -> None:
    client = signed_in(Role.ADMIN)
    answer = client.get(reverse("dead_letters"))
    badge = count_badges(three, NOW)["dead_letters"]
    assert badge.number == sum(group.parked for group, _ in answer.context["lines"]) == 3
    assert main_of(answer).count('<td data-label="Parked" class="number">1</td>') == 3
    retrying = client.get(reverse("retrying_anywhere")).context["listing"]
    assert [row.line.row.broker for row in retrying.retries] == three


def test_links_of_now_keep_the_chosen_broker(three: list[Broker]) -> None:
    text = main_of(signed_in(Role.ADMIN).get(reverse("now"), {"broker": three[1].slug}))
    for name in ("analytics:scheduled", "retrying_anywhere", "dead_letters", "replays"):
        found = [one for one in links(text) if urlsplit(one).path == reverse(name)]
        assert found
        assert {query["broker"][0] for query in map(query_of, found)} == {three[1].slug}


def query_of(link: str) -> dict[str, list[str]]:
    return parse_qs(urlsplit(link).query)


@pytest.mark.parametrize("name", [*CARRY_A_BROKER, "topology:topology_add"])
@pytest.mark.parametrize("slug", ["gone", "a-first-broker", "1"])
def test_a_broker_that_is_not_there_or_not_visible_is_not_found(
    pair: Topology, name: str, slug: str
) -> None:
    client = signed_in(Role.OPERATOR, pair.broker)
    assert client.get(reverse(name), {"broker": slug}).status_code == 404


def test_publishing_through_a_topology_chooses_it(pair: Topology) -> None:
    Topology.objects.update(state=State.APPLIED)
    know(pair.broker, *pair.definitions)
    client = signed_in(Role.ADMIN)
    text = text_of(client.get(reverse("topology:topology", args=[pair.slug])))
    (link,) = (one for one in links(text) if one.startswith(reverse("publish") + "?topology"))
    assert selected(text_of(client.get(link)), "topology") == [pair.slug]


def test_the_button_that_applies_names_broker_and_environment(pair: Topology) -> None:
    Broker.objects.filter(pk=pair.broker.pk).update(environment="production")
    know(pair.broker)
    text = text_of(signed_in(Role.ADMIN).get(reverse("topology:topology", args=[pair.slug])))
    assert ">Apply to Test broker (production)</button>" in text
