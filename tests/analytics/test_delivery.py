from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, time, timedelta
from threading import Event
from typing import Any

import pytest
import time_machine
from django.test import Client

from analytics.models import Delivery, NightlyReport, Run, Subscriber
from analytics.results.nightly_report import delivery
from tests.analytics import result_rows
from tests.builders import make_user
from tests.receivers import Mailbox, smtp_server, webhook
from topology.models import AuditEntry, Broker, Role

# Complete, even shortly after midnight.
DAY = datetime.now(UTC).date() - timedelta(days=2)
ADDRESS = "ops@example.org"


@pytest.fixture
def mailbox(settings: Any) -> Iterator[Mailbox]:
    with smtp_server(settings) as box:
        yield box


@pytest.fixture
def computed(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(delivery, "print_pdf", lambda html, alive: b"%PDF-1.4 a report")
    result_rows.days([DAY], [{"broker": "main", "topology": "orders"}])
    return Run.objects.create(day=DAY, state="done", finished_at=datetime.now(UTC), lines=7)


def deliver() -> None:
    delivery.deliver_due(Event())


def test_a_new_report_is_mailed_once_with_its_files(computed: Run, mailbox: Mailbox) -> None:
    delivery.subscribe("email", ADDRESS)
    deliver()
    report = NightlyReport.objects.get().html
    deliver()
    # Computed again, it is stored again and not sent again.
    Run.objects.update(finished_at=datetime.now(UTC))
    deliver()
    (mail,) = mailbox.mails
    assert mail["To"] == ADDRESS
    assert mail["Subject"] == f"Delayboard report {DAY}: Unexplained messages"
    body = mail.get_body()
    assert body is not None
    assert "Key figures" in body.get_content()
    files = {part.get_filename(): part.get_content() for part in mail.iter_attachments()}
    name = f"delayboard-report-{DAY}"
    assert files[f"{name}.html"].replace("\r\n", "\n").strip() == report.strip()
    assert files[f"{name}.pdf"] == b"%PDF-1.4 a report"
    sent = Delivery.objects.get()
    assert sent.sent_at is not None
    assert (sent.attempts, sent.error, sent.next_at) == (1, "", None)


def test_a_report_that_was_stored_before_the_end_of_its_day_is_sent_after_it(
    computed: Run, mailbox: Mailbox
) -> None:
    delivery.subscribe("email", ADDRESS)
    noon = datetime.combine(DAY, time(12), UTC)
    Run.objects.update(finished_at=noon)
    for at in (noon, noon + timedelta(hours=12, seconds=10)):
        with time_machine.travel(at):
            delivery.store_report(DAY)
        assert not Delivery.objects.exists()
    Run.objects.update(finished_at=datetime.now(UTC))
    deliver()
    assert len(mailbox.mails) == 1
    assert Delivery.objects.get().sent_at is not None


def test_a_refused_mail_is_shown_and_repeated_until_it_is_taken(
    computed: Run, mailbox: Mailbox, client: Client
) -> None:
    mailbox.refusal = "451 The mailbox is busy"
    delivery.subscribe("email", ADDRESS)
    deliver()
    failed = Delivery.objects.get()
    assert "The mailbox is busy" in failed.error
    client.force_login(make_user("ada", Role.ADMIN))
    assert "1 nightly report was not sent." in client.get("/reports/").content.decode()
    page = client.get("/reports/delivery/").content.decode()
    assert "after 1 attempt: " in page
    assert "The mailbox is busy" in page
    deliver()
    assert Delivery.objects.get().attempts == 1
    mailbox.refusal = ""
    with time_machine.travel(datetime.now(UTC) + timedelta(minutes=2)):
        deliver()
    assert len(mailbox.mails) == 1
    assert "not sent" not in client.get("/reports/").content.decode()


def test_after_the_last_pause_somebody_has_to_ask(
    computed: Run, mailbox: Mailbox, client: Client
) -> None:
    mailbox.refusal = "550 No such mailbox"
    delivery.subscribe("email", ADDRESS)
    deliver()
    pk = Delivery.objects.get().pk
    for _ in delivery.PAUSES:
        Delivery.objects.update(next_at=datetime.now(UTC))
        deliver()
    assert Delivery.objects.get().next_at is None
    client.force_login(make_user("ada", Role.ADMIN))
    assert "No further attempt." in client.get("/reports/delivery/").content.decode()
    mailbox.refusal = ""
    client.post(f"/reports/delivery/{pk}/send/")
    deliver()
    assert len(mailbox.mails) == 1


def test_the_latest_report_is_sent_to_a_new_subscriber_and_once_more_on_request(
    computed: Run, mailbox: Mailbox, client: Client
) -> None:
    deliver()
    client.force_login(make_user("ada", Role.ADMIN))
    send = f"/reports/delivery/subscriber/{delivery.subscribe('email', ADDRESS).pk}/send/"
    for number in (1, 2):
        assert "sends the report of" in client.post(send, follow=True).content.decode()
        deliver()
        assert len(mailbox.mails) == number
    NightlyReport.objects.all().delete()
    assert "no report is stored yet" in client.post(send, follow=True).content.decode()


def test_a_webhook_gets_the_report_as_json_and_its_redirect_is_no_success(computed: Run) -> None:
    with webhook(302, 200) as hook:
        added = delivery.subscribe("webhook", f"{hook.address}?token=abc")
        assert (added.name, "token" in added.encrypted_address) == ("127.0.0.1", False)
        slack = delivery.subscribe("webhook", "https://hooks.example.org/services/T0/B0/x7Kq9aZ")
        assert slack.name == "hooks.example.org …q9aZ"
        slack.delete()
        deliver()
        assert "302" in Delivery.objects.get().error
        Delivery.objects.update(next_at=datetime.now(UTC))
        deliver()
    assert Delivery.objects.get().sent_at is not None
    assert len(hook.posts) == 2
    assert hook.posts[1]["report"]["day"] == DAY.isoformat()
    assert hook.posts[1]["text"].startswith("Delayboard report of")


def test_without_a_mail_server_the_delivery_says_which_setting_is_missing(
    computed: Run, settings: Any
) -> None:
    settings.EMAIL_HOST = ""
    delivery.subscribe("email", ADDRESS)
    deliver()
    assert Delivery.objects.get().error == delivery.NO_MAIL


def test_an_old_day_is_stored_and_not_sent(computed: Run) -> None:
    delivery.subscribe("email", ADDRESS)
    delivery.store_report(DAY - timedelta(days=30))
    assert not Delivery.objects.exists()


def test_an_admin_adds_and_deletes_subscribers(db: None, client: Client) -> None:
    client.force_login(make_user("ada", Role.ADMIN))
    for channel, address in (("email", ADDRESS), ("webhook", "https://hooks.example.org/T0/abc")):
        client.post("/reports/delivery/subscriber/", {"channel": channel, "address": address})
    refused = [("email", "nobody"), ("webhook", "ftp://example.org"), ("email", ADDRESS)]
    for channel, typed in refused:
        posted = {"channel": channel, "address": typed}
        page = client.post("/reports/delivery/subscriber/", posted).content.decode()
        assert "Nothing was changed." in page
        assert f'value="{typed}"' in page
        assert f'value="{channel}" checked' in page
    page = client.get("/reports/delivery/").content.decode()
    assert "hooks.example.org" in page
    assert "/T0" not in page
    assert [one.name for one in Subscriber.objects.all()] == [ADDRESS, "hooks.example.org"]
    assert "abc" not in str(list(AuditEntry.objects.values_list("what", flat=True)))
    pk = Subscriber.objects.values_list("pk", flat=True).first()
    client.post("/reports/delivery/subscriber/", {"delete": str(pk)})
    assert [one.name for one in Subscriber.objects.all()] == ["hooks.example.org"]


def test_an_operator_sees_no_subscribers(db: None, client: Client) -> None:
    client.force_login(make_user("oskar", Role.OPERATOR))
    assert client.get("/reports/delivery/").status_code == 403
    answer = client.post("/reports/delivery/subscriber/", {"channel": "email", "address": ADDRESS})
    assert answer.status_code == 403
    assert not Subscriber.objects.exists()
