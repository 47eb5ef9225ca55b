"""The forms and pages of parking: who may, what is said, what is never an error of the server."""

from __future__ import annotations

from typing import Any

import pytest
from django.template.loader import render_to_string
from django.test import Client, RequestFactory
from django.urls import reverse
from django.utils import timezone

from delayboard.dead_letters import discard
from delayboard.models import (
    BackgroundTask,
    DeadLetterQueue,
    ParkedChange,
    ParkedMessage,
    Parking,
)
from delayboard.models.background_task import task_key
from tests.builders import make_broker
from tests.delayboard.builders import a_message, parked
from tests.site.page_setup import know, signed_in, text_of
from topology.definitions import Queue
from topology.models import Broker, Role, Work, WorkState

pytestmark = pytest.mark.django_db
DEAD = "dead"
ODD = ("", "nowhere", "<script>alert(1)</script>", "\u202eodd\x00", "d" * 300)


@pytest.fixture
def broker() -> Broker:
    broker = make_broker()
    know(broker, Queue(DEAD))
    return broker


@pytest.fixture
def row(broker: Broker) -> DeadLetterQueue:
    return DeadLetterQueue.objects.create(
        broker=broker, queue=DEAD, is_confirmed=True, decided_at=timezone.now()
    )


@pytest.fixture
def client(broker: Broker) -> Client:
    return signed_in(Role.OPERATOR, broker)


def post(client: Client, broker: Broker, address: str, *more: Any, **values: Any) -> Any:
    return client.post(reverse(address, args=[broker.slug, *more]), values, follow=True)


def a_parking(broker: Broker, state: WorkState = WorkState.RUNNING, **stated: Any) -> Parking:
    work = Work.objects.create(kind="park", subject=0, broker=broker, state=state)
    return Parking.objects.create(broker=broker, queue=DEAD, work=work, **stated)


def test_an_operator_watches_and_stops_watching(row: DeadLetterQueue, client: Client) -> None:
    answer = post(client, row.broker, "watch", name=DEAD, on="1", next="/retention/")
    assert answer.redirect_chain[0][0] == "/retention/"
    row.refresh_from_db()
    assert row.parks_automatically
    post(client, row.broker, "watch", name=DEAD, on="0", next="//elsewhere/")
    row.refresh_from_db()
    assert not row.parks_automatically


@pytest.mark.parametrize(
    "name", ["watch", "park", "parked_messages_discard", "parked_messages_restore"]
)
def test_a_viewer_may_do_none_of_it(row: DeadLetterQueue, name: str) -> None:
    viewer = signed_in(Role.VIEWER, row.broker)
    assert post(viewer, row.broker, name, name=DEAD, on="1", all="1").status_code == 403
    assert post(signed_in(), row.broker, name).status_code == 404
    assert not Work.objects.exists()


@pytest.mark.parametrize("queue", ODD)
@pytest.mark.parametrize("name", ["watch", "park"])
def test_odd_names_change_nothing_and_are_said(
    broker: Broker, client: Client, name: str, queue: str
) -> None:
    url = reverse(name, args=[broker.slug])
    answer = client.post(
        url, {"name": queue, "on": "1", "all": "1", "next": "/retention/"}, follow=True
    )
    assert "Nothing was" in text_of(answer)
    assert not Work.objects.exists()


@pytest.mark.parametrize("name", ["parked_messages_discard", "parked_messages_restore"])
def test_a_nul_in_a_form_is_taken_for_nothing(broker: Broker, client: Client, name: str) -> None:
    parked(broker, a_message())
    odd = {"all": "1", "q": "no\x00where", "next": "/retention/\x00"}
    answer = client.post(reverse(name, args=[broker.slug]), odd, follow=True)
    assert answer.status_code == 200
    assert "Nothing was" in text_of(answer)


def test_parked_messages_that_are_not_counted_are_said_to_be_so(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discard, "AT_ONCE", 0)
    parked(broker, a_message())
    answer = post(client, broker, "parked_messages_discard", all="1", q="word")
    assert "does not count the matching messages" in text_of(answer)
    assert "None" not in text_of(answer)


def test_a_queue_that_nobody_confirmed_is_not_parked(broker: Broker, client: Client) -> None:
    answer = post(client, broker, "park", name=DEAD, all="1", next="/retention/")
    assert "Mark the queue first" in text_of(answer)


def test_all_is_parked_and_its_page_follows_it(row: DeadLetterQueue, client: Client) -> None:
    text = text_of(post(client, row.broker, "park", name=DEAD, all="1"))
    assert "All messages of" in text
    assert "not known yet" in text
    assert 'http-equiv="refresh"' in text
    assert "The worker is not running" in text
    parking = Parking.objects.get()
    text = text_of(post(client, row.broker, "parking_cancel", parking.pk))
    assert "Cancelled" in text
    assert 'http-equiv="refresh"' not in text
    assert "is not running" in text_of(post(client, row.broker, "parking_cancel", parking.pk))


@pytest.mark.parametrize(
    ("state", "stated", "reported"),
    [
        (WorkState.DONE, {"requested": 3, "parked": 3}, "All messages are stored in Delayboard"),
        (WorkState.DONE, {"requested": 0}, "The queue was empty."),
        (
            WorkState.DONE,
            {"requested": 3, "parked": 1, "handles": ["a.1"]},
            "not found 2",
        ),
        (WorkState.CANCELLED, {"requested": 3, "parked": 1}, "not parked 2"),
        (WorkState.FAILED, {"requested": 3}, "still in the queue"),
        (
            WorkState.DONE,
            {"requested": 3, "parked": 3, "repeats": 2},
            "2 messages may be repeats",
        ),
    ],
)
def test_the_end_is_told_as_it_was(
    row: DeadLetterQueue, client: Client, state: WorkState, stated: dict[str, Any], reported: str
) -> None:
    parking = a_parking(row.broker, state, **stated)
    assert reported in text_of(client.get(reverse("parking", args=[row.broker.slug, parking.pk])))


@pytest.mark.parametrize(
    "asked", [{"address": "watch", "on": "1"}, {"address": "park", "all": "1"}]
)
def test_what_is_asked_of_a_silent_broker_is_said_to_wait(
    row: DeadLetterQueue, client: Client, asked: dict[str, str]
) -> None:
    values = {"name": DEAD, "next": "/retention/", **asked}
    assert "waits for the broker" not in text_of(post(client, row.broker, **values))
    know(row.broker, Queue(DEAD), error="Connection refused.")
    text = text_of(post(client, row.broker, **values))
    assert "does not answer. The request waits for the broker. Connection refused." in text
    off = {"address": "watch", "on": "0", "name": DEAD, "next": "/retention/"}
    assert "waits for the broker" not in text_of(post(client, row.broker, **off))


def test_a_parking_of_another_broker_is_not_shown(row: DeadLetterQueue, client: Client) -> None:
    other = make_broker(name="Other")
    parking = a_parking(other)
    assert client.get(reverse("parking", args=[row.broker.slug, parking.pk])).status_code == 404


def test_chosen_parked_messages_are_discarded_and_restored(broker: Broker, client: Client) -> None:
    one, two = parked(broker, a_message(b"1"), a_message(b"2"))
    answer = post(
        client,
        broker,
        "parked_messages_discard",
        parked_message=[one.pk, "x", "9" * 30],
        next="/retention/",
    )
    assert "1 parked message discarded." in text_of(answer)
    assert set(ParkedMessage.objects.values_list("pk", "state")) == {
        (one.pk, "discarded"),
        (two.pk, "parked"),
    }
    text = text_of(
        post(client, broker, "parked_messages_restore", parked_message=two.pk, next="/retention/")
    )
    assert "Nothing was restored" in text
    post(client, broker, "parked_messages_restore", group=one.group_id, next="/retention/")
    assert not ParkedMessage.objects.filter(state="discarded").exists()


def test_all_that_match_are_discarded_up_to_the_newest_that_was_shown(
    broker: Broker, client: Client
) -> None:
    one, _ = parked(broker, a_message(b"1"), a_message(b"2"))
    values = {"all": "1", "q": "state:parked", "newest": one.pk, "next": "/retention/"}
    assert "1 parked message discarded." in text_of(
        post(client, broker, "parked_messages_discard", **values)
    )


@pytest.mark.parametrize("query", ['"', "no.such.field:1 (", "size:>much", "\x00"])
def test_a_query_that_is_none_is_said(broker: Broker, client: Client, query: str) -> None:
    parked(broker, a_message(b"1"))
    values = {"all": "1", "q": query, "next": "/retention/"}
    assert post(client, broker, "parked_messages_discard", **values).status_code == 200


def test_many_have_a_page_of_their_own(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discard, "AT_ONCE", 1)
    parked(broker, a_message(b"1"), a_message(b"2"))
    group = ParkedMessage.objects.latest("pk").group_id
    text = text_of(post(client, broker, "parked_messages_discard", group=group))
    assert "Discarding 2 messages" in text
    change = ParkedChange.objects.get()
    text = text_of(post(client, broker, "parked_messages_change_cancel", change.pk))
    assert "Cancelled" in text


@pytest.mark.parametrize(
    ("stated", "reported"),
    [
        (None, "no worker is running"),
        ({"beat_at": True, "details": {"parked": 1234, "repeats": 2}}, "1 234 parked"),
        (
            {"beat_at": True, "last_error": "The journal cannot be written."},
            "Automatic parking fails",
        ),
        ({"beat_at": True, "details": {"trouble": "It is full."}}, "Automatic parking is blocked"),
    ],
)
def test_the_part_of_a_queue_says_how_its_parker_does(
    row: DeadLetterQueue, stated: dict[str, Any] | None, reported: str
) -> None:
    row.parks_automatically = True
    row.save()
    if stated is not None:
        values = {**stated, "beat_at": timezone.now()}
        BackgroundTask.objects.create(key=task_key("park", row.pk), name="Parker", **values)
    assert reported in part(row, may_operate=True)
    assert "Stop automatic parking" in part(row, may_operate=True)


def test_the_part_of_a_queue_offers_what_one_may(row: DeadLetterQueue) -> None:
    assert "Start automatic parking" in part(row, may_operate=True)
    assert "needs the role operator" in part(row, may_operate=False)
    assert "<form" not in part(None, may_operate=True, broker=row.broker)


def part(row: DeadLetterQueue | None, *, may_operate: bool, broker: Broker | None = None) -> str:
    context = {
        "broker": row.broker if row else broker,
        "queue": DEAD,
        "row": row,
        "may_operate": may_operate,
    }
    text = render_to_string("delayboard/_park_queue.html", context, RequestFactory().get("/"))
    return text.replace("\u202f", " ").replace("\u00a0", " ")
