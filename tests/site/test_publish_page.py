from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.urls import reverse
from django.utils import timezone

from analytics.models import Firehose, ScheduledMessage
from delayboard.models import Publication
from delayboard.publishing.track import track_all
from tests.builders import make_broker
from tests.site.page_setup import know, signed_in, text_of
from tests.topology.builders import a_queue
from topology.definitions import Binding, Exchange
from topology.models import Broker, Role, State, Topology
from topology.operations.topology_rows import create_topology
from topology.patterns.delay_levels import params as delay_levels_params
from topology.patterns.hold_queues import params as hold_queues_params

pytestmark = pytest.mark.django_db


def test_nothing_is_published_while_the_broker_does_not_answer(broker: Broker) -> None:
    client = signed_in(Role.OPERATOR)
    text = text_of(client.post(reverse("publish"), {"broker": broker.slug, "send": "1"}))
    assert "Nothing was published." in text
    assert Publication.objects.count() == 0


@pytest.mark.parametrize(
    ("typed", "problem"),
    [
        ({"broker": ""}, "Choose a topology, or a broker"),
        ({"headers": "[1]"}, "must be a JSON object"),
        ({"headers": "{"}, "are not JSON"),
        ({"headers": '{"a": ["\\ud800"]}'}, "“\\ud800” contains an invalid Unicode character"),
        ({"headers": '{"\\udc00": 1}'}, "“\\udc00” contains an invalid Unicode character"),
        ({"expiration": "soon"}, "is not a duration"),
        ({"delay": "5s"}, "A delay needs a topology"),
        ({"target": "orders"}, "A target needs a topology"),
        ({"delay": "soon"}, "is not a duration"),
        ({"publication_id": "x"}, "The message was not published"),
        ({"routing_key": "delayboard.tap.orders"}, "This queue is a tap of Delayboard."),
    ],
)
def test_a_wrong_message_is_said_and_not_published(
    broker: Broker, typed: dict[str, str], problem: str
) -> None:
    know(broker)
    values = {"broker": broker.slug, "routing_key": "x", "send": "1", **typed}
    text = text_of(signed_in(Role.OPERATOR).post(reverse("publish"), values))
    assert problem in text
    assert Publication.objects.count() == 0


def test_a_prediction_names_every_stay_and_sends_nothing(pair: Topology) -> None:
    Topology.objects.update(state=State.APPLIED)
    know(pair.broker, *pair.definitions)
    values = {"topology": pair.slug, "delay": "15s", "predict": "1"}
    text = text_of(signed_in(Role.OPERATOR).post(reverse("publish"), values))
    assert "The message arrives in orders after 15s." in text
    assert 'Waits 15s in <span class="name">orders-retry</span>' in text
    assert Publication.objects.count() == 0


def test_a_prediction_of_what_reaches_no_queue_names_where_it_was_published(broker: Broker) -> None:
    know(broker, Exchange("shop"))
    values = {"broker": broker.slug, "exchange": "shop", "routing_key": "paid", "predict": "1"}
    text = text_of(signed_in(Role.OPERATOR).post(reverse("publish"), values))
    published = 'Published to <span class="name">shop</span> with <span class="name">paid</span>'
    assert published in text


@pytest.mark.parametrize("also", ["broker", "exchange", "routing_key"])
def test_a_topology_and_an_exchange_are_not_both_taken(pair: Topology, also: str) -> None:
    Topology.objects.update(state=State.APPLIED)
    know(pair.broker, *pair.definitions)
    other = make_broker(name="Other broker")
    values = {"topology": pair.slug, also: other.slug, "send": "1"}
    text = text_of(signed_in(Role.OPERATOR).post(reverse("publish"), values))
    assert "Choose a topology, or a broker and an exchange, not both." in text
    assert Publication.objects.count() == 0


def test_a_link_through_a_topology_fills_the_form_so_that_it_can_be_sent(pair: Topology) -> None:
    Topology.objects.update(state=State.APPLIED)
    know(pair.broker, *pair.definitions)
    client = signed_in(Role.OPERATOR)
    answer = client.get(reverse("publish"), {"topology": pair.slug, "delay": "15s"})
    form = answer.context["form"]
    filled = {field.name: field.value() or "" for field in form}
    assert (filled["topology"], filled["broker"]) == (pair.slug, "")
    # The header's links carry the chosen broker: it is that of the topology.
    filled["broker"] = pair.broker.slug
    text = text_of(client.post(reverse("publish"), filled | {"predict": "1"}))
    assert "The message arrives in orders after 15s." in text


@pytest.mark.parametrize(
    ("typed", "problem"),
    [
        ({"delay": "5s"}, "Choose one of these delays: 15s."),
        ({"delay": "15s", "target": "elsewhere"}, "always go to orders"),
    ],
)
def test_what_a_topology_cannot_do_is_said_and_not_published(
    pair: Topology, typed: dict[str, str], problem: str
) -> None:
    Topology.objects.update(state=State.APPLIED)
    know(pair.broker, *pair.definitions)
    values = {"topology": pair.slug, "send": "1", **typed}
    assert problem in text_of(signed_in(Role.OPERATOR).post(reverse("publish"), values))
    assert Publication.objects.count() == 0


def test_a_delay_through_levels_is_rounded_up_predicted_and_bounded(broker: Broker) -> None:
    params = delay_levels_params.Params("own", "shop", 4)
    row = create_topology(None, broker, "delay_levels", params)
    Topology.objects.update(state=State.APPLIED)
    know(broker, *row.definitions, a_queue("work"))
    client = signed_in(Role.OPERATOR)

    def predicted(**typed: str) -> str:
        values = {"topology": row.slug, "predict": "1", "target": "work", **typed}
        return text_of(client.post(reverse("publish"), values))

    assert "4.2s is rounded up to 5s. The message arrives in work after 5s." in predicted(
        delay="4.2s"
    )
    assert "The message arrives in work at once." in predicted(delay="")
    assert "The longest delay of this topology is 15s. Enter a shorter delay." in predicted(
        delay="15.001s"
    )
    assert "The destination is missing. Enter a queue or an exchange." in predicted(
        delay="1s", target=""
    )
    assert "the word “*” or “#”" in predicted(delay="1s", target="a.#")


@pytest.mark.parametrize(
    ("queue_type", "has_firehose", "sentence"),
    [
        ("classic", False, "Delayboard follows the message until delivery."),
        ("quorum", False, "only until it enters the delay. Delivery is not observed for this"),
        ("quorum", True, "until a consumer takes it (firehose)."),
    ],
)
def test_how_far_a_message_is_followed_is_said_before_the_publish(
    broker: Broker, queue_type: str, has_firehose: bool, sentence: str
) -> None:
    params = delay_levels_params.Params("own", "shop", 4, queue_type=queue_type)
    row = create_topology(None, broker, "delay_levels", params)
    Topology.objects.update(state=State.APPLIED)
    if has_firehose:
        Firehose.objects.create(broker=broker)
    know(broker, *row.definitions, a_queue("work"))
    values = {"topology": row.slug, "predict": "1", "target": "work", "delay": "3s"}
    text = text_of(signed_in(Role.OPERATOR).post(reverse("publish"), values))
    assert sentence in text
    url = reverse("topology:topology_settings", args=[row.slug])
    assert (url in text.partition('id="prediction"')[2]) is ("only until" in sentence)


def test_an_entry_that_no_tap_observes_is_said_before_the_publish(broker: Broker) -> None:
    params = hold_queues_params.Params("reminders", ("mail",))
    row = create_topology(None, broker, "hold_queues", params)
    Topology.objects.update(state=State.APPLIED)
    exchange, queue = Exchange("reminders", "direct"), a_queue("mails")
    know(broker, exchange, queue, Binding("reminders", "mails", "mail"), *row.definitions)
    values = {"topology": row.slug, "predict": "1", "target": "mail", "delay": "10s"}
    text = text_of(signed_in(Role.OPERATOR).post(reverse("publish"), values))
    assert "The entry into the delay is not observed, so the due time counts" in text
    values |= {"delay": ""}
    text = text_of(signed_in(Role.OPERATOR).post(reverse("publish"), values))
    assert "Delayboard follows the message until delivery." in text


def test_a_stuck_copy_is_not_said_to_be_lost(broker: Broker) -> None:
    params = delay_levels_params.Params("own", "shop", 4)
    row = create_topology(None, broker, "delay_levels", params)
    Topology.objects.update(state=State.APPLIED)
    know(broker, *row.definitions)
    values = {"broker": broker.slug, "exchange": "shop.delay-level-03", "predict": "1"}
    values["routing_key"] = "0.0.0.1.work"
    text = text_of(signed_in(Role.OPERATOR).post(reverse("publish"), values))
    assert "<strong>Stuck</strong>" in text


def test_the_same_parked_message_sent_twice_is_published_once(broker: Broker) -> None:
    know(broker, a_queue("work"))
    row = Publication.objects.create(broker=broker, size=1)
    values = {
        "broker": broker.slug,
        "routing_key": "work",
        "send": "1",
        "publication_id": str(row.pk),
    }
    answer = signed_in(Role.OPERATOR).post(reverse("publish"), values, follow=True)
    assert "The message was already published" in text_of(answer)
    assert Publication.objects.get() == row


def test_what_is_missing_to_follow_a_message_is_enabled_on_the_page(pair: Topology) -> None:
    know(pair.broker, *pair.definitions)
    Topology.objects.update(state=State.APPLIED, is_adopted=True, tap_type="none")
    client, values = signed_in(Role.OPERATOR), {"topology": pair.slug, "delay": "15s", "body": "x"}
    text = text_of(client.post(reverse("publish"), {**values, "predict": "1"}))
    assert 'name="enable" value="recording"' in text
    assert text.count('class="primary"') == 1
    # Nothing listens at this broker: the refusal is shown, and the form keeps what was typed.
    text = text_of(client.post(reverse("publish"), {**values, "enable": "recording"}))
    assert "Recording not enabled." in text
    assert 'value="15s"' in text
    Topology.objects.update(tap_type="classic")
    text = text_of(client.post(reverse("publish"), {**values, "predict": "1"}))
    assert 'name="enable"' not in text


def test_a_prediction_of_a_loss_says_so(broker: Broker) -> None:
    know(broker)
    values = {"broker": broker.slug, "exchange": "<b>", "routing_key": "x", "predict": "1"}
    text = text_of(signed_in(Role.OPERATOR).post(reverse("publish"), values))
    assert "<strong>Lost</strong>" in text
    assert "Publish message anyway" in text
    assert "<b>" not in text


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"sent": "refused", "error": "No such exchange."}, "The message was not published."),
        ({"sent": "confirmed", "unobservable_why": "Nobody sees it."}, "Nobody sees it."),
        ({"sent": "confirmed", "predicted_delay_ms": 60_000}, "due in"),
    ],
)
def test_a_publication_says_where_it_is(broker: Broker, values: dict[str, Any], said: str) -> None:
    row = Publication.objects.create(broker=broker, size=1, **values)
    text = text_of(signed_in(Role.VIEWER).get(reverse("publication", args=[row.pk])))
    assert said in text
    assert ("data-live-url" in text) is ("predicted_delay_ms" in values)


def test_recent_publishes_say_what_arrived(pair: Topology) -> None:
    row = Publication.objects.create(broker=pair.broker, topology=pair, size=1, sent="confirmed")
    client = signed_in(Role.OPERATOR)
    assert "Confirmed by the broker" in text_of(client.get(reverse("publish")))
    at = timezone.now()
    ScheduledMessage.objects.create(
        broker=pair.broker,
        topology=pair,
        key="m",
        tracking_id=str(row.pk),
        attempt=1,
        requested_delay=timedelta(seconds=15),
        entered_at=at,
        due_at=at,
        left_at=at,
    )
    text = text_of(client.get(reverse("publish")))
    assert f'Arrived <time datetime="{at.isoformat()}"' in text
    assert "Confirmed by the broker" not in text


def test_recent_publishes_are_followed_together(
    pair: Topology, django_assert_num_queries: Any
) -> None:
    Topology.objects.update(state=State.APPLIED)
    values = {"broker": pair.broker, "topology": pair, "size": 1, "sent": "confirmed"}
    rows = [Publication.objects.create(**values) for _ in range(3)]
    with django_assert_num_queries(2):
        assert len(track_all(rows, timezone.now())) == 3


def test_only_the_fields_of_the_chosen_mode_are_used(pair: Topology) -> None:
    Topology.objects.update(state=State.APPLIED)
    know(pair.broker, *pair.definitions)
    client = signed_in(Role.OPERATOR)
    values = {"topology": pair.slug, "delay": "15s", "predict": "1"}
    values |= {"broker": pair.broker.slug, "exchange": "", "routing_key": "orders-retry"}
    through = text_of(client.post(reverse("publish"), values | {"mode": "topology"}))
    assert "The message arrives in orders after 15s." in through
    directly = text_of(client.post(reverse("publish"), values | {"mode": "exchange"}))
    assert "Waits 15s in" in directly
    assert "Correct the marked fields" not in directly


def test_a_time_is_a_delay_from_now_on(broker: Broker) -> None:
    params = delay_levels_params.Params("own", "shop", 16)
    row = create_topology(None, broker, "delay_levels", params)
    Topology.objects.update(state=State.APPLIED)
    know(broker, *row.definitions, a_queue("work"))
    client = signed_in(Role.OPERATOR)

    def predicted(due_at: datetime, **typed: str) -> str:
        values = {"topology": row.slug, "predict": "1", "target": "work", **typed}
        clock = timezone.localtime(due_at)
        values["due_at"] = f"{clock:%Y-%m-%dT%H:%M:%S}"
        return text_of(client.post(reverse("publish"), values))

    at = timezone.now()
    assert "The message arrives in work after " in predicted(at + timedelta(hours=1))
    assert "This time is in the past." in predicted(at - timedelta(hours=1))
    assert "not both" in predicted(at + timedelta(hours=1), delay="5s")


def test_names_of_the_broker_are_offered(pair: Topology) -> None:
    Topology.objects.update(state=State.APPLIED)
    know(pair.broker, *pair.definitions, a_queue("other"))
    client = signed_in(Role.OPERATOR)
    through = text_of(client.get(reverse("publish"), {"topology": pair.slug}))
    assert '<datalist id="targets"><option value="orders"></option></datalist>' in through
    query = {"broker": pair.broker.slug, "routing_key": "x"}
    directly = text_of(client.get(reverse("publish"), query))
    assert '<option value="other">' in directly
    assert '<option value="orders-retry">' in directly
    assert "delayboard.tap" not in directly.partition("<datalist")[2].partition("</div>")[0]


def test_queues_of_a_delay_are_no_targets(broker: Broker) -> None:
    params = delay_levels_params.Params("own", "shop", 4)
    row = create_topology(None, broker, "delay_levels", params)
    Topology.objects.update(state=State.APPLIED)
    know(broker, *row.definitions, a_queue("work"))
    text = text_of(signed_in(Role.OPERATOR).get(reverse("publish"), {"topology": row.slug}))
    assert '<datalist id="targets"><option value="work"></option></datalist>' in text


def test_json_is_formatted_or_said_to_be_none(broker: Broker) -> None:
    client = signed_in(Role.OPERATOR)
    header = {"headers-name": "tenant", "headers-type": "integer", "headers-text": "4711"}
    values = {"broker": broker.slug, "format": "1", "body_format": "json", **header}
    text = text_of(client.post(reverse("publish"), values | {"body": '{"a":1.50}'}))
    assert "{\n  &quot;a&quot;: 1.50\n}" in text
    assert 'value="4711"' in text
    assert "The body is not JSON" in text_of(
        client.post(reverse("publish"), values | {"body": "{"})
    )
    assert Publication.objects.count() == 0
