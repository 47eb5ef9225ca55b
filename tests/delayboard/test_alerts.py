"""Alerts: what is written when, and what really arrives at an SMTP server and a webhook."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from datetime import time as clock
from typing import Any

import pytest
from apprise.plugins.pagerduty import PAGERDUTY_API_LOOKUP, PagerDutyRegion
from django.db.models.signals import post_init
from django.test import Client
from django.utils import timezone

from delayboard.alerts import task
from delayboard.alerts.heartbeat import call_due
from delayboard.alerts.messages import (
    end_acknowledgements,
    note_problems,
    write_message,
    write_test,
)
from delayboard.alerts.task import write_alerts
from delayboard.live.subjects import find
from delayboard.models import (
    Acknowledgement,
    AlertMessage,
    AlertProblem,
    AlertReceiver,
    BackgroundTask,
    BatchState,
    DeadLetterQueue,
    Heartbeat,
    QueueDepth,
    ReplayBatch,
)
from delayboard.now.problems import Link, Problem, ProblemKind, find_growing, find_paused
from delayboard.now.system import find_outages
from tests.builders import make_user
from tests.delayboard.builders import a_message, parked
from tests.receivers import Mailbox, smtp_server, webhook
from tests.site.page_setup import know
from topology import snapshots, work
from topology.definitions import Queue
from topology.models import AuditEntry, Broker, Role, Work
from topology.models.secrets import seal_secret
from topology.models.work import ALERTS

pytestmark = pytest.mark.both_databases

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
STUCK = Problem("error", ProblemKind.STUCK, "orders: 3 messages are stuck.", key="a")
LATE = Problem("warning", ProblemKind.SLO, "sales is late.", key="b")
SLACK = "https://hooks.slack.com/services/T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ"


@pytest.fixture
def mailbox(settings: Any) -> Iterator[Mailbox]:
    with smtp_server(settings) as box:
        yield box


def receiver(
    address: str = "ops@example.org", channel: str = "email", **values: Any
) -> AlertReceiver:
    sealed = seal_secret(address)
    made = AlertReceiver.objects.create(
        channel=channel, name="ops", encrypted_address=sealed, **values
    )
    AlertReceiver.objects.filter(pk=made.pk).update(created_at=NOON - 60 * MINUTE)
    made.refresh_from_db()
    return made


def posted(client: Client, channel: str, address: str) -> str:
    """The page after an administrator added this receiver."""
    client.force_login(make_user("ada", Role.ADMIN))
    values = {"channel": channel, "address": address, "group_minutes": "5", "kind": "stuck"}
    return client.post("/alerts/receiver/", values, follow=True).content.decode()


def at(minute: float, one: AlertReceiver, *troubles: Problem) -> str:
    """The title of the message that is written when these are the problems, "" for none."""
    now = NOON + minute * MINUTE
    note_problems(troubles, now)
    message = write_message(one, now)
    return message.title if message else ""


def deliver(minute: float = 0) -> None:
    task.send_due(NOON + minute * MINUTE, lambda: True)


def retry() -> None:
    """Let the pause after a failure be over."""
    AlertMessage.objects.update(next_at=NOON)


def test_a_problem_is_sent_once_when_it_has_lasted_a_minute(db: None) -> None:
    ops = receiver()
    assert at(0, ops, STUCK) == ""
    assert at(1, ops, STUCK) == "Delayboard: 1 problem"
    assert at(30, ops, STUCK) == ""
    (message,) = AlertMessage.objects.all()
    assert message.body == (
        "New problems:\n- orders: 3 messages are stuck. (since 2026-11-20 12:00 UTC)"
    )


def known(minute: float, **values: Any) -> None:
    end_acknowledgements(NOON + minute * MINUTE)
    Acknowledgement.objects.create(identity="a", username="ann", created_at=NOON, **values)


def test_an_acknowledged_problem_is_not_sent_until_it_ended(db: None) -> None:
    ops = receiver()
    assert at(0, ops, STUCK) == ""
    known(0)
    assert [at(minute, ops, STUCK) for minute in (1, 30)] == ["", ""]
    end_acknowledgements(NOON + 30 * MINUTE)
    assert Acknowledgement.objects.exists()
    at(31, ops)
    end_acknowledgements(NOON + 33 * MINUTE)
    assert not Acknowledgement.objects.exists()
    assert [at(minute, ops, STUCK) for minute in (40, 41)] == ["", "Delayboard: 1 problem"]


def test_a_problem_that_lasts_longer_than_its_snooze_is_sent_again(db: None) -> None:
    ops = receiver()
    assert [at(minute, ops, STUCK) for minute in (0, 1)] == ["", "Delayboard: 1 problem"]
    known(2, until_at=NOON + 60 * MINUTE)
    assert at(59, ops, STUCK) == ""
    end_acknowledgements(NOON + 60 * MINUTE)
    assert at(61, ops, STUCK) == "Delayboard: 1 problem"


def test_a_problem_that_comes_and_goes_is_not_sent(db: None) -> None:
    ops = receiver()
    assert at(0, ops, STUCK) == ""
    assert [at(minute, ops) for minute in (0.5, 2, 10)] == ["", "", ""]


def test_problems_that_came_and_went_are_not_even_loaded(db: None) -> None:
    since, loaded = NOON - 30 * MINUTE, []
    for seconds in (59, 60):
        ended = since + timedelta(seconds=seconds)
        AlertProblem.objects.create(identity=str(seconds), since_at=since, resolved_at=ended)

    def note(instance: AlertProblem, **_: Any) -> None:
        loaded.append(instance.identity)

    post_init.connect(note, AlertProblem)
    message = write_message(receiver(), NOON)
    post_init.disconnect(note, AlertProblem)
    assert loaded == ["60"]
    assert message


def test_problems_of_one_while_are_one_message(db: None) -> None:
    ops = receiver(group_minutes=10)
    at(0, ops, STUCK)
    assert at(1, ops, STUCK, LATE) == "Delayboard: 1 problem"
    assert at(5, ops, STUCK, LATE) == ""
    assert at(11, ops, STUCK, LATE) == "Delayboard: 1 problem"
    assert "1 problem reported before is open." in AlertMessage.objects.all()[0].body


def test_the_end_of_all_problems_is_an_all_clear(db: None) -> None:
    ops = receiver(group_minutes=1)
    at(0, ops, STUCK, LATE)
    assert at(1, ops, STUCK, LATE) == "Delayboard: 2 problems"
    assert at(5, ops, LATE) == ""
    assert at(6, ops, LATE) == "Delayboard: 1 resolved, 1 open"
    assert at(10, ops) == ""
    assert at(11, ops) == "Delayboard: all clear"
    assert at(20, ops, STUCK) == ""
    assert at(21, ops, STUCK) == "Delayboard: 1 problem"


def test_a_problem_that_may_return_is_not_counted_as_resolved(db: None) -> None:
    ops = receiver(group_minutes=1)
    at(0, ops, STUCK, LATE)
    at(1, ops, STUCK, LATE)
    at(5, ops, LATE)
    at(5.9, ops)
    assert at(6, ops) == "Delayboard: 1 resolved, 1 open"
    assert at(6.1, ops, LATE) == ""
    assert at(20, ops) == ""
    assert at(21, ops) == "Delayboard: all clear"


def test_what_nobody_observes_at_present_is_not_resolved(db: None) -> None:
    ops = receiver(group_minutes=1)
    at(0, ops, STUCK)
    at(1, ops, STUCK)
    note_problems((), NOON + 2 * MINUTE, {STUCK.identity})
    assert write_message(ops, NOON + 10 * MINUTE) is None
    assert at(20, ops) == ""
    assert at(21, ops) == "Delayboard: all clear"


def test_each_paused_replay_is_a_problem_of_its_own_for_alerts(broker: Broker) -> None:
    for _ in range(5):
        ReplayBatch.objects.create(broker=broker, state=BatchState.PAUSED, state_at=NOON)
    shown = [one.sentence for one in find_paused([broker])]
    assert (len(shown), shown[-1]) == (4, "2 more replays are paused.")
    assert len(list(find_paused([broker], None))) == 5


def test_a_receiver_without_the_all_clear_gets_none(db: None) -> None:
    ops = receiver(group_minutes=1, sends_all_clear=False)
    at(0, ops, STUCK)
    assert at(1, ops, STUCK) == "Delayboard: 1 problem"
    assert [at(minute, ops) for minute in (5, 6, 20)] == ["", "", ""]


def test_after_the_quiet_hours_one_message_has_everything(db: None, settings: Any) -> None:
    settings.TIME_ZONE = "UTC"
    ops = receiver(quiet_from=clock(22), quiet_until=clock(13))
    at(0, ops, STUCK, LATE)
    assert [at(minute, ops, LATE) for minute in (10, 30, 59)] == ["", "", ""]
    assert at(60, ops, LATE) == "Delayboard: 1 problem"
    body = AlertMessage.objects.get().body
    assert "New problems:\n- sales is late." in body
    assert "Resolved:\n- orders: 3 messages are stuck." in body


def test_in_quiet_hours_only_tests_are_sent(db: None, mailbox: Mailbox, settings: Any) -> None:
    settings.TIME_ZONE = "UTC"
    ops = receiver(quiet_from=clock(12, 30), quiet_until=clock(13))
    at(0, ops, STUCK)
    at(1, ops, STUCK)
    deliver(45)
    assert not mailbox.mails
    write_test(ops, NOON + 45 * MINUTE)
    deliver(45)
    assert [mail["Subject"] for mail in mailbox.mails] == ["Delayboard: test alert"]
    deliver(61)
    assert mailbox.mails[1]["Subject"] == "Delayboard: 1 problem"


def test_an_abandoned_alert_counts_until_its_receiver_got_another(db: None) -> None:
    ops = receiver()
    values = {"receiver": ops, "title": "t", "body": "b", "created_at": NOON}
    AlertMessage.objects.create(**values, state="failed", error="e", ended_at=NOON, is_test=True)
    assert not AlertMessage.failed()
    AlertMessage.objects.create(**values, state="failed", error="e", ended_at=NOON)
    assert AlertMessage.failed().count() == 1
    AlertMessage.objects.create(**values, state="sent", ended_at=NOON + MINUTE)
    assert not AlertMessage.failed()


def test_only_kinds_that_are_not_excluded_are_sent(db: None) -> None:
    ops = receiver(excluded_kinds=[ProblemKind.STUCK.value])
    other = Problem("error", ProblemKind.OTHER, "a problem of a kind that did not exist before")
    at(0, ops, STUCK)
    assert at(1, ops, STUCK, other) == ""
    assert at(2, ops, STUCK, other) == "Delayboard: 1 problem"


def test_a_mail_arrives_and_a_refusal_is_shown_and_repeated(db: None, mailbox: Mailbox) -> None:
    write_test(receiver("o'brien@example.org"), NOON)
    mailbox.refusal = "451 The mailbox is busy"
    deliver()
    failed = AlertMessage.objects.get()
    assert (failed.state, failed.attempts) == ("waiting", 1)
    assert failed.error == "The mail server answered with 451."
    deliver()
    assert AlertMessage.objects.get().attempts == 1
    mailbox.refusal = ""
    retry()
    deliver()
    (mail,) = mailbox.mails
    assert mail["Subject"] == "Delayboard: test alert"
    assert mail["To"] == "o'brien@example.org"
    assert "This is a test alert." in str(mail)
    assert AlertMessage.objects.get().state == "sent"


def test_a_webhook_gets_json_and_its_secret_is_in_no_text(
    db: None, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with webhook(302, 200) as hook:
        posted(client, "webhook", f"{hook.address}services/secretpath?token=secrettoken")
        client.post("/alerts/receiver/", {"test": str(AlertReceiver.objects.get().pk)})
        deliver()
        failed = AlertMessage.objects.get()
        assert "302" in failed.error
        page = client.get("/alerts/").content.decode()
        assert "after 1 attempt: " in page
        client.post(f"/alerts/{failed.pk}/send/")
        deliver()
    assert hook.paths == ["/services/secretpath?token=secrettoken"] * 2
    assert hook.posts[1]["title"] == "Delayboard: test alert"
    assert (hook.posts[1]["type"], set(hook.posts[1])) == (
        "info",
        {"version", "title", "message", "attachments", "type"},
    )
    assert AlertMessage.objects.get().state == "sent"
    texts = [page, caplog.text, failed.error, AlertReceiver.objects.get().encrypted_address]
    texts += [str(row) for row in AuditEntry.objects.values_list("what", "details", "outcome")]
    assert not [text for text in texts if "secret" in text]
    assert "127.0.0.1" in page


def test_a_webhook_without_a_query_gets_json(db: None, client: Client) -> None:
    with webhook(200) as hook:
        posted(client, "webhook", f"{hook.address}services/hook")
        write_test(AlertReceiver.objects.get(), NOON)
        deliver()
    assert hook.paths == ["/services/hook"]
    assert AlertMessage.objects.get().state == "sent"


def test_pagerduty_gets_one_incident_that_the_all_clear_resolves(
    db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ops = receiver("pagerduty://A1BRTD4JD@TIiajkdnlazkcOXr?region=us", "pagerduty", group_minutes=1)
    with webhook(202) as hook:
        monkeypatch.setitem(PAGERDUTY_API_LOOKUP, PagerDutyRegion.US, hook.address)
        for minute, troubles in ((0, (STUCK,)), (1, (STUCK,)), (5, ()), (6, ())):
            at(minute, ops, *troubles)
            AlertMessage.objects.filter(state="waiting").update(body="x" * 2000)
            deliver(minute)
        write_test(ops, NOON)
        deliver()
    begun, cleared, test = hook.posts
    assert (begun["event_action"], begun["payload"]["severity"]) == ("trigger", "critical")
    assert len(begun["payload"]["summary"]) == 1024
    assert (cleared["event_action"], cleared["dedup_key"]) == ("resolve", begun["dedup_key"])
    assert test["dedup_key"] != begun["dedup_key"]
    assert (test["event_action"], test["payload"]["severity"]) == ("trigger", "info")


def test_a_service_that_is_not_there_is_a_sentence_until_attempts_end(db: None) -> None:
    write_test(receiver("http://127.0.0.1:1/secretpath", "webhook"), NOON)
    for _ in range(len(task.PAUSES) + 1):
        retry()
        deliver()
    ended = AlertMessage.objects.get()
    assert (ended.state, ended.next_at) == ("failed", None)
    assert "onnection" in ended.error
    assert "secretpath" not in ended.error


def test_a_kill_in_mid_send_repeats_the_message_once_and_says_so(
    db: None, mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        """As a kill: nothing after it runs."""

    def die(message: AlertMessage) -> None:
        raise Killed

    write_test(receiver(), NOON)
    with monkeypatch.context() as patched:
        patched.setattr(task, "notify", die)
        with pytest.raises(Killed):
            deliver()
    deliver()
    assert AlertMessage.objects.get().state == "sending"
    retry()
    deliver()
    (mail,) = mailbox.mails
    assert "may have sent this message before" in " ".join(mail.get_content().split())
    assert AlertMessage.objects.get().may_be_repeat
    AlertMessage.objects.update(state="sending", next_at=NOON)
    deliver()
    lost = AlertMessage.objects.get()
    assert (lost.state, lost.error.startswith("The worker was killed")) == ("failed", True)
    assert len(mailbox.mails) == 1


def test_a_mail_without_an_answer_in_time_is_repeated_and_says_so(
    db: None, mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_test(receiver(), NOON)
    mailbox.may_answer.clear()
    with monkeypatch.context() as patched:
        patched.setattr(task, "TIMEOUT_SECONDS", 0.5)
        deliver()
    assert mailbox.has_mail.wait(10)
    mailbox.may_answer.set()
    waiting = AlertMessage.objects.get()
    assert (waiting.state, waiting.may_be_repeat) == ("waiting", True)
    assert waiting.error == "The service did not answer within 0.5 s."
    retry()
    deliver()
    first, second = (" ".join(mail.get_content().split()) for mail in mailbox.mails)
    assert "may have sent" not in first
    assert "may have sent this message before" in second


@pytest.mark.parametrize(
    ("channel", "address"),
    [
        ("email", "nobody"),
        ("webhook", "ftp://example.org/x"),
        ("webhook", "http://[::1"),
        ("slack", "json://127.0.0.1/x"),
        ("teams", "syslog://localhost"),
        ("slack", f"{SLACK}?a=1;Template=/etc/hosts"),
        ("pagerduty", "https://example.org/x"),
        ("shell", "x"),
    ],
)
def test_an_address_of_another_kind_is_refused(
    db: None, client: Client, channel: str, address: str
) -> None:
    assert "Nothing was changed." in posted(client, channel, address)
    assert not AlertReceiver.objects.exists()


@pytest.mark.parametrize(
    ("channel", "address"),
    [
        ("slack", SLACK),
        ("pagerduty", "pagerduty://A1BRTD4JD@TIiajkdnlazkcOXrIdevi7FQ"),
        ("teams", "workflows://prod-1.westeurope.logic.azure.com/a1b2c3d4e5/s1i2g3n4"),
    ],
)
def test_an_address_of_a_service_is_kept_sealed(
    db: None, client: Client, channel: str, address: str
) -> None:
    page = posted(client, channel, address)
    made = AlertReceiver.objects.get()
    assert made.address == address
    assert address.rpartition("/")[2] not in page
    assert ProblemKind.STUCK not in made.excluded_kinds
    assert ProblemKind.SLO in made.excluded_kinds


def test_a_receiver_is_edited_and_keeps_its_address(db: None, client: Client) -> None:
    client.force_login(make_user("ada", Role.ADMIN))
    ops = receiver(excluded_kinds=["slo"])
    page = client.get(f"/alerts/?edit={ops.pk}").content.decode()
    assert "Save receiver" in page
    assert page.count(" data-select checked") == len(ProblemKind) - 1
    values = {"receiver": str(ops.pk), "channel": "email", "name": "night", "kind": "stuck"}
    client.post("/alerts/receiver/", values | {"group_minutes": "9"})
    ops.refresh_from_db()
    assert (ops.name, ops.group_minutes, ops.address) == ("night", 9, "ops@example.org")
    assert "slo" in ops.excluded_kinds
    # Another channel needs an address of its own.
    other = values | {"group_minutes": "5", "channel": "webhook"}
    assert (
        "Nothing was changed."
        in client.post("/alerts/receiver/", other, follow=True).content.decode()
    )
    client.post("/alerts/receiver/", values | {"group_minutes": "5", "address": "b@example.org"})
    ops.refresh_from_db()
    assert ops.address == "b@example.org"
    assert AuditEntry.objects.filter(action="alert receiver changed").count() == 2


def test_subscribe_opens_the_form_for_the_nightly_report_alone(db: None, client: Client) -> None:
    client.force_login(make_user("ada", Role.ADMIN))
    reports = client.get("/reports/").content.decode()
    assert 'href="/alerts/?report=1#receiver"' in reports
    receiver()
    page = client.get("/alerts/?report=1").content.decode()
    assert "<details open><summary>Add another receiver" in page
    assert 'value="report" checked' in page
    assert " data-select checked" not in page
    usual = client.get("/alerts/").content.decode()
    assert 'value="report" checked' not in usual
    assert usual.count(" data-select checked") == len(ProblemKind)


def test_the_page_learns_what_became_of_an_alert(db: None) -> None:
    subject = find("alerts", "log", 1)
    assert subject is not None
    write_test(receiver(), NOON)
    waiting = subject.read().version
    AlertMessage.objects.update(state="sent")
    assert subject.read().version != waiting


def test_only_admins_of_all_brokers_see_and_change_alerts(db: None, client: Client) -> None:
    client.force_login(make_user("oskar", Role.OPERATOR))
    assert client.get("/alerts/").status_code == 403
    assert client.post("/alerts/receiver/", {"channel": "email"}).status_code == 403
    assert client.post("/alerts/1/send/").status_code == 403


def test_deleting_a_receiver_ends_its_alerts(db: None, client: Client) -> None:
    client.force_login(make_user("ada", Role.ADMIN))
    ops = receiver()
    at(0, ops, STUCK)
    at(1, ops, STUCK)
    client.post("/alerts/receiver/", {"delete": str(ops.pk)})
    assert not AlertMessage.objects.exists()
    assert AlertProblem.objects.count() == 1
    assert AuditEntry.objects.filter(action="alert receiver deleted").exists()


def test_the_task_alerts_what_now_shows_and_writes_nothing_without_its_lease(
    db: None, broker: Broker
) -> None:
    know(broker)
    ops = receiver(group_minutes=1)
    own = work.create(ALERTS, 0, broker=None, user=None)
    lease = work.lease_of(work.claim_this(own, "first") or own)
    now = datetime.now(UTC)
    assert write_alerts(lease, now) == []
    assert "The worker is not running" in AlertProblem.objects.get().sentence
    BackgroundTask.objects.create(key="facts", name="Facts", beat_at=timezone.now())
    Work.objects.update(fence=7)
    assert write_alerts(lease, now + 2 * MINUTE) == []
    Work.objects.update(fence=lease.fence)
    (message,) = write_alerts(lease, now + 2 * MINUTE)
    assert (message.receiver, message.title) == (ops, "Delayboard: 1 problem")


def test_a_receiver_that_is_added_later_gets_the_time_when_a_problem_began(
    db: None, broker: Broker, client: Client
) -> None:
    know(broker)
    client.force_login(make_user("ada", Role.ADMIN))
    own = work.create(ALERTS, 0, broker=None, user=None)
    lease = work.lease_of(work.claim_this(own, "first") or own)
    began = datetime.now(UTC)
    assert write_alerts(lease, began) == []
    added = AlertReceiver.objects.create(channel="email", encrypted_address=seal_secret("a@b.org"))
    text = client.get("/alerts/").content.decode()
    assert "1 problem</a> is open." in text
    assert "The worker is not running, so no alert is sent." in text
    (message,) = write_alerts(lease, began + 9 * MINUTE)
    assert message.receiver == added
    assert f"(since {began:%Y-%m-%d %H:%M} UTC)" in message.body


def test_a_failing_task_is_one_problem_whatever_its_error(db: None) -> None:
    def identities() -> set[str]:
        return {one.identity for one in find_outages({}, [worker, failing], None)}

    worker = BackgroundTask(key="a", name="A", beat_at=timezone.now())
    failing = BackgroundTask(key="b", name="B", last_error="Attempt 1 failed.")
    before = identities()
    failing.last_error = "Attempt 2 failed."
    assert len(before) == 1
    assert identities() == before


@pytest.mark.parametrize(
    ("channel", "address", "shown"),
    [
        ("email", "ops@example.org", 'E-mail <span class="quiet">(example.org)</span>'),
        ("webhook", "https://u:secret@hooks.example.org:8443/secret?t=secret", "hooks.example.org"),
        ("slack", SLACK, "hooks.slack.com"),
        ("pagerduty", "pagerduty://secret@secret", "PagerDuty</td>"),
    ],
)
def test_the_page_shows_the_host_of_a_receiver_and_no_more_of_its_address(
    db: None, client: Client, channel: str, address: str, shown: str
) -> None:
    receiver(address, channel)
    client.force_login(make_user("ada", Role.ADMIN))
    text = client.get("/alerts/").content.decode()
    assert shown in text
    assert "secret" not in text
    assert "T1JJ3T3L2" not in text
    assert (
        'Dead letters growing <span class="quiet">(at least 10 more in a queue within 1h)' in text
    )
    AlertReceiver.objects.update(encrypted_address="x")
    assert "unknown host" in client.get("/alerts/").content.decode()


def test_many_new_dead_letters_are_a_problem(db: None, broker: Broker) -> None:
    know(broker, Queue("dead"), dead=30)
    now = datetime.now(UTC)
    queue = DeadLetterQueue.objects.create(
        broker=broker, queue="dead", is_confirmed=True, decided_at=now
    )
    QueueDepth.objects.create(queue=queue, at=now - 61 * MINUTE, messages=5)
    known = {broker.pk: snapshots.fresh(broker)}
    (growing,) = find_growing([broker], known, now)
    assert growing.sentence == "dead: 25 more dead letters than an hour ago."
    assert growing.kind == ProblemKind.DEAD_LETTERS
    QueueDepth.objects.update(messages=25)
    assert not list(find_growing([broker], known, now))


def test_dead_letters_grow_since_the_first_sample_and_not_by_what_was_there(
    db: None, broker: Broker
) -> None:
    know(broker, Queue("dead"), dead=0)
    now = datetime.now(UTC)
    queue = DeadLetterQueue.objects.create(
        broker=broker, queue="dead", is_confirmed=True, decided_at=now
    )
    known = {broker.pk: snapshots.fresh(broker)}
    # Twelve were in the queue of a new broker and were parked at once.
    found = [a_message(message_id=str(number)) for number in range(12)]
    parked(broker, *found, queue="dead", at=now - MINUTE)
    assert not list(find_growing([broker], known, now))
    sample = QueueDepth.objects.create(queue=queue, at=now - 3 * MINUTE, messages=12)
    assert not list(find_growing([broker], known, now))
    sample.messages = 2
    sample.save()
    (growing,) = find_growing([broker], known, now)
    assert growing.sentence == "dead: 10 more dead letters than 3 min ago."


def test_a_message_about_resolved_problems_alone_is_no_failure(db: None) -> None:
    ops = receiver("https://example.org/hook", "webhook")
    assert [at(minute, ops, STUCK, LATE) for minute in (0, 1)] == ["", "Delayboard: 2 problems"]
    first = AlertMessage.objects.get()
    assert at(10, ops, LATE) == ""
    assert at(12, ops, LATE) == "Delayboard: 1 resolved, 1 open"
    second = AlertMessage.objects.exclude(pk=first.pk).get()
    types = [task._type_of(one).value for one in (first, second)]
    assert types == ["failure", "success"]
    AlertReceiver.objects.update(channel="pagerduty")
    second.refresh_from_db()
    assert task._type_of(AlertMessage.objects.get(pk=second.pk)).value == "warning"


def test_each_open_problem_has_a_link_where_the_site_has_an_address(
    db: None, settings: Any
) -> None:
    settings.SITE_URL = "https://board.example.com"
    ops = receiver()
    linked = replace(STUCK, link=Link("View", "replay_batch", ("7",), fragment="failures"))
    assert [at(minute, ops, linked) for minute in (0, 1)] == ["", "Delayboard: 1 problem"]
    body = AlertMessage.objects.get().body
    assert body.endswith("\n  https://board.example.com/replays/7/#failures")
    assert at(3, ops) == ""
    at(10, ops)
    assert "https://" not in AlertMessage.objects.latest("created_at").body


def test_the_worker_calls_the_heartbeat_address_while_its_tasks_work(db: None) -> None:
    with webhook(200) as hook:
        secret = seal_secret(f"{hook.address}ping/uuid")
        Heartbeat.objects.create(name="127.0.0.1", encrypted_address=secret, every_seconds=60)
        now = timezone.now()
        late = BackgroundTask.objects.create(key="a", name="A", beat_at=now - MINUTE)
        call_due(now)
        assert Heartbeat.objects.get().called_at is None
        BackgroundTask.objects.filter(pk=late.pk).update(beat_at=now)
        call_due(now)
        call_due(now + timedelta(seconds=59))
        assert (hook.paths, Heartbeat.objects.get().called_at) == (["/ping/uuid"], now)
    # Nothing listens there any more.
    call_due(now + MINUTE)
    assert "did not answer" in Heartbeat.objects.get().error
    assert "uuid" not in Heartbeat.objects.get().error


def test_a_heartbeat_address_is_called_before_it_is_stored(client: Client, db: None) -> None:
    client.force_login(make_user("ada", Role.ADMIN))

    def save(address: str) -> str:
        values = {"address": address, "every_seconds": "60"}
        return client.post("/alerts/heartbeat/", values, follow=True).content.decode()

    assert "Enter an address such as" in save("file:///etc/passwd")
    with webhook(302) as hook:
        assert "The service answered with 302." in save(hook.address)
    assert not Heartbeat.objects.exists()
    with webhook(200) as hook:
        text = save(f"{hook.address}secret-uuid")
    assert "127.0.0.1 answered. The worker calls it every 60 s." in text
    assert "secret-uuid" not in text
    assert AuditEntry.objects.filter(action="heartbeat address set").exists()
    client.post("/alerts/heartbeat/", {"delete": "1"})
    assert not Heartbeat.objects.exists()


def test_a_worker_that_is_frozen_is_shown_on_every_page(client: Client, db: None) -> None:
    client.force_login(make_user("ada", Role.ADMIN))
    words = "The worker has sent no heartbeat since"
    task_row = BackgroundTask.objects.create(key="a", name="A", beat_at=timezone.now())
    assert words not in client.get("/alerts/").content.decode()
    BackgroundTask.objects.filter(pk=task_row.pk).update(beat_at=timezone.now() - MINUTE)
    assert words in client.get("/alerts/").content.decode()
