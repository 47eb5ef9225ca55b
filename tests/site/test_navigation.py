"""The header of every page: its tabs and badges, the switch of brokers; and the page Search."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from html import unescape

import pytest
from django.test import Client
from django.urls import reverse

from analytics.models import ScheduledMessage
from delayboard.dead_letters.search import index
from delayboard.models import BatchState, ReplayBatch
from tests.builders import make_broker, make_pair
from tests.delayboard.builders import a_message, parked
from tests.site.page_setup import draft, know, signed_in, text_of
from topology.definitions import Queue
from topology.findings.hit import Severity
from topology.models import (
    Broker,
    Drift,
    FindingMute,
    FindingPeriod,
    MissingBinding,
    Role,
    State,
    Topology,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def other() -> Broker:
    return make_broker(name="Other broker")


def tab(text: str, label: str) -> tuple[str, str, str]:
    """Of the tab of this label in a page: where it leads, its attributes, its badge in words."""
    found = re.search(rf'<a href="([^"]*)" data-go="."([^>]*)>{label}(.*?)</a>', text, re.DOTALL)
    assert found is not None, label
    words = re.sub(r"<[^>]+>", "", found[3])
    return unescape(found[1]), found[2].strip(), words.strip()


def found_in(client: Client, text: str, **query: str) -> dict[str, str]:
    """Label -> address of what the page Search lists."""
    page = text_of(client.get(reverse("search"), {"q": text, **query}))
    listed = page[page.index('id="found"') :]
    links = re.findall(r'<li><a href="([^"]*)">(.*?)</a>', listed)
    return {re.sub(r"<[^>]+>", "", unescape(label)): unescape(url) for url, label in links}


@pytest.mark.parametrize(
    ("url_name", "arguments", "label", "current"),
    [
        ("now", [], "Now", "page"),
        ("topology:topologies", [], "Topologies", "page"),
        ("topology:topology", ["test"], "Topologies", "true"),
        ("topology:audit", [], "System", "true"),
        ("redaction", ["test-broker"], "Dead letters", "true"),
    ],
)
def test_a_tab_is_current_on_its_page_and_below_it(
    broker: Broker, url_name: str, arguments: list[str], label: str, current: str
) -> None:
    pair = make_pair(broker)
    know(broker)
    slugs = [pair.slug if one == "test" else one for one in arguments]
    text = text_of(signed_in(Role.ADMIN).get(reverse(url_name, args=slugs)))
    assert tab(text, label)[1] == f'aria-current="{current}"'
    if label != "Now":
        assert tab(text, "Now")[1] == ""


def test_badges_count_what_has_something_to_do_for_the_chosen_broker_alone(
    pair: Topology, other: Broker
) -> None:
    Topology.objects.update(state=State.APPLIED)
    now = datetime.now(UTC)
    MissingBinding.objects.create(topology=pair, destination="gone", since_at=now, stuck=3)
    Drift.objects.create(topology=pair, since_at=now, objects_count=4, missing=1, changed=0)
    replay = draft(pair.broker)
    replay.state = BatchState.PAUSED
    replay.save()
    parked(pair.broker, a_message())
    for number, severity in enumerate((5, 2, 2)):
        FindingPeriod.objects.create(
            broker=pair.broker,
            key=str(number),
            severity=severity,
            objects_count=1,
            appeared_at=now,
        )
    client = signed_in(Role.ADMIN)
    text = text_of(client.get(reverse("password")))
    assert tab(text, "Scheduled")[2] == "3 stuck"
    assert tab(text, "Dead letters")[2] == "3 parked"
    assert tab(text, "Replays")[2] == "1 paused"
    assert tab(text, "Topologies")[2] == "1 not in sync"
    assert tab(text, "Findings")[2] == "3 open, 1 of them loss or stuck"
    assert tab(text, "Now")[2] == ""
    text = text_of(client.get(reverse("replays"), {"broker": other.slug}))
    assert {tab(text, label)[2] for label in ("Scheduled", "Dead letters", "Replays")} == {""}


@pytest.mark.both_databases
def test_the_badge_of_findings_counts_open_ones_that_are_not_muted_and_the_worst_of_them(
    broker: Broker, other: Broker
) -> None:
    now = datetime.now(UTC)
    for number, (severity, resolved_at) in enumerate(
        [(Severity.LOSS, None), (Severity.STUCK, None), (Severity.COST, None), (Severity.LOSS, now)]
    ):
        row = {"rule": "F01", "severity": int(severity), "objects_count": 1, "appeared_at": now}
        row |= {"key": f"f01-{number}", "resolved_at": resolved_at}
        for one in (broker, other):
            FindingPeriod.objects.create(broker=one, **row)
    FindingMute.objects.create(broker=broker, key="f01-1", until_at=now + timedelta(hours=1))
    FindingMute.objects.create(broker=other, key="f01-1", until_at=now - timedelta(hours=1))
    client = signed_in(Role.ADMIN)
    assert (
        tab(text_of(client.get(reverse("password"))), "Findings")[2]
        == "5 open, 3 of them loss or stuck"
    )
    text = text_of(client.get(reverse("replays"), {"broker": broker.slug}))
    assert tab(text, "Findings")[2] == "2 open, 1 of them loss or stuck"


def test_the_header_keeps_the_broker_that_the_address_names(pair: Topology, other: Broker) -> None:
    know(pair.broker)
    client = signed_in(Role.ADMIN)
    for address in (
        reverse("topology:topology", args=[pair.slug]),
        f"{reverse('replays')}?broker={pair.broker.slug}",
    ):
        text = text_of(client.get(address))
        assert tab(text, "Scheduled")[0] == f"/scheduled/?broker={pair.broker.slug}"
        assert tab(text, "System")[0] == "/system/"
    assert f'href="/replays/?broker={other.slug}"' in text
    assert 'href="/replays/">All brokers' in text
    # Of several brokers this page shows the first: nobody has chosen it.
    text = text_of(client.get(reverse("dead_letters")))
    assert tab(text, "Now")[0] == "/"


def test_where_there_is_one_broker_nothing_is_switched(pair: Topology) -> None:
    know(pair.broker)
    text = text_of(signed_in(Role.ADMIN).get(reverse("topology:topology", args=[pair.slug])))
    assert tab(text, "Scheduled")[0] == "/scheduled/"
    assert "All brokers</a>" not in text
    assert 'class="menu-broker" href="/brokers/test-broker/"' in text


def test_lists_show_the_chosen_broker_alone(pair: Topology, other: Broker) -> None:
    know(pair.broker)
    replay = draft(pair.broker)
    client = signed_in(Role.ADMIN)
    row = reverse("replay_batch", args=[replay.pk])
    assert row in text_of(client.get(reverse("replays"), {"broker": pair.broker.slug}))
    assert row not in text_of(client.get(reverse("replays"), {"broker": other.slug}))
    chosen = text_of(client.get(reverse("analytics:scheduled"), {"broker": pair.broker.slug}))
    assert f'<input type="hidden" name="broker" value="{pair.broker.slug}">' in chosen
    answer = client.get(reverse("topology:findings_overview"), {"broker": other.slug})
    assert answer["Location"] == reverse("topology:findings", args=[other.slug])


def test_search_finds_pages_actions_topologies_queues_and_groups(
    pair: Topology, other: Broker
) -> None:
    know(pair.broker, Queue("orders.eu"), Queue("invoices"))
    group = parked(pair.broker, a_message())[0].group
    assert group is not None
    client = signed_in(Role.ADMIN)
    assert found_in(client, "")["Scheduled"] == "/scheduled/"
    assert found_in(client, "create top")["Create topology"] == "/topologies/patterns/"
    assert found_in(client, "stuck") == {"Stuck messages": "/scheduled/?stuck=1"}
    assert found_in(client, "overdue") == {"Overdue messages": "/scheduled/?overdue=1"}
    assert list(found_in(client, "due next").values()) == ["/scheduled/?from=now&until=%2B1h"]
    assert set(found_in(client, "webhook").values()) == {reverse("alerts"), reverse("webhooks")}
    name = pair.name
    assert found_in(client, "compare") == {
        "Compare patterns": "/topologies/patterns/#comparison",
    }
    assert found_in(client, name)[name] == reverse("topology:topology", args=[pair.slug])
    assert found_in(client, "EU orders") == {
        "orders.eu": "/dead-letters/test-broker/queue/?name=orders.eu"
    }
    assert found_in(client, "orders.eu", broker=other.slug) == {}
    assert found_in(client, "peek orders") == {
        "Peek queue orders.eu": "/dead-letters/test-broker/queue/?name=orders.eu#peek"
    }
    assert found_in(client, f"publish {name}") == {}
    Topology.objects.update(state=State.APPLIED)
    assert found_in(client, f"publish {name}") == {
        f"Publish through {name}": f"/publish/?topology={pair.slug}"
    }
    assert found_in(client, f"del {name}") == {
        f"Delete topology {name}": f"/topologies/{pair.slug}/settings/#deletion"
    }
    (replay,) = found_in(client, f"replay {group.died_in or group.title}").values()
    assert replay == f"/dead-letters/test-broker/groups/{group.pk}/#actions"
    in_group = found_in(client, group.died_in or group.title)
    assert reverse("message_group", args=["test-broker", group.pk]) in in_group.values()


def test_search_finds_messages_by_id_and_commands_as_they_are_said(
    pair: Topology, other: Broker
) -> None:
    Topology.objects.update(state=State.APPLIED)
    batch = draft(pair.broker)
    own = ("delayboard.tap.orders.eu", "delay.30000.orders.eu.delayboard-probe-orders.eu")
    know(pair.broker, Queue("orders.eu"), *map(Queue, own))
    waiting = ScheduledMessage.objects.create(
        broker=pair.broker,
        topology=pair,
        key="m-7",
        attempt=1,
        requested_delay=timedelta(minutes=1),
        entered_at=datetime.now(UTC),
    )
    (dead,) = parked(pair.broker, a_message(message_id="m-7"))
    index.keep_up(index.begin())
    client = signed_in(Role.ADMIN)
    page = text_of(client.get(reverse("search"), {"q": " m-7 "}))
    assert reverse("analytics:scheduled_message", args=[waiting.pk]) in page
    assert reverse("parked_message", args=[pair.broker.slug, dead.pk]) in page
    assert found_in(client, "m-7", broker=other.slug) == {}
    assert found_in(signed_in(Role.VIEWER, other), "m-7") == {}
    replay = reverse("replay_batch", args=[batch.pk])
    assert found_in(client, f"pause replay {batch.pk}") == {}
    assert found_in(client, f"start replay {batch.pk}") == {f"Start replay {batch.pk}": replay}
    for state, label in (("running", "Pause"), ("paused", "Resume paused")):
        ReplayBatch.objects.update(state=state)
        label = f"{label} replay {batch.pk}"
        assert found_in(client, f"pause replay {batch.pk}") == {label: replay}
    ReplayBatch.objects.update(state="done")
    assert found_in(client, f"pause replay {batch.pk}") == {}
    assert f"Publish through {pair.name}" in found_in(client, f"publish to {pair.name}")
    assert found_in(client, "dark theme") == {"Dark theme": "/preferences/#theme-dark"}
    assert list(found_in(client, "orders.eu")) == ["orders.eu"]


def test_search_offers_only_what_the_user_may_do(pair: Topology, other: Broker) -> None:
    know(pair.broker, Queue("orders.eu"))
    viewer = signed_in(Role.VIEWER, other)
    assert found_in(viewer, "orders.eu") == found_in(viewer, pair.name) == {}
    assert found_in(signed_in(Role.VIEWER), "peek orders.eu") == {}
    offered = found_in(viewer, "")
    assert "Change password" in offered
    assert found_in(viewer, "webhook") == {}
    assert not {"Add broker", "Create topology", "Publish message", "Audit"} & offered.keys()
