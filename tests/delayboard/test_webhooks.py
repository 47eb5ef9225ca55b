"""Webhooks: which events are delivered, and what really arrives at an HTTP server."""

from __future__ import annotations

import json
import re
import socket
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from analytics.models import NightlyReport
from delayboard.alerts import heartbeat, task
from delayboard.alerts.messages import note_problems
from delayboard.alerts.webhooks import EVENTS, create_webhook, write_deliveries
from delayboard.models import AlertMessage, AlertReceiver, AlertState, ReplayBatch
from delayboard.now.problems import Problem, ProblemKind
from delayboard.now.system import find_unsent
from tests.builders import make_broker, make_user
from tests.delayboard.builders import a_message, parked
from tests.receivers import Hook, webhook
from tests.site.api_client import ApiClient, api_of
from tests.site.page_setup import draft
from topology.models import AuditEntry, Broker, FindingPeriod, Role

pytestmark = pytest.mark.both_databases
MINUTE = timedelta(minutes=1)
GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "webhooks.md"
NOWHERE = "http://127.0.0.1:1/"


def make(url: str = NOWHERE, **more: Any) -> tuple[AlertReceiver, str]:
    user = User.objects.first() or make_user("root", Role.ADMIN)
    values: dict[str, Any] = {"name": "ci", "events": list(EVENTS), "brokers": None} | more
    made, secret = create_webhook(user, url=url, **values)
    started = datetime.now(UTC) - MINUTE
    AlertReceiver.objects.filter(pk=made.pk).update(events_from=started)
    made.refresh_from_db()
    return made, secret


def add(hook: AlertReceiver, *names: str) -> list[AlertMessage]:
    now = datetime.now(UTC)
    return [
        AlertMessage.objects.create(
            receiver=hook, title=name, body=json.dumps({"type": name}), event=name, created_at=now
        )
        for name in names
    ]


def deliver() -> None:
    """Whatever pause after a failure is over."""
    AlertMessage.objects.update(next_at=None)
    task.send_due(datetime.now(UTC), lambda: True)


def is_signed(hook: Hook, secret: str, number: int = 0) -> bool:
    """As the guide says how a receiver verifies it."""
    (example,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(example, names)
    headers, body = hook.headers[number], hook.bodies[number]
    assert not names["is_genuine"](secret, headers, body + b" ")
    return bool(names["is_genuine"](secret, headers, body))


def test_each_event_is_stored_once_for_who_wants_it(db: None, broker: Broker) -> None:
    hook, _ = make()
    some, _ = make(name="some", events=["replay.finished"])
    elsewhere, _ = make(name="elsewhere", brokers=[make_broker(name="There").pk])
    now = datetime.now(UTC)
    (message, *_) = parked(broker, a_message())
    replay = draft(broker)
    ReplayBatch.objects.filter(pk=replay.pk).update(state="done", state_at=now)
    values = {"rule": "F01", "severity": 1, "title": "A loop", "objects_count": 1}
    FindingPeriod.objects.create(broker=broker, key="k", appeared_at=now, resolved_at=now, **values)
    kinds = (ProblemKind.DEAD_LETTERS, ProblemKind.REPLAY_PAUSED, ProblemKind.SLO)
    troubles = [
        Problem("warning", kind, f"about {kind}", key=f"burn/{kind}", broker=broker.pk)
        for kind in (*kinds, ProblemKind.DRIFT, ProblemKind.DISK)
    ]
    note_problems(troubles, now)
    yesterday = now.date() - timedelta(days=1)
    NightlyReport.objects.create(day=yesterday, made_at=now + timedelta(days=1), html="")
    for minute in (0, 1, 2):
        write_deliveries(now + minute * MINUTE)
    found = AlertMessage.objects.filter(receiver=hook)
    assert {one.title for one in found} == set(EVENTS)
    assert [one.title for one in some.messages.all()] == ["replay.finished"]
    assert [one.title for one in elsewhere.messages.all()] == ["report.ready"]
    group = message.group
    assert group is not None
    payload = json.loads(found.get(event=f"group.created/{group.pk}").body)
    link = f"/dead-letters/{broker.slug}/groups/{group.pk}/"
    data = {"broker": broker.slug, "group": group.pk, "queue": "orders-parked", "messages": 1}
    assert payload["data"] == data | {"queue": payload["data"]["queue"], "link": link}
    assert payload["type"] == "group.created"


def test_an_event_before_the_webhook_or_while_it_is_disabled_is_not_sent(
    db: None, broker: Broker
) -> None:
    parked(broker, a_message())
    hook, _ = make()
    AlertReceiver.objects.update(events_from=datetime.now(UTC))
    write_deliveries(datetime.now(UTC))
    AlertReceiver.objects.update(is_enabled=False)
    parked(broker, a_message(headers={}))
    add(hook, "waits")
    write_deliveries(datetime.now(UTC))
    deliver()
    assert [(one.title, one.attempts) for one in hook.messages.all()] == [("waits", 0)]


def test_a_delivery_is_signed_and_repeated_with_its_id(db: None) -> None:
    with webhook(500, 0, 204) as received:
        hook, secret = make(received.address)
        (delivery,) = add(hook, "replay.finished")
        for status, error in ((500, "answered with 500"), (None, "did not answer"), (204, "")):
            deliver()
            delivery.refresh_from_db()
            assert delivery.status == status
            assert error in delivery.error
    assert (delivery.state, delivery.attempts) == (AlertState.SENT, 3)
    assert all(is_signed(received, secret, number) for number in range(3))
    assert len({one["webhook-id"] for one in received.headers}) == 1
    assert set(received.bodies) == {delivery.body.encode()}


def test_events_arrive_in_order_and_one_that_is_down_is_tried_once(db: None) -> None:
    with webhook(503, 200) as received:
        hook, _ = make(received.address)
        add(hook, "a", "b", "c")
        task.send_due(datetime.now(UTC), lambda: True)
        task.send_due(datetime.now(UTC), lambda: True)
        assert [one["type"] for one in received.posts] == ["a"]
        assert [one.sentence for one in find_unsent()] == ["1 webhook event was not sent."]
        deliver()
        assert [one["type"] for one in received.posts] == ["a", "a", "b", "c"]
    assert list(find_unsent()) == []


def test_a_kill_between_send_and_store_repeats_it_with_the_same_id(db: None) -> None:
    with webhook(200) as received:
        hook, _ = make(received.address)
        (delivery,) = add(hook, "a")
        deliver()
        # What the database has after a kill that left the answer unread.
        past = datetime.now(UTC) - MINUTE
        rows = AlertMessage.objects.filter(pk=delivery.pk)
        rows.update(state=AlertState.SENDING, attempts=1, next_at=past)
        task.send_due(datetime.now(UTC), lambda: True)
        assert rows.get().state == AlertState.SENT
    ids = [one["webhook-id"] for one in received.headers]
    assert (len(ids), len(set(ids))) == (2, 1)


def test_a_kill_in_a_repeat_leaves_the_attempts_that_are_left(db: None) -> None:
    hook, _ = make()
    (delivery,) = add(hook, "a")
    past = datetime.now(UTC) - MINUTE
    rows = AlertMessage.objects.filter(pk=delivery.pk)
    rows.update(state=AlertState.SENDING, attempts=2, may_be_repeat=True, next_at=past)
    task.give_up_killed(datetime.now(UTC))
    assert rows.get().state == AlertState.WAITING


def test_an_event_that_is_refused_holds_up_no_other(db: None) -> None:
    with webhook(400, 200) as received:
        hook, _ = make(received.address)
        add(hook, "a", "b")
        task.send_due(datetime.now(UTC), lambda: True)
    assert [one["type"] for one in received.posts] == ["a", "b"]


def test_an_answer_that_comes_slowly_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "TIMEOUT_SECONDS", 0.5)
    is_over = Event()

    def drip(door: socket.socket) -> None:
        connected, _ = door.accept()
        with connected, suppress(OSError):
            connected.sendall(b"HTTP/1.1 200 OK\r\nX-A: ")
            while not is_over.wait(0.1):
                connected.sendall(b"a")

    with socket.create_server(("127.0.0.1", 0)) as door:
        thread = Thread(target=drip, args=(door,))
        thread.start()
        status, error = heartbeat.call(f"http://127.0.0.1:{door.getsockname()[1]}/")
        is_over.set()
        thread.join()
    assert (status, "did not answer" in error) == (None, True)


def test_an_administrator_makes_tests_and_deletes_one(db: None, client: Client) -> None:
    client.force_login(make_user("ada", Role.ADMIN))
    with webhook(404, 200) as received:
        values = {"name": "ci", "url": received.address, "event": ["group.created"]}
        text = client.post("/webhooks/", values).content.decode()
        secret = "whsec_" + text.partition("<code>whsec_")[2].partition("</code>")[0]
        hook = AlertReceiver.objects.get()
        assert secret.startswith("whsec_")
        assert secret not in client.get("/webhooks/").content.decode()
        assert secret not in hook.encrypted_secret
        client.post("/webhooks/change/", {"test": hook.pk})
        deliver()
        text = client.get("/webhooks/").content.decode()
        assert "The service answered with 404. Next attempt" in text
        (delivery,) = hook.messages.all()
        client.post("/webhooks/change/", {"send": delivery.pk})
        deliver()
        assert is_signed(received, secret, 1)
        assert "Answer 200." in client.get("/webhooks/").content.decode()
    client.post("/webhooks/change/", {"disable": hook.pk})
    assert "No event is sent." in client.get("/webhooks/").content.decode()
    # The page for people has nothing of it.
    assert "Receiver</th>" not in client.get("/alerts/").content.decode()
    client.post("/webhooks/change/", {"delete": hook.pk})
    assert not AlertMessage.objects.exists()
    actions = list(AuditEntry.objects.order_by("pk").values_list("action", flat=True))
    sent = "webhook delivery sent again"
    made = ["webhook created", "webhook tested", sent, "webhook disabled", "webhook deleted"]
    assert actions == made


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"url": "file:///etc/passwd"}, "Enter an address such as https://example.org/hook."),
        ({"url": "http://u:p@host/"}, "Enter an address such as"),
        ({"events": ["nothing"]}, "Select at least one event"),
        ({"name": "\n"}, "Enter a name"),
        ({"brokers": ["none"]}, "There is no broker “none”."),
    ],
)
def test_wrong_input_makes_none(db: None, values: dict[str, Any], sentence: str) -> None:
    right = {"name": "ci", "url": NOWHERE, "events": ["group.created"]}
    answer = admin().post("webhooks", right | values)
    assert (answer.status_code, sentence in answer.json()["detail"]) == (422, True)
    assert not AlertReceiver.objects.exists()


def admin() -> ApiClient:
    return api_of(make_user("ann", Role.ADMIN), Role.ADMIN)


def test_the_api_makes_lists_sends_and_deletes(db: None, broker: Broker) -> None:
    api = admin()
    body = {"name": "ci", "url": NOWHERE, "events": ["group.created"], "brokers": [broker.slug]}
    first, again = (api.post("webhooks", body, key="one").json() for _ in range(2))
    assert first == again
    assert first.pop("secret").startswith("whsec_")
    assert api.get("webhooks").json()["items"] == [first]
    assert first["brokers"] == [broker.slug]
    (delivery,) = add(AlertReceiver.objects.get(), "a")
    AlertMessage.objects.update(state=AlertState.FAILED, attempts=6, error="no")
    address = f"webhooks/{first['webhook']}/deliveries"
    (shown,) = api.get(address).json()["items"]
    assert (shown["delivery"], shown["payload"]) == (delivery.pk, {"type": "a"})
    assert api.post(f"{address}/{delivery.pk}/send").status_code == 200
    assert api.get(address).json()["items"][0]["state"] == "waiting"
    AlertMessage.objects.update(state=AlertState.SENDING)
    assert api.post(f"{address}/{delivery.pk}/send").status_code == 409
    assert api.request("DELETE", f"webhooks/{first['webhook']}").status_code == 200
    assert api.get("webhooks").json()["items"] == []
