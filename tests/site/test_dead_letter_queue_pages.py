"""The queues of the page of dead letters: what is proposed, what people say, what is unknown."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.urls import reverse

from delayboard.dead_letters.queues.confirmed import Line
from delayboard.dead_letters.search import matching
from delayboard.models import DeadLetterQueue, Parking, QueueDepth
from tests.delayboard.builders import a_message, parked
from tests.site.page_setup import know, signed_in, text_of
from tests.topology.builders import a_queue
from topology import snapshots, work
from topology.definitions import Binding, Exchange, Queue
from topology.models import AuditEntry, Broker, Role, Work, WorkState

pytestmark = pytest.mark.django_db

SHOP = (
    Exchange("dlx"),
    Binding("dlx", "orders.dead", "dead"),
    a_queue("orders", dlx="dlx", key="dead", x_max_length=5),
    a_queue("orders.dead"),
    a_queue("audit", type="stream"),
)


def page(role: Role = Role.OPERATOR, **query: str) -> str:
    return text_of(signed_in(role).get(reverse("dead_letters"), query))


def decide(role: Role | None, name: str, confirmed: str = "1", **more: str) -> Any:
    address = reverse("dead_letter_queue_decide", args=["test-broker"])
    values = {"name": name, "confirmed": confirmed, **more}
    return signed_in(role).post(address, values, follow=True)


def confirm(broker: Broker, name: str, *, is_confirmed: bool = True) -> DeadLetterQueue:
    return DeadLetterQueue.objects.create(
        broker=broker, queue=name, is_confirmed=is_confirmed, decided_at=datetime.now(UTC)
    )


def test_a_proposal_says_how_it_is_fed_and_can_be_confirmed(broker: Broker) -> None:
    know(broker, *SHOP)
    text = page()
    assert "Probably dead-letter queues" in text
    assert (
        "From “orders” when consumers reject messages (rejected) or the queue is full (maxlen), "
        "through the exchange “dlx” with routing key “dead”." in text
    )
    said = text_of(decide(Role.OPERATOR, "orders.dead"))
    assert "“orders.dead” is marked as a dead-letter queue" in said
    assert "Probably dead-letter queues" not in said
    row = DeadLetterQueue.objects.get()
    assert row.is_confirmed
    assert row.decided_by is not None
    assert AuditEntry.objects.filter(action="dead-letter queue marked").count() == 1


def test_what_no_rule_names_can_be_confirmed_too(broker: Broker) -> None:
    know(broker, *SHOP, Queue("error"))
    assert "Its name is typical of such a queue" in page()
    decide(Role.OPERATOR, "error")
    assert DeadLetterQueue.objects.get().queue == "error"


def test_who_says_that_a_queue_holds_none_ends_its_watching(broker: Broker) -> None:
    know(broker, *SHOP)
    row = confirm(broker, "orders.dead")
    DeadLetterQueue.objects.update(parks_automatically=True)
    text = text_of(decide(Role.OPERATOR, "orders.dead", "0"))
    assert "excluded by a user" in text
    row.refresh_from_db()
    assert (row.is_confirmed, row.parks_automatically) == (False, False)
    assert AuditEntry.objects.filter(action="dead-letter queue excluded").count() == 1


def test_who_says_that_it_holds_none_ends_its_parkings_too(broker: Broker) -> None:
    know(broker, *SHOP)
    decide(Role.OPERATOR, "orders.dead")
    asked = Parking.objects.create(broker=broker, queue="orders.dead")
    asked.work = work.create("park", asked.pk, broker=broker, user=None)
    asked.save()
    decide(Role.OPERATOR, "orders.dead", "0")
    assert Work.objects.get().state == WorkState.CANCELLED


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "not a valid queue name"),
        ("n" * 300, "not a valid queue name"),
        ("a\x00b", "not a valid queue name"),
        ("gone", "has no queue with this name"),
        ("audit", "Delayboard cannot take messages from a stream"),
        ("delayboard.tap.x", "a tap of Delayboard"),
    ],
)
def test_what_cannot_be_confirmed_is_refused_with_a_sentence(
    broker: Broker, name: str, said: str
) -> None:
    know(broker, *SHOP)
    assert said in text_of(decide(Role.OPERATOR, name))
    assert not DeadLetterQueue.objects.exists()


def test_nothing_is_confirmed_before_the_broker_answered(broker: Broker) -> None:
    snapshots._latest[broker.pk] = snapshots.Latest(
        None, datetime.now(UTC) + timedelta(days=1), "gone"
    )
    assert "has not answered yet" in text_of(decide(Role.OPERATOR, "orders.dead"))
    confirm(broker, "orders.dead")
    text = page()
    assert "orders.dead" in text
    assert "The number of messages in these queues is unknown." in text
    assert "The queues are unknown until the broker answers." in text


def test_only_operators_decide(broker: Broker) -> None:
    know(broker, *SHOP)
    assert decide(Role.VIEWER, "orders.dead").status_code == 403
    assert decide(None, "orders.dead").status_code == 404
    assert "Mark as dead-letter queue" not in page(Role.VIEWER)
    assert not DeadLetterQueue.objects.exists()


def test_after_deciding_one_is_where_one_was_and_nowhere_else(broker: Broker) -> None:
    know(broker, *SHOP)
    address = reverse("dead_letter_queue_decide", args=["test-broker"])
    client = signed_in(Role.OPERATOR)
    values = {"name": "orders.dead", "confirmed": "1"}
    there = client.post(address, values | {"next": "/dead-letters/?q=orders"})
    assert there["Location"] == "/dead-letters/?q=orders"
    away = client.post(address, values | {"next": "https://evil.test/"})
    assert away["Location"] == "/dead-letters/?broker=test-broker"


def test_a_confirmed_queue_tells_its_growth_what_is_parked_and_what_is_not(broker: Broker) -> None:
    numbers: dict[str, Any] = {"orders.dead": 1204}
    know(broker, *SHOP, **numbers)
    row = confirm(broker, "orders.dead")
    assert "not measured yet" in page()
    QueueDepth.objects.create(
        queue=row, at=datetime.now(UTC) - timedelta(minutes=61), messages=1192
    )
    parked(broker, a_message(), a_message(b"2"), queue="orders.dead")
    text = page().replace("\u202f", ",")
    assert "<strong>1,204</strong> messages are still in this queue" in text
    assert "+12 in the last hour" in text
    assert "?q=queue%3A%22orders.dead%22" in text
    assert "unknown" in text
    know(broker, *SHOP, error="It does not answer.", **numbers)
    assert "in the last hour" not in page()


@pytest.mark.parametrize("name", ["dead", "a b", 'a"b', "a\\b", "a*b", "x:y", "-z", "ü", "a>b"])
def test_the_parked_parked_messages_of_a_queue_are_found_whatever_its_name(
    broker: Broker, name: str
) -> None:
    parked(broker, a_message(b"1"), queue=name)
    parked(broker, a_message(b"2"), queue="axb")
    assert [
        parked_message.queue for parked_message in matching(None, broker, Line(name, None).query)
    ] == [name]


def test_a_confirmed_queue_that_is_gone_is_told(broker: Broker) -> None:
    know(broker, *SHOP)
    confirm(broker, "deleted")
    text = page()
    assert "missing in the broker" in text
    assert "is unknown." not in text


def test_a_text_narrows_queues_and_groups_alike(broker: Broker) -> None:
    know(broker, *SHOP, a_queue("invoices", dlx="", key="invoices.dead"), a_queue("invoices.dead"))
    parked(broker, a_message())
    text = page(q="invoices")
    assert "invoices.dead" in text
    assert "orders.dead" not in text
    assert "No matching groups" in text


def test_hostile_names_are_escaped(broker: Broker) -> None:
    name = "<script>alert(1)</script>\u202e"
    know(broker, a_queue("work", dlx="", key=name), Queue(name))
    text = page()
    assert "<script>alert(1)" not in text
    assert "&lt;script&gt;alert(1)" in text
    decide(Role.OPERATOR, name)
    assert DeadLetterQueue.objects.get().queue == name


@pytest.mark.parametrize(
    "place",
    ["foo", "dead-letters/", "//evil.example", "https://evil.example/", "/\\\\evil", "\x00"],
)
def test_who_decided_goes_back_only_to_a_page_of_ours(broker: Broker, place: str) -> None:
    know(broker, *SHOP)
    answer = decide(Role.OPERATOR, "orders.dead", next=place)
    assert "“orders.dead” is marked as a dead-letter queue" in text_of(answer)
    assert answer.redirect_chain == [("/dead-letters/?broker=test-broker", 302)]
    answer = decide(Role.OPERATOR, "orders.dead", next="/dead-letters/?trend=week")
    assert answer.redirect_chain == [("/dead-letters/?trend=week", 302)]


def test_one_button_starts_to_park_the_proposed_queues(broker: Broker) -> None:
    know(broker, Queue("orders_parked"), Queue("other.dlq"), Queue("work"))
    client = signed_in(Role.OPERATOR, broker)
    text = text_of(client.get(reverse("dead_letters")))
    assert "Park all 2 proposed queues automatically" in text
    assert text.index("Groups of parked messages") < text.index("orders_parked")
    sent = {"name": ["orders_parked", "other.dlq", "gone"], "on": "1", "mark": "1"}
    text = text_of(client.post(reverse("watch", args=[broker.slug]), sent, follow=True))
    assert "Nothing was changed for “gone”." in text
    rows = DeadLetterQueue.objects.filter(is_confirmed=True, parks_automatically=True)
    assert {row.queue for row in rows} == {"orders_parked", "other.dlq"}
    assert "proposed queue" not in text_of(client.get(reverse("dead_letters")))


def test_a_viewer_is_not_offered_to_park_proposed_queues(broker: Broker) -> None:
    know(broker, Queue("orders_parked"))
    text = text_of(signed_in(Role.VIEWER).get(reverse("dead_letters")))
    assert "orders_parked" in text
    assert "automatically</button>" not in text
