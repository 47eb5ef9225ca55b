from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.urls import reverse

from tests.site.page_setup import know, signed_in, text_of
from tests.topology.builders import a_queue
from topology.definitions import Binding, Exchange, Queue
from topology.models import Broker, Role, State, Topology
from topology.patterns.busy_wait.pattern import busy_wait
from topology.patterns.delay_queues import params as delay_queues_params
from topology.patterns.delay_queues.pattern import delay_queues
from topology.patterns.retry_loop.pattern import retry_loop
from topology.provisioning.recognition import Recognition, recognize
from topology.snapshot import Snapshot
from topology.views.brokers.queues import PAGE
from topology.views.brokers.vhost import MOST
from topology.views.diagram import FORWARDER_NOTE

pytestmark = pytest.mark.django_db


def typed(*objects: Any) -> list[Any]:
    return [obj.with_type() if isinstance(obj, Queue) else obj for obj in objects]


def shown(broker: Broker, **query: str) -> str:
    address = reverse("topology:vhost", args=[broker.slug])
    return text_of(signed_in(Role.VIEWER).get(address, query))


def whole(pair: Topology) -> list[Any]:
    return typed(
        *pair.definitions,
        Exchange("shop", "topic"),
        Queue("audit"),
        Binding("shop", "audit", "#"),
        Binding("shop", "orders", "orders", destination_is_queue=False),
    )


def test_the_whole_vhost_is_a_box_for_each_topology_and_for_what_belongs_to_none(
    pair: Topology,
) -> None:
    numbers: dict[str, Any] = {"audit": 12, "orders-retry": 7}
    know(pair.broker, *whole(pair), **numbers)
    text = shown(pair.broker)
    for link in ("?open=retry_pair%2Forders", "?open=queues", "?open=exchanges"):
        assert f'<a href="{link}">' in text
    assert '<tspan class="unit" dx="5">waiting</tspan>' in text
    assert "messages wait and the queue has no consumer" in text
    assert text.index('class="name" href="?open=queues"') < text.index(
        'class="name" href="?open=retry_pair%2Forders"'
    )


def test_a_topology_opens_into_its_own_picture_and_leads_to_its_pages(pair: Topology) -> None:
    know(pair.broker, *whole(pair))
    Topology.objects.filter(pk=pair.pk).update(state=State.APPLIED)
    text = shown(pair.broker, open="retry_pair/orders")
    assert 'data-key="queue/orders-retry"' in text
    assert reverse("topology:topology", args=[pair.slug]) in text
    assert f"{reverse('topology:discovered', args=[pair.broker.slug])}?kind=retry_pair" in text
    assert "dead-letters after" in text


def test_other_queues_open_into_theirs_with_a_link_to_each(pair: Topology) -> None:
    know(pair.broker, *whole(pair), audit=12)
    text = shown(pair.broker, open="queues")
    page = reverse("dead_letter_queue", args=[pair.broker.slug])
    assert f'<a class="name" href="{page}?name=audit">audit</a>' in text
    assert 'data-key="queue/audit"' in text
    assert "orders-retry" not in text


def test_work_queues_are_linked_from_the_delays_that_lead_to_them(broker: Broker) -> None:
    late = delay_queues.definitions(delay_queues_params.Params("mails", (timedelta(seconds=10),)))
    know(
        broker,
        *late,
        *busy_wait.definitions(busy_wait.EXAMPLE),
        *typed(Queue("mails"), Queue(busy_wait.EXAMPLE.queue)),
    )
    text = shown(broker)
    assert text.count('<td data-label="Routes to"><span class="name">Other queues</span></td>') == 2
    (forwarder,) = busy_wait.forwarders(busy_wait.EXAMPLE)
    inside = shown(broker, open="queues")
    assert f"queue {forwarder.queue}</span>" in inside
    assert "forwarder forwards due messages" in inside
    assert "dead-letters after 10s" in inside
    assert FORWARDER_NOTE in inside
    assert "missing" not in inside.partition("<tbody>")[2].partition("</main>")[0]


def test_loops_that_share_their_dead_side_have_a_box_each(broker: Broker) -> None:
    one = retry_loop.parse({"name": "a", "input_exchange": "in"})
    know(
        broker,
        *(retry_loop.definitions(one) | retry_loop.definitions(replace(one, input_queue="b"))),
    )
    text = shown(broker)
    assert "2 exchanges · 2 queues" in text
    assert ">1 queue<" in text
    assert "?open=exchanges" not in text
    second = shown(broker, open="retry_loop/b")
    assert f'data-key="queue/{one.dead_queue}"' in second


def test_thousands_are_shown_in_part_and_it_is_said_how_many_there_are(broker: Broker) -> None:
    know(broker, *typed(*(Queue(f"queue-{n}") for n in range(1_234))))
    text = shown(broker, open="queues")
    assert "Showing 500 of 1 234" in text.replace("\u202f", " ")
    assert text.count('class="shape"') == MOST
    assert "Showing" not in shown(broker, open="queues", q="queue-77")


def test_a_search_narrows_and_says_when_nothing_fits(pair: Topology) -> None:
    know(pair.broker, *whole(pair))
    text = shown(pair.broker, q="AUD")
    assert "1 box matches “AUD”." in text
    assert "retry_pair%2Forders" not in text
    assert "No matching objects" in shown(pair.broker, q="nowhere")


def test_an_empty_vhost_a_silent_broker_and_what_is_gone_say_so(broker: Broker) -> None:
    assert "No data yet" in shown(broker)
    know(broker)
    assert "No objects" in shown(broker)
    assert "Object not found" in shown(broker, open="retry_pair/<b>")


def test_a_broker_that_fell_silent_shows_what_was_last_known_with_its_age(pair: Topology) -> None:
    know(pair.broker, *whole(pair), error="It is gone.")
    text = shown(pair.broker)
    assert "It is gone." in text
    assert "7m ago" in text
    assert "?open=retry_pair%2Forders" in text


def test_hostile_names_are_text(broker: Broker) -> None:
    name = '"><script>alert(1)</script>&'
    know(broker, *typed(Queue(name), a_queue("work", dlx=name), Exchange(name + "x")))
    for query in ({}, {"open": "queues"}, {"open": "exchanges"}, {"open": "missing"}, {"q": name}):
        assert "<script>alert" not in shown(broker, **query)


def test_who_may_not_see_the_broker_sees_no_picture(broker: Broker) -> None:
    address = reverse("topology:vhost", args=[broker.slug])
    assert signed_in().get(address).status_code == 404


def test_the_queues_of_a_broker_come_in_pages_that_say_so(broker: Broker) -> None:
    know(broker, *typed(*(Queue(f"queue-{n:04}") for n in range(2 * PAGE + 5))))
    client = signed_in(Role.VIEWER)
    address = reverse("topology:broker", args=[broker.slug])
    text = text_of(client.get(address))
    assert "Showing 1 to 200 of 405." in text
    assert text.count('<th scope="row">') == PAGE
    assert "?page=2" in text
    last = text_of(client.get(address, {"page": "3"}))
    assert "Showing 401 to 405 of 405." in last
    assert "queue-0404" in last
    assert "queue-0399" not in last
    assert "queue-0404" in text_of(client.get(address, {"page": "99999"}))
    one = text_of(client.get(address, {"q": "QUEUE-0007"}))
    assert one.count('<th scope="row">') == 1


def test_the_dead_letter_candidates_are_bounded_and_can_be_searched(broker: Broker) -> None:
    deep: dict[str, Any] = {"queue-0777": 5}
    know(broker, *typed(*(Queue(f"queue-{n:04}") for n in range(1_000))), **deep)
    client = signed_in(Role.VIEWER)
    text = text_of(client.get(reverse("dead_letters")))
    assert "Showing 300 of 1 000 unmarked queues" in text.replace("\u202f", " ")
    assert "queue-0777" in text
    assert "queue-0999" not in text
    assert "queue-0999" in text_of(client.get(reverse("dead_letters"), {"q": "0999"}))


def test_what_is_recognised_is_worked_out_once_for_all_who_look(
    pair: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    recognized: list[Snapshot] = []

    def count(snapshot: Snapshot) -> Recognition:
        recognized.append(snapshot)
        return recognize(snapshot)

    monkeypatch.setattr("topology.views.brokers.vhost.recognize", count)
    first = know(pair.broker, *whole(pair))
    for query in ({}, {"open": "queues"}, {"q": "audit"}):
        shown(pair.broker, **query)
    assert recognized == [first]
    second = know(pair.broker, *whole(pair), audit=3)
    shown(pair.broker)
    assert recognized == [first, second]
