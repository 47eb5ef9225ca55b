"""The pages of a replay, in every state that it can be in."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.urls import reverse
from django.utils import timezone

from delayboard.models import (
    BatchState,
    ItemState,
    ParkedMessage,
    ParkedState,
    RedactionKind,
    RedactionRule,
    ReplayBatch,
    ReplayOutcome,
)
from delayboard.views.replays import batches
from tests.builders import make_user
from tests.delayboard.builders import SHOP, a_message, parked
from tests.delayboard.replay_rows import a_bad_route, a_batch, a_route
from tests.site.api_client import api_of
from tests.site.page_setup import draft, know, signed_in, text_of
from tests.site.replay_desk import page, press, some
from topology.models import Broker, Role, Work

pytestmark = pytest.mark.django_db
STEERING = ("start", "pause", "resume", "cancel", "options", "rest")


@pytest.fixture(autouse=True)
def seen(broker: Broker) -> None:
    know(broker, *SHOP)


OFFERED = {
    BatchState.PREPARING: {"cancel"},
    BatchState.DRAFT: {"start", "options", "cancel"},
    BatchState.WAITING: {"cancel", "pause"},
    BatchState.RUNNING: {"cancel", "pause"},
    BatchState.WATCHING: {"cancel", "pause", "resume"},
    BatchState.PAUSED: {"cancel", "resume"},
    BatchState.DONE: {"rest"},
    BatchState.CANCELLED: {"rest"},
    BatchState.FAILED: {"rest"},
}
RESTING = {BatchState.DRAFT, BatchState.DONE, BatchState.CANCELLED, BatchState.FAILED}


@pytest.mark.parametrize("state", BatchState)
def test_every_state_offers_what_can_be_done_to_those_who_may(
    broker: Broker, state: BatchState
) -> None:
    items = [ItemState.RETURNED, ItemState.PENDING, ItemState.CANCELLED]
    batch = a_batch(broker, some(broker, 3), state, items)
    for role in (Role.VIEWER, Role.OPERATOR):
        text = page(batch, role)
        links = {name: reverse(f"replay_{name}", args=[batch.pk]) for name in STEERING}
        shown = {name for name, link in links.items() if f'action="{link}"' in text}
        assert shown == (OFFERED[state] if role == Role.OPERATOR else set())
        is_live = f'data-live-url="/ws/replays/{batch.pk}-{state}/"' in text
        assert is_live is (state not in RESTING)
        assert ('http-equiv="refresh"' in text) is (state not in RESTING)


def test_a_batch_of_an_invisible_broker_is_not_found(broker: Broker) -> None:
    batch = a_batch(broker, some(broker))
    client = signed_in()
    assert client.get(reverse("replay_batch", args=[batch.pk])).status_code == 404

    for name in STEERING:
        assert client.post(reverse(f"replay_{name}", args=[batch.pk])).status_code == 404


def test_what_is_being_prepared_says_how_far_it_is(broker: Broker) -> None:
    batch = a_batch(broker, (), BatchState.PREPARING)
    assert "The total number is not known yet" in page(batch)
    Work.objects.update(done=1200, total=5000, error="The database is locked.")
    text = page(batch)
    assert '<progress id="progress" max="5000" value="1200"' in text
    assert "The database is locked. Delayboard tries again." in text


def test_a_dry_run_is_summed_up_with_the_bad_ones_first(broker: Broker) -> None:
    batch = a_batch(broker, some(broker, 3))
    a_bad_route(batch, "loops", routing_key="dead", items_number=12)
    a_bad_route(batch, "unroutable", routing_key="nowhere", items_number=3)
    a_bad_route(batch, "guarded", items_number=1)
    a_route(batch, routing_key="hold", after_ms=5000, items_number=4)
    text = page(batch, Role.VIEWER)
    reported = [
        "16 of 23 messages would not arrive.",
        "<strong>12</strong> would return to the source queue",
        "<strong>3</strong> would be unroutable: no queue matches",
        "<strong>1</strong> had 3 or more replays already",
        "<strong>4</strong> would be sent to a delay",
        "<strong>3</strong> would arrive",
    ]
    places = [text.index(sentence) for sentence in reported]
    assert places == sorted(places)
    assert 'class="part-error"' in text
    assert "Starting a replay needs the role operator" in text


def test_what_waits_can_be_undone_and_published_nothing(broker: Broker) -> None:
    made = draft(broker)
    ReplayBatch.objects.update(undo_seconds=60)
    text = press("start", made)
    assert "Undo time" in text
    assert "Cancel replay" in text
    assert "The replay published no message. Cancelled by" in press("cancel", made)
    assert not ParkedMessage.objects.exclude(state=ParkedState.PARKED).exists()
    assert "This replay has ended: it is cancelled." in press("cancel", made)


def test_pausing_and_going_on(broker: Broker) -> None:
    made = draft(broker)
    press("start", made)
    assert "Delayboard publishes no message while the replay is paused." in press("pause", made)
    assert "This replay is paused already." in press("pause", made)
    assert "Paused" not in press("resume", made).split("<section")[0]
    assert "Only a paused replay can be resumed. This replay is running." in press("resume", made)


def test_the_first_ones_are_watched_until_a_moment(broker: Broker) -> None:
    until = timezone.now() + timedelta(minutes=5)
    batch = a_batch(
        broker,
        some(broker, 3),
        BatchState.WATCHING,
        [ItemState.DONE, ItemState.PENDING, ItemState.PENDING],
        canary=1,
        canary_until=until,
    )
    text = page(batch)
    assert "Delayboard sent 1 canary messages." in text
    assert f"{until:%H:%M:%S}" in text
    assert "until an operator resumes or cancels it" in text
    ReplayBatch.objects.update(canary_goes_on=True)
    assert "The replay then resumes automatically" in page(batch)


def test_the_counters_add_up_to_what_was_chosen(broker: Broker) -> None:
    batch = a_batch(broker, some(broker, 16), BatchState.RUNNING, list(ItemState), doubled=2)
    text = page(batch, Role.VIEWER)
    counted = re.findall(r"<li><div><strong>(\d+)</strong><span>", text)
    assert sorted(map(int, counted)) == sorted(batch.counts().values())
    assert sum(batch.counts().values()) == 16
    assert "<span>10</span> of" in text
    assert "2</strong> may be duplicated" in text


def test_the_end_says_what_was_left_and_what_became_of_them(broker: Broker) -> None:
    parked_messages = some(broker, 4)
    states = [ItemState.DONE, ItemState.DONE, ItemState.DONE, ItemState.RETURNED]
    batch = a_batch(broker, parked_messages, BatchState.DONE, states, delivered=1, died=1)
    batch.items.filter(position=1).update(
        outcome=ReplayOutcome.DELIVERED, outcome_at=timezone.now()
    )
    again = parked(broker, a_message(b"again"))[0]
    batch.items.filter(position=2).update(
        outcome=ReplayOutcome.DIED, outcome_at=timezone.now(), died_as=again
    )
    batch.items.filter(position=3).update(may_be_duplicated=True)
    text = page(batch)
    assert "3 of 4 messages were replayed." in text
    assert "No queue took it." in text
    assert "may be duplicated" in text
    assert f'parked/{again.pk}/">message {again.pk}</a>' in text
    assert "records what it can observe of these messages" in text
    # Its state is not green: one message died again.
    assert '<span class="state state-warn">Done, with failures</span>' in text
    ReplayBatch.objects.update(followed_to=timezone.now() + timedelta(hours=1))
    text = page(batch)
    assert "Delayboard recorded no later event" in text
    assert "are not observed" in text
    assert "data-live-url" not in text


def test_a_failed_canary_shows_its_reason_queue_and_x_death_with_links(broker: Broker) -> None:
    batch = a_batch(
        broker,
        some(broker, 3),
        BatchState.PAUSED,
        [ItemState.DONE, ItemState.RETURNED, ItemState.PENDING],
        canary=2,
        died=1,
        group=some(broker)[0].group,
    )
    death = {"queue": "orders", "reason": "rejected", "count": 2, "routing-keys": ["orders"]}
    again = parked(broker, a_message(b"again", {"x-death": [death]}), queue="orders-dead")[0]
    batch.items.filter(outcome="", position=1).update(
        outcome=ReplayOutcome.DIED, outcome_at=timezone.now(), died_as=again
    )
    text = page(batch)
    failures = text.partition('id="failures"')[2].partition('id="messages"')[0]
    assert "rejected: a consumer rejected the message" in failures
    assert 'name=orders-dead">orders-dead</a>' in failures
    assert '<strong>rejected</strong> in <span class="name">orders</span>, 2 times' in failures
    assert reverse("parked_message", args=[broker.slug, again.pk]) in failures
    assert reverse("message_group", args=[broker.slug, again.group_id]) in failures
    # The other was refused by the broker, for a reason.
    assert "No queue took it." in failures
    assert (
        f'href="{reverse("message_group", args=[broker.slug, batch.group_id])}">3 of the group'
        in text
    )
    assert 'Correct the cause of <a href="#failures">the failures</a>, then resume' in text
    assert "pauses when one of the first 2 messages (canary) is dead-lettered again, or 10" in text
    # Its dry run was good, and the page does not call the messages good for it.
    assert text.count(">Dry run: good</span>") == 3
    assert ">Good</span>" not in text
    # The message that died again has one state.
    assert 'data-state="done"' not in text.partition('id="messages"')[2].partition("</thead>")[2]
    RedactionRule.objects.create(kind=RedactionKind.HEADER, pattern="x-death")
    assert "A redaction rule hides x-death." in page(batch, Role.VIEWER)
    # A dry run of the message that died again is good too, and says what happened before.
    assert "dead-lettered again after an earlier replay" in page(a_batch(broker, [again]))


def test_items_are_paged_and_filtered(broker: Broker) -> None:
    batch = a_batch(
        broker, some(broker, 60), BatchState.DONE, [ItemState.DONE] * 29 + [ItemState.FAILED]
    )
    text = page(batch)
    assert text.count('<td class="number wide" data-label="No.">') == 25
    assert "after=25" in text
    rest = page(batch, after="50")
    assert "Last page" in rest
    failed = page(batch, show="failed")
    assert failed.count('data-state="failed"') == 2
    assert 'data-state="done"' not in failed
    route = batch.routes.get()
    assert "Messages of one target." in page(batch, route=str(route.pk))
    assert "No message matches this filter." in page(batch, route="999999")


@pytest.mark.parametrize("odd", ["x", "-1", "²", "9" * 40, "1.5"])
def test_odd_places_and_filters_are_the_first_page(broker: Broker, odd: str) -> None:
    batch = a_batch(broker, some(broker), BatchState.DONE, [ItemState.DONE])
    text = page(batch, show=odd, route=odd, after=odd)
    assert text.count('data-state="done"') == 2


def test_the_list_tells_how_far_each_is_and_can_be_of_those_not_ended(broker: Broker) -> None:
    done = a_batch(broker, some(broker), BatchState.DONE, [ItemState.DONE])
    running = a_batch(broker, some(broker), BatchState.RUNNING, list(ItemState)[::-1])
    client = signed_in(Role.VIEWER, broker)
    text = text_of(client.get(reverse("replays")))
    assert f"Replay {done.pk}<" in text
    assert "2 of 2" in text
    text = text_of(client.get(reverse("replays"), {"open": "1"}))
    assert f"Replay {done.pk}<" not in text
    assert f"Replay {running.pk}<" in text
    now = text_of(client.get(reverse("now")))
    assert "<strong>1</strong>" in now


def test_the_list_is_sorted_and_paged_both_ways(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "PAGE", 1)
    for _ in range(2):
        a_batch(broker, some(broker), BatchState.DONE, [ItemState.DONE])
    client, both = signed_in(Role.VIEWER, broker), list(ReplayBatch.objects.order_by("pk"))
    for sort, expected in (("prepared", both), ("", both[::-1])):
        text, edge = "", ""
        for batch in expected:
            text = text_of(client.get(reverse("replays"), {"sort": sort, "after": edge}))
            assert re.findall(r">Replay (\d+)<", text) == [str(batch.pk)]
            edge = str(batch.pk)
        assert "Last page" in text


def test_hostile_names_stay_texts(broker: Broker) -> None:
    name = "<script>alert(1)</script>\u202eodd"
    parked_message = parked(broker, a_message(b"1", message_id=name))[0]
    batch = a_batch(broker, [parked_message], description=name, state_why=name)
    a_bad_route(batch, exchange=name, routing_key=name, why=name, items_number=1)
    batch.routes.update(verdict=name)
    batch.items.update(error=name)
    for state in BatchState:
        ReplayBatch.objects.update(state=state, state_why=name)
        for role in (Role.VIEWER, Role.OPERATOR):
            assert "<script>alert" not in page(batch, role)
    assert "<script>alert" not in text_of(signed_in(Role.VIEWER).get(reverse("replays")))


def test_where_they_go_is_hidden_from_whom_a_rule_hides_deaths(broker: Broker) -> None:
    batch = a_batch(broker, some(broker), BatchState.DONE, [ItemState.RETURNED])
    batch.routes.update(exchange="secret-exchange", verdict="The message arrives in secret-queue.")
    batch.items.update(error="secret-queue is full.")
    RedactionRule.objects.create(
        kind=RedactionKind.HEADER, pattern="x-death", least_role=Role.ADMIN
    )
    for state in (BatchState.DONE, BatchState.DRAFT):
        ReplayBatch.objects.update(state=state)
        assert "secret-" not in page(batch)
        assert "secret-" in page(batch, Role.ADMIN)


def test_warnings_of_a_dry_run_name_no_hidden_target(broker: Broker) -> None:
    know(broker, *SHOP)
    batch = a_batch(broker, some(broker), BatchState.DRAFT, [ItemState.PENDING])
    RedactionRule.objects.create(
        kind=RedactionKind.HEADER, pattern="x-death", least_role=Role.ADMIN
    )
    for role, is_shown in ((Role.VIEWER, False), (Role.ADMIN, True)):
        api = api_of(make_user(role.name, role, broker), role)
        warnings = api.get(f"replays/{batch.pk}/dry-run").json()["warnings"]
        assert any("does not observe" in one for one in warnings) is is_shown


def test_a_search_that_tells_what_is_hidden_is_hidden(broker: Broker) -> None:
    batch = a_batch(broker, some(broker), query="header.token:s3cret", description="a search")
    RedactionRule.objects.create(kind=RedactionKind.HEADER, pattern="token", least_role=Role.ADMIN)
    for role, is_shown in ((Role.OPERATOR, False), (Role.ADMIN, True)):
        client = signed_in(role, broker)
        assert ("s3cret" in text_of(client.get(reverse("replays")))) is is_shown
        assert "s3cret" not in text_of(client.get(reverse("now")))
        assert ("s3cret" in page(batch, role)) is is_shown
