"""How a replay is chosen, judged with other options, and started."""

from __future__ import annotations

import pytest
from django.urls import reverse

from delayboard.dead_letters.replay import batch_state
from delayboard.models import BatchState, ItemState, ParkedMessage, ParkedState, ReplayBatch
from tests.delayboard.builders import SHOP, a_message, parked
from tests.delayboard.replay_rows import a_batch
from tests.site.page_setup import draft, know, signed_in, text_of
from tests.site.replay_desk import SENT, page, press, some
from tests.topology.builders import a_queue
from topology.models import AuditEntry, Broker, Role, Work

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def seen(broker: Broker) -> None:
    know(broker, *SHOP)


def test_a_bad_dry_run_wants_a_typed_yes(broker: Broker) -> None:
    made = draft(broker, key="nowhere")
    assert "2 of 2 messages would not arrive." in page(made)
    assert "Not started." in press("start", made, typed="no")
    assert Work.objects.count() == 0
    assert "Not started." not in press("start", made, typed=" YES ")
    made.refresh_from_db()
    assert made.state == BatchState.RUNNING
    assert "The worker is not running" in page(made)


def test_of_two_who_press_start_one_is_told(broker: Broker) -> None:
    made = draft(broker)
    assert "Not started." not in press("start", made)
    assert "Not started. This replay was started already." in press("start", made)
    assert Work.objects.filter(kind=batch_state.KIND).count() == 1


def test_two_drafts_of_the_same_parked_messages_replay_each_once(broker: Broker) -> None:
    keys = [parked_message.pk for parked_message in some(broker)]
    client = signed_in(Role.OPERATOR, broker)
    for _ in range(2):
        client.post(reverse("parked_messages_replay", args=[broker.slug]), {"parked_message": keys})
    second, first = ReplayBatch.objects.all()
    press("start", first)
    press("start", second)
    second.refresh_from_db()
    assert second.cancelled == 2
    assert f"in replay {first.pk}" in page(second)


def test_options_that_are_wrong_change_nothing_and_are_kept_in_the_form(broker: Broker) -> None:
    made = draft(broker)
    text = press("options", made, mode="typed", key="", rate="many", **SENT)
    assert "The options are not saved." in text
    assert "Type an exchange and a key" in text
    assert "Enter 0.001 to 100\u202f000 messages per second" in text
    assert 'value="many" placeholder="empty: no limit" aria-invalid="true"' in text
    made.refresh_from_db()
    assert (made.key, made.rate) == ("parked-work", None)


def test_other_options_are_judged_again(broker: Broker) -> None:
    made = draft(broker)
    text = press("options", made, mode="typed", key="nowhere", rate="50", **SENT)
    assert "2 of 2 messages would not arrive." in text
    assert "at most 50 messages per second" in text
    made.refresh_from_db()
    assert (made.key, made.rate, made.state) == ("nowhere", 50, BatchState.DRAFT)


def test_a_start_with_other_options_than_were_judged_only_judges(broker: Broker) -> None:
    made = draft(broker)
    text = press("start", made, mode="typed", key="nowhere", typed="yes", **SENT)
    assert "repeated the dry run and published nothing" in text
    made.refresh_from_db()
    assert (made.state, made.key) == (BatchState.DRAFT, "nowhere")
    press("start", made, mode="typed", key="nowhere", typed="yes", **SENT)
    made.refresh_from_db()
    assert made.state == BatchState.RUNNING


def test_how_it_is_sent_can_be_changed_with_the_start(broker: Broker) -> None:
    made = draft(broker)
    press("start", made, mode="typed", key="parked-work", rate="50", typed="yes", **SENT)
    made.refresh_from_db()
    assert (made.state, made.rate) == (BatchState.RUNNING, 50)


def test_a_draft_says_which_of_its_parked_messages_are_no_longer_free(broker: Broker) -> None:
    made = draft(broker)
    item = made.items.select_related("parked_message")[0]
    assert item.parked_message is not None
    assert "in another replay" not in page(made)
    ParkedMessage.objects.filter(pk=item.parked_message.pk).update(state=ParkedState.REPLAYING)
    assert "1 message is in another replay" in page(made)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"mode": "x"},
        {"mode": "delay", "topology_id": "99999"},
        {"mode": "delay", "delay": "-1"},
    ],
)
def test_what_is_no_option_changes_nothing(broker: Broker, values: dict[str, str]) -> None:
    made = draft(broker)
    before = ReplayBatch.objects.values().get()
    press("options", made, **(SENT | {"undo_seconds": "2d"} | values))
    assert ReplayBatch.objects.values().get() == before


def test_a_started_one_takes_no_other_options(broker: Broker) -> None:
    made = draft(broker)
    press("start", made)
    text = press("options", made, mode="typed", key="parked-work", rate="5", **SENT)
    assert "Nothing was changed. Only a draft can be changed" in text


def test_how_long_the_first_ones_are_watched_is_said(broker: Broker) -> None:
    know(
        broker,
        a_queue("orders", dlx="", key="wait"),
        a_queue("wait", ttl=90_000, dlx="", key="orders"),
        a_queue("dead"),
    )
    batch = a_batch(broker, some(broker))
    assert "0s: one retry round of the target, 1m 30s." in page(batch)


def test_a_draft_begins_in_the_suggested_stages_and_says_until_when(broker: Broker) -> None:
    made = a_batch(broker, some(broker, 20))
    assert "Suggested stages: 10 % (2), observed until" in page(made)
    assert 'value="suggested" checked' in page(made)
    sent = SENT | {"canary": "7", "mode": "default", "plan": "suggested", "suggested": "10% 1m"}
    said = {"name": "prices", "reason": "entered", "link": "https://tickets/1"}
    start = reverse("replay_start", args=[made.pk])
    signed_in(Role.OPERATOR, broker).post(start, sent | said)
    made.refresh_from_db()
    assert (made.stages, made.canary, made.canary_seconds) == ([[10.0, 60, 0]], 2, 60)
    text = page(made)
    assert all(words in text for words in (": prices</h1>", "entered", 'href="https://tickets/1"'))
    details = AuditEntry.objects.get(action="replay started").details
    assert (details["name"], details["link"]) == ("prices", "https://tickets/1")


def test_a_canary_of_no_message_is_refused(broker: Broker) -> None:
    made = a_batch(broker, some(broker, 20))
    assert 'name="canary" inputmode="numeric" autocomplete="off" value="2"' in page(made)
    text = press("start", made, **(SENT | {"mode": "default", "plan": "canary"}))
    assert "Enter how many messages the canary has, at least 1." in text
    assert 'value="canary" checked' in text
    made.refresh_from_db()
    assert made.state == BatchState.DRAFT
    press("start", made, **(SENT | {"mode": "default", "plan": "canary", "canary": "2"}))
    made.refresh_from_db()
    assert (made.state, made.canary) == (BatchState.RUNNING, 2)


def test_one_button_starts_all_at_once_and_a_few_have_no_stages(broker: Broker) -> None:
    """A browser sends the chosen way to begin, and then the button's."""
    made, few = a_batch(broker, some(broker, 20)), draft(broker)
    assert "Start all at once</button>" in page(made)
    assert "Start all at once</button>" not in page(few)
    assert 'value="once" checked' in page(few)
    sent = SENT | {"mode": "default", "plan": ["suggested", "once"], "suggested": "10% 1m"}
    start = reverse("replay_start", args=[made.pk])
    signed_in(Role.OPERATOR, broker).post(start, sent)
    made.refresh_from_db()
    assert (made.state, made.stages, made.canary) == (BatchState.RUNNING, [], 0)


def test_all_at_once_stays_chosen_after_other_options(broker: Broker) -> None:
    made = a_batch(broker, some(broker, 20))
    address = reverse("replay_options", args=[made.pk])
    client = signed_in(Role.OPERATOR, broker)
    sent = SENT | {"mode": "default", "plan": "once"}
    assert 'value="once" checked' in text_of(client.post(address, sent, follow=True))


def test_a_link_that_is_none_starts_nothing(broker: Broker) -> None:
    made = draft(broker)
    text = press("start", made, reason="", link="javascript:alert(1)")
    assert "Not started. The link must begin with https:// or http://." in text


def test_a_second_person_approves_where_the_broker_wants_one(broker: Broker) -> None:
    Broker.objects.update(needs_approval=True)
    made = draft(broker)
    first, second = (signed_in(Role.OPERATOR, broker) for _ in range(2))
    start = reverse("replay_start", args=[made.pk])
    assert "needs a second person" in text_of(first.post(start, follow=True))
    made.refresh_from_db()
    assert (made.is_draft, made.requested_by is None) == (True, False)
    assert "You requested the approval" in text_of(first.post(start, follow=True))
    with pytest.raises(batch_state.BatchError, match="need the approval of a second person"):
        batch_state.start(None, made, despite_verdict=False)
    # Who changes it asks again: nobody approves what was not seen.
    options = reverse("replay_options", args=[made.pk])
    second.post(options, SENT | {"mode": "typed", "key": "parked-work", "rate": "5"})
    assert "needs a second person" in text_of(second.post(start, follow=True))
    asker = ReplayBatch.objects.get().requested_by
    assert "Approve and start replay" in text_of(first.get(reverse("replay_batch", args=[made.pk])))
    seen = batch_state.name_request(ReplayBatch.objects.get())
    batch_state.start(asker, unrequested(made), despite_verdict=False)
    assert "after you saw it" in text_of(first.post(start, {"approves": seen}, follow=True))
    seen = batch_state.name_request(ReplayBatch.objects.get())
    first.post(start, {"approves": seen})
    made = ReplayBatch.objects.get()
    assert made.state == BatchState.RUNNING
    assert (made.requested_by, made.approved_by) == (asker, made.started_by)
    assert made.approved_by != asker


def unrequested(made: ReplayBatch) -> ReplayBatch:
    """As after a change of the draft."""
    ReplayBatch.objects.update(requested_by=None)
    return made


def test_targets_with_one_verdict_are_one_row(broker: Broker) -> None:
    made = draft(broker)
    for key in ("a", "b"):
        route = made.routes.order_by("pk")[0]
        route.pk, route.routing_key, route.verdict = None, key, f"The message arrives in {key}."
        route.items_number = 3
        route.save()
    text = page(made)
    assert "2 targets" in text


def test_what_was_not_replayed_becomes_another_draft(broker: Broker) -> None:
    states = [ItemState.DONE, ItemState.RETURNED, ItemState.UNKNOWN]
    batch = a_batch(broker, some(broker, 3), BatchState.DONE, states)
    assert "Replay 2 remaining messages" in page(batch)
    assert "Dry run of replay" in press("rest", batch)
    made = ReplayBatch.objects.latest("pk")
    kept = [item.parked_message_id for item in batch.items.exclude(state=ItemState.DONE)]
    assert [item.parked_message_id for item in made.items.all()] == kept


def test_chosen_parked_messages_and_all_that_match_become_drafts(broker: Broker) -> None:
    parked_messages = some(broker, 5)
    client = signed_in(Role.OPERATOR, broker)
    address = reverse("parked_messages_replay", args=[broker.slug])
    client.post(address, {"parked_message": [parked_messages[0].pk, parked_messages[2].pk]})
    chosen = ReplayBatch.objects.latest("pk")
    assert chosen.selected == 2
    client.post(address, {"all": "1", "q": "reason:rejected", "newest": parked_messages[3].pk})
    matching = ReplayBatch.objects.latest("pk")
    assert (matching.selected, matching.newest) == (4, parked_messages[3].pk)
    group = parked_messages[0].group
    client.post(address, {"group": group.pk, "newest": parked_messages[4].pk})
    assert ReplayBatch.objects.latest("pk").selected == 5
    assert "Dry run of replay" in page(chosen)


def test_a_part_of_a_group_is_replayed_from_the_page_of_the_group(broker: Broker) -> None:
    parked_messages = some(broker, 5)
    group = parked_messages[0].group
    client = signed_in(Role.OPERATOR, broker)
    page_of = reverse("message_group", args=[broker.slug, group.pk])
    text = text_of(client.get(page_of))
    assert 'name="limit"' in text
    assert ">5 parked</a>, 5 ever parked." in text
    address = reverse("parked_messages_replay", args=[broker.slug])
    values = {"group": group.pk, "next": page_of, "order": "newest"}
    refused = text_of(client.post(address, values | {"limit": "0"}, follow=True))
    assert "The replay was not prepared. Enter 1 or more" in refused
    assert f"Group {group.pk}" in refused
    client.post(address, values | {"limit": "2"})
    batch = ReplayBatch.objects.get()
    sent = set(batch.items.values_list("parked_message_id", flat=True))
    assert sent == {parked_messages[3].pk, parked_messages[4].pk}
    listed = reverse("parked_messages", args=[broker.slug])
    back = f'/ <a href="{page_of}">Group {group.pk}</a>'
    assert back in text_of(client.get(listed, {"q": f"group:{group.pk}"}))
    assert back not in text_of(client.get(listed, {"q": "group:99999"}))


def test_parked_messages_that_came_from_nowhere_are_sent_where_somebody_types(
    broker: Broker,
) -> None:
    parked_message = parked(broker, a_message(b"1", {}))[0]
    client = signed_in(Role.OPERATOR, broker)
    address = reverse("parked_messages_replay", args=[broker.slug])
    page_of = reverse("parked_message", args=[broker.slug, parked_message.pk])
    assert '<details class="where" open>' in text_of(client.get(page_of))
    values = {"parked_message": parked_message.pk, "next": page_of}
    draft = text_of(client.post(address, values, follow=True))
    assert "Enter an exchange and a key" in draft
    client.post(address, values | {"exchange": "", "routing_key": "orders"})
    made = ReplayBatch.objects.latest("pk")
    assert (made.mode, made.key, made.selected) == ("typed", "orders", 1)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "The replay was not prepared. No parked message was chosen."),
        ({"parked_message": "x"}, "The replay was not prepared. No parked message was chosen."),
        ({"all": "1", "q": "colour:red"}, "The replay was not prepared."),
        ({"parked_message": "99999"}, "The replay was not prepared."),
    ],
)
def test_what_cannot_be_chosen_is_said(broker: Broker, values: dict[str, str], said: str) -> None:
    client = signed_in(Role.OPERATOR, broker)
    address = reverse("parked_messages_replay", args=[broker.slug])
    assert said in text_of(client.post(address, values, follow=True))
    assert ReplayBatch.objects.count() == 0


def test_a_group_can_be_sent_elsewhere(broker: Broker) -> None:
    parked_messages = some(broker)
    group = parked_messages[0].group
    address = reverse("group_redirect", args=[broker.slug, group.pk])
    client = signed_in(Role.OPERATOR, broker)
    assert "Nothing was saved." in text_of(client.post(address, {}, follow=True))
    text = text_of(client.post(address, {"exchange": "", "key": "audit"}, follow=True))
    assert "A redirect rule sends the messages to" in text
    client.post(reverse("parked_messages_replay", args=[broker.slug]), {"group": group.pk})
    made = ReplayBatch.objects.latest("pk")
    assert [route.routing_key for route in made.routes.all()] == ["audit"]
    text = text_of(client.post(address, {"clear": "1"}, follow=True))
    assert "Each message returns to where it came from. The newest one goes to" in text


def test_the_pages_of_parked_messages_offer_a_replay_to_operators(broker: Broker) -> None:
    parked_messages = some(broker)
    address = reverse("parked_messages_replay", args=[broker.slug])
    pages = [
        reverse("parked_messages", args=[broker.slug]),
        reverse("message_group", args=[broker.slug, parked_messages[0].group_id]),
    ]
    for role, is_offered in ((Role.VIEWER, False), (Role.OPERATOR, True)):
        client = signed_in(role, broker)
        for one in pages:
            assert (f'action="{address}"' in text_of(client.get(one))) is is_offered
    parked_message = reverse("parked_message", args=[broker.slug, parked_messages[0].pk])
    text = text_of(signed_in(Role.OPERATOR, broker).get(parked_message))
    assert "Replay message</button>" in text
    assert "Edit and replay message</button>" in text
