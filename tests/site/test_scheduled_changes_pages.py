"""The pages on which waiting messages are cancelled, rescheduled and delivered now."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.urls import reverse

from analytics.models import ScheduledBody, ScheduledMessage
from delayboard.changes import check
from delayboard.changes.check import Point
from delayboard.changes.request import READ
from delayboard.changes.take import CHANGE_HEADER
from delayboard.live import subjects
from delayboard.models import BackgroundTask, ChangeKind, ChangeState, ScheduledChange
from delayboard.models.background_task import CHANGES
from delayboard.views import scheduled_changes
from tests.builders import make_broker
from tests.site.page_setup import signed_in, text_of
from topology.definitions import Binding
from topology.models import AuditEntry, Grant, Role, State, Topology, Work
from topology.operations.topology_rows import create_topology
from topology.patterns.delay_levels import params as levels
from topology.patterns.delay_levels.pattern import delay_levels
from topology.patterns.delay_queues.params import queue_name
from topology.patterns.delay_queues.pattern import delay_queues

pytestmark = pytest.mark.django_db
NOW = datetime.now(UTC)


@pytest.fixture(autouse=True)
def _seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker in which every destination has one binding."""
    point = Point((Binding("a.delay-delivery", "work", "#.work"),), "classic")
    monkeypatch.setattr(check._Checker, "_point", lambda self, topology, destination: point)


@pytest.fixture
def row() -> ScheduledMessage:
    topology = create_topology(None, make_broker(), delay_levels.KIND, levels.Params("own", "a"))
    Topology.objects.filter(pk=topology.pk).update(state=State.APPLIED)
    return ScheduledMessage.objects.create(
        broker=topology.broker,
        topology=topology,
        key="<b>m</b>",
        message_id="<b>m</b>",
        content_id="c",
        attempt=1,
        requested_delay=timedelta(hours=1),
        entered_at=NOW,
        due_at=NOW + timedelta(hours=1),
        destination="work",
    )


def new(row: ScheduledMessage, kind: str, **more: str) -> dict[str, str]:
    return {"message": str(row.pk), "kind": kind, **more}


def test_the_dry_run_shows_the_time_and_what_else_passes_and_changes_nothing(
    row: ScheduledMessage,
) -> None:
    client = signed_in(Role.OPERATOR)
    page = client.get(reverse("scheduled_change"), new(row, "cancel")).content.decode()
    assert "Takes effect at" in page
    assert "all other messages that RabbitMQ routes to this queue" in page
    assert "&lt;b&gt;m&lt;/b&gt;" in page
    assert not ScheduledChange.objects.exists()


def test_a_queue_that_programs_bind_again_is_changed_with_the_risk_stated_and_confirmed(
    row: ScheduledMessage,
) -> None:
    params = delay_levels.store(levels.Params("celery", destinations="exchanges"))
    Topology.objects.update(params=params)
    client = signed_in(Role.OPERATOR)
    page = client.get(reverse("scheduled_change"), new(row, "cancel")).content.decode()
    assert "If a Celery worker starts in these 12s, it binds “work” again." in page
    asked = client.post(reverse("scheduled_change"), new(row, "cancel")).content.decode()
    sentence = "If a Celery worker starts during the interception, RabbitMQ can deliver messages"
    assert sentence in asked
    assert not ScheduledChange.objects.exists()
    client.post(reverse("scheduled_change"), new(row, "cancel", confirm_broker=row.broker.name))
    assert ScheduledChange.objects.count() == 1


def test_the_dry_run_says_that_messages_without_a_change_pass_the_worker_by(
    row: ScheduledMessage,
) -> None:
    row.headers_json = json.dumps({"x-id": row.message_id, "My.Id": "m", "retries": 1})
    row.key = row.message_id = "m"
    row.save()
    page = text_of(signed_in(Role.OPERATOR).get(reverse("scheduled_change"), new(row, "cancel")))
    assert "RabbitMQ routes only the changed messages to the worker" in page
    assert "that RabbitMQ routes to this queue" not in page


def test_a_change_is_requested_listed_and_undone(row: ScheduledMessage) -> None:
    client = signed_in(Role.OPERATOR)
    address = reverse("scheduled_change")
    form = new(row, "reschedule", to="+2h")
    assert "Takes effect at" in client.get(address, form).content.decode()
    page = client.post(address, form, follow=True).content.decode()
    change = ScheduledChange.objects.get()
    assert (change.kind, change.state) == (ChangeKind.RESCHEDULE, ChangeState.PENDING)
    assert "Undo change" in page
    assert "<small>to <time" in page
    waiting = reverse("analytics:scheduled")
    assert "reschedule requested" in client.get(waiting).content.decode()
    client.post(reverse("scheduled_change_undo", args=[change.pk]))
    change.refresh_from_db()
    assert change.state == ChangeState.UNDONE
    assert "reschedule requested" not in client.get(waiting).content.decode()
    again = reverse("scheduled_change_undo", args=[change.pk])
    assert "The change is already undone" in text_of(client.post(again, follow=True))
    ScheduledChange.objects.update(state=ChangeState.DONE)
    assert "already took effect" in text_of(client.post(again, follow=True))


def test_the_second_of_two_requests_for_one_message_is_refused_with_the_reason(
    row: ScheduledMessage,
) -> None:
    first, second = signed_in(Role.OPERATOR), signed_in(Role.OPERATOR)
    address = reverse("scheduled_change")
    first.post(address, new(row, "cancel"))
    page = second.post(address, new(row, "reschedule", to="+2h"), follow=True)
    assert "0 of 1 changes are requested. Another change of this message" in text_of(page)
    assert ScheduledChange.objects.get().kind == ChangeKind.CANCEL


def test_without_a_worker_the_dry_run_and_the_list_say_that_nothing_takes_effect(
    row: ScheduledMessage,
) -> None:
    client = signed_in(Role.OPERATOR)
    sentence = "The worker is not running, so RabbitMQ delivers the messages unchanged"
    listed = reverse("scheduled_changes")
    assert sentence not in client.get(listed).content.decode()
    assert sentence in client.get(reverse("scheduled_change"), new(row, "cancel")).content.decode()
    client.post(reverse("scheduled_change"), new(row, "cancel"))
    assert sentence in client.get(listed).content.decode()
    BackgroundTask.objects.create(key=CHANGES, name="Changes", beat_at=datetime.now(UTC))
    assert sentence not in client.get(listed).content.decode()


def test_the_page_of_a_message_is_live_and_its_refresh_opens_no_body(
    row: ScheduledMessage,
) -> None:
    ScheduledBody.objects.create(message=row, body=b"secret")
    client, page = signed_in(Role.OPERATOR), reverse("analytics:scheduled_message", args=[row.pk])
    subject = subjects.find("message", str(row.pk), 1.0)
    assert subject is not None
    version = subject.read().version
    text = text_of(client.get(page))
    assert f'data-live-url="/ws/message/{row.pk}/" data-live-version="{version}"' in text
    address, fetched = f"{page}?body=1", {"X-Refresh": version}
    assert "secret" not in text_of(client.get(address, headers=fetched))
    assert not AuditEntry.objects.filter(action="body viewed").exists()
    assert "secret" in text_of(client.get(address))


def test_a_message_names_each_of_its_changes_and_the_state_once(row: ScheduledMessage) -> None:
    client = signed_in(Role.OPERATOR)
    client.post(reverse("scheduled_change"), new(row, "cancel"))
    page = reverse("analytics:scheduled_message", args=[row.pk])
    assert "Cancel, takes effect at <time" in text_of(client.get(page))
    ScheduledChange.objects.update(state=ChangeState.DONE)
    assert "Cancel, done, requested " in text_of(client.get(page))


def test_a_cancelled_message_says_so_and_offers_no_change(row: ScheduledMessage) -> None:
    client, address = signed_in(Role.OPERATOR), reverse("scheduled_change")
    page = reverse("analytics:scheduled_message", args=[row.pk])
    client.post(address, new(row, "cancel"))
    assert 'value="deliver_now"' not in text_of(client.get(page))
    assert "Takes effect at" in text_of(client.get(reverse("scheduled_changes")))
    at = NOW - timedelta(minutes=5)
    ScheduledMessage.objects.update(due_at=at)
    ScheduledChange.objects.update(due_at=at, state=ChangeState.DONE, ended_at=at)
    text = text_of(client.get(page))
    assert "Cancelled at <time" in text
    assert "removed by Delayboard, not delivered" in text
    assert "delivery to" not in text
    assert "delivery not observed" not in text
    assert 'value="deliver_now"' not in text
    why = f"The message was cancelled at {at:%Y-%m-%d %H:%M:%S} UTC."
    assert why in text_of(client.get(address, new(row, "deliver_now")))
    ScheduledMessage.objects.update(left_at=at)
    assert why in text_of(client.get(address, new(row, "deliver_now")))
    assert "Cancelled at <time" in text_of(client.get(page))


def test_a_row_that_cannot_be_changed_has_a_reason_in_place_of_its_box(
    row: ScheduledMessage,
) -> None:
    client, waiting = signed_in(Role.OPERATOR), reverse("analytics:scheduled")
    box = f'<input type="checkbox" name="message" value="{row.pk}"'
    assert box in text_of(client.get(waiting))
    client.post(reverse("scheduled_change"), new(row, "cancel"))
    change = ScheduledChange.objects.get()
    text = text_of(client.get(waiting))
    assert box not in text
    assert f">Cannot be changed. {check.CHANGED}</span>" in text
    assert f'href="{reverse("scheduled_changes")}#change-{change.pk}"' in text
    assert f'<tr id="change-{change.pk}">' in text_of(client.get(reverse("scheduled_changes")))
    ScheduledChange.objects.all().delete()
    Topology.objects.update(state=State.DELETED)
    assert "The topology of this message is not applied." in text_of(client.get(waiting))
    Topology.objects.update(state=State.APPLIED)
    other = signed_in(Role.OPERATOR, make_broker(name="Other broker"))
    Grant.objects.create(
        user_id=other.session["_auth_user_id"], broker=row.broker, role=Role.VIEWER
    )
    assert box not in text_of(other.get(waiting))


def test_the_form_shows_the_messages_and_links_the_change_in_the_way(
    row: ScheduledMessage,
) -> None:
    client, address = signed_in(Role.OPERATOR), reverse("scheduled_change")
    assert row.topology is not None
    text = text_of(client.get(address, new(row, "reschedule")))
    for shown in (row.topology.name, row.destination, "&lt;b&gt;m&lt;/b&gt;"):
        assert f">{shown}</" in text
    assert f"{row.due_at:%Y-%m-%d %H:%M:%S}" in text
    assert "Enter the new due time to see the result." in text
    assert "Reschedule 1 message" not in text
    assert "Reschedule 1 message" in text_of(client.get(address, new(row, "reschedule", to="+2h")))
    client.post(address, new(row, "cancel"))
    change = ScheduledChange.objects.get()
    text = text_of(client.get(address, new(row, "reschedule")))
    assert (
        f'Undo that change first. <a href="{reverse("scheduled_changes")}#change-{change.pk}">'
        in text
    )


def test_changes_of_many_messages_are_checked_with_a_fixed_number_of_queries(
    row: ScheduledMessage, django_assert_num_queries: Any
) -> None:
    rows = [row]
    for number in range(3):
        row.pk, row.key = None, f"left {number}"
        row.left_at = NOW
        row.save()
        rows.append(ScheduledMessage.objects.select_related("topology__broker").get(pk=row.pk))
    with django_assert_num_queries(2):
        check.find_obstacles(rows, NOW)


def test_a_message_that_is_due_offers_no_change(row: ScheduledMessage) -> None:
    client = signed_in(Role.OPERATOR)
    page = reverse("analytics:scheduled_message", args=[row.pk])
    assert 'value="cancel"' in text_of(client.get(page))
    ScheduledMessage.objects.update(due_at=NOW - timedelta(minutes=5))
    text = text_of(client.get(page))
    assert 'value="cancel"' not in text
    assert "delivery to" in text


def test_a_message_delivered_now_says_when_its_copy_was_published(row: ScheduledMessage) -> None:
    client, address = signed_in(Role.OPERATOR), reverse("scheduled_change")
    page = reverse("analytics:scheduled_message", args=[row.pk])
    assert row.topology is not None
    assert row.due_at is not None
    copied_at = NOW - timedelta(minutes=50)
    listed, waiting = reverse("scheduled_changes"), reverse("analytics:scheduled")
    ScheduledMessage.objects.update(entered_at=NOW - timedelta(hours=1))
    change = ScheduledChange.objects.create(
        broker=row.broker,
        topology=row.topology,
        message=row,
        kind=ChangeKind.DELIVER_NOW,
        key=row.key,
        content_id=row.content_id,
        destination="work",
        due_at=row.due_at,
        is_copied=True,
    )
    assert "Takes effect when the copy is published." in text_of(client.get(listed))
    ScheduledChange.objects.update(copy_begun_at=copied_at, copied_at=copied_at)
    assert "Copy published<br>" in text_of(client.get(listed))
    assert "deliver now: copy published" in text_of(client.get(waiting))
    assert "A copy of the message is already published." in text_of(
        client.get(address, new(row, "cancel"))
    )
    for ended_at in (None, NOW):
        if ended_at:
            ScheduledChange.objects.update(state=ChangeState.DONE, ended_at=ended_at)
            ScheduledMessage.objects.update(due_at=ended_at)
        text = text_of(client.get(page))
        assert f'Delivered early at <time datetime="{copied_at.isoformat()}"' in text
        end = text.partition("removed by Delayboard, not delivered")[2].partition("</li>")[0]
        assert "A copy was published to" in end
        assert f'datetime="{copied_at.isoformat()}"' in end
        assert 'value="cancel"' not in text
    assert f"The message was delivered at {copied_at:%Y-%m-%d %H:%M:%S} UTC." in text_of(
        client.get(address, new(row, "cancel"))
    )
    ScheduledChange.objects.filter(pk=change.pk).update(state=ChangeState.MISSED)
    assert "delivery to" in text_of(client.get(page))


def test_a_message_and_the_one_in_its_place_link_to_each_other(row: ScheduledMessage) -> None:
    client = signed_in(Role.OPERATOR)
    client.post(reverse("scheduled_change"), new(row, "reschedule", to="+2h"))
    change = ScheduledChange.objects.get()
    ScheduledChange.objects.update(state=ChangeState.DONE)
    before, pk = reverse("analytics:scheduled_message", args=[row.pk]), row.pk
    assert "View the message in its place" not in client.get(before).content.decode()
    row.pk, row.headers_json = None, json.dumps({CHANGE_HEADER: str(change.pk)})
    row.save()
    after = reverse("analytics:scheduled_message", args=[row.pk])
    assert f'<a href="{after}">View the message in its place</a>' in text_of(client.get(before))
    assert f'Published in place of <a href="{before}">' in text_of(client.get(after))
    ScheduledMessage.objects.filter(pk=pk).delete()
    assert "Published in place of another message" in text_of(client.get(after))


def test_a_time_that_is_missing_is_asked_for_and_one_that_is_none_is_named(
    row: ScheduledMessage,
) -> None:
    client = signed_in(Role.OPERATOR)
    page = client.get(reverse("scheduled_change"), new(row, "reschedule")).content.decode()
    assert "New due time" in page
    assert "notice-error" not in page
    answer = client.get(reverse("scheduled_change"), new(row, "reschedule", to="soon"))
    assert "is not a time" in answer.content.decode()


def test_only_operators_change_and_see_the_buttons(row: ScheduledMessage) -> None:
    viewer, operator = signed_in(Role.VIEWER), signed_in(Role.OPERATOR)
    for address in (
        reverse("analytics:scheduled"),
        reverse("analytics:scheduled_message", args=[row.pk]),
    ):
        assert 'value="deliver_now"' not in viewer.get(address).content.decode()
        assert 'value="deliver_now"' in operator.get(address).content.decode()
    assert viewer.get(reverse("scheduled_change"), new(row, "cancel")).status_code == 403
    assert viewer.post(reverse("scheduled_change"), new(row, "cancel")).status_code == 403
    assert signed_in().get(reverse("scheduled_change"), new(row, "cancel")).status_code == 404
    assert viewer.get(reverse("scheduled_changes")).status_code == 200
    operator.post(reverse("scheduled_change"), new(row, "cancel"))
    change = ScheduledChange.objects.get()
    undo = reverse("scheduled_change_undo", args=[change.pk])
    assert viewer.post(undo).status_code == 403
    assert "Undo change" not in viewer.get(reverse("scheduled_changes")).content.decode()


def test_production_asks_for_the_name(row: ScheduledMessage) -> None:
    broker = row.broker
    type(broker).objects.filter(pk=broker.pk).update(is_production=True)
    client = signed_in(Role.OPERATOR)
    page = client.post(reverse("scheduled_change"), new(row, "cancel")).content.decode()
    assert "confirm_broker" in page
    assert not ScheduledChange.objects.exists()
    form = new(row, "cancel", confirm_broker=broker.name)
    client.post(reverse("scheduled_change"), form)
    assert ScheduledChange.objects.exists()


@pytest.fixture
def queued(row: ScheduledMessage, monkeypatch: pytest.MonkeyPatch) -> ScheduledMessage:
    """A message of a delay queue, which 41 others share."""
    params = delay_queues.EXAMPLE
    topology = create_topology(None, row.broker, delay_queues.KIND, params)
    Topology.objects.update(state=State.APPLIED)
    queue = queue_name(params.queue, params.delays[0])
    leads = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": params.queue}
    seen = {"name": queue, "arguments": leads, "messages": 42}
    monkeypatch.setattr(check._Checker, "_queue", lambda self, broker, name: seen)
    row.topology, row.destination, row.routing_key = topology, params.queue, queue
    row.save()
    return row


def test_reading_a_queue_asks_for_the_broker_s_name_and_shows_what_hinders_it(
    queued: ScheduledMessage,
) -> None:
    client, form = signed_in(Role.OPERATOR), new(queued, "cancel")
    page = client.get(reverse("scheduled_change"), form).content.decode()
    assert "this message and 41 others out of" in page
    page = client.post(reverse("scheduled_change"), form).content.decode()
    assert "confirm_broker" in page
    assert "orders_dlq_10" in page
    assert "is a production broker" not in page
    assert not ScheduledChange.objects.exists()
    client.post(reverse("scheduled_change"), form | {"confirm_broker": queued.broker.name})
    assert ScheduledChange.objects.get().queue == "orders_dlq_10"
    Work.objects.filter(kind=READ).update(error="Stop <b>the</b> consumers.")
    page = signed_in(Role.VIEWER).get(reverse("scheduled_changes")).content.decode()
    assert "Stop &lt;b&gt;the&lt;/b&gt; consumers." in page


def test_the_command_asks_for_the_name_too(queued: ScheduledMessage) -> None:
    words = ("scheduled", "cancel", "--id", queued.key)
    with pytest.raises(CommandError, match="needs a confirmation"):
        call_command(*words)
    out = StringIO()
    call_command(*words, "--confirm", queued.broker.name, stdout=out)
    assert "takes 41 other messages out of “orders_dlq_10”" in out.getvalue()
    assert ScheduledChange.objects.exists()


def test_what_names_nothing_changes_nothing_and_says_so(row: ScheduledMessage) -> None:
    client, address = signed_in(Role.OPERATOR), reverse("scheduled_change")
    for chosen in ({}, {"message": "x"}):
        page = client.get(address, chosen, follow=True).content.decode()
        assert "Nothing was changed. Select waiting messages of one broker" in page
    assert client.get(address, {"message": str(row.pk), "kind": "burn"}).status_code == 404


def test_the_list_of_changes_has_pages(
    row: ScheduledMessage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduled_changes, "SHOWN", 1)
    for _ in range(2):
        signed_in(Role.OPERATOR).post(reverse("scheduled_change"), new(row, "cancel"))
        change = ScheduledChange.objects.latest("pk")
        ScheduledChange.objects.filter(pk=change.pk).update(state="undone")
    client = signed_in(Role.OPERATOR)
    first = client.get(reverse("scheduled_changes")).content.decode()
    newest, oldest = ScheduledChange.objects.order_by("-pk")
    assert f'id="change-{newest.pk}"' in first
    assert f'id="change-{oldest.pk}"' not in first
    second = client.get(reverse("scheduled_changes"), {"after": newest.pk}).content.decode()
    assert f'id="change-{oldest.pk}"' in second


def test_all_that_the_filter_matches_are_checked_together(row: ScheduledMessage) -> None:
    client = signed_in(Role.OPERATOR)
    shown = client.get(reverse("analytics:scheduled"), {"destination": "work"}).content.decode()
    assert "data-select-matching" in shown
    form = {"all": "1", "kind": "cancel", "destination": "work"}
    page = client.get(reverse("scheduled_change"), form).content.decode()
    assert "Cancel: 1 message" in page
    assert f'name="message" value="{row.pk}"' in page
    # What was shown is requested, whatever else matches by then.
    client.post(f"{reverse('scheduled_change')}?all=1&kind=cancel", new(row, "cancel"))
    assert ScheduledChange.objects.get().message == row
    # Of another broker nothing matches, whatever its destination.
    other = make_broker(name="Other broker")
    shown = client.get(reverse("analytics:scheduled"), {"broker": other.slug}).content.decode()
    assert str(reverse("analytics:scheduled_message", args=[row.pk])) not in shown
    for wanted in ({"destination": "other"}, {"broker": other.slug}):
        none = client.get(reverse("scheduled_change"), form | wanted, follow=True)
        assert "Cancel: 1 message" not in none.content.decode()
    none = client.get(reverse("scheduled_change"), form | {"destination": "other"}, follow=True)
    assert "No waiting message that can be changed matches" in none.content.decode()
    wrong = client.get(reverse("scheduled_change"), form | {"from": "soon"}, follow=True)
    assert "is not a time" in wrong.content.decode()
