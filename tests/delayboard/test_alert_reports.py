"""Nightly reports as messages to receivers: when they are written, and what arrives."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator
from datetime import UTC, datetime, time, timedelta
from threading import Event
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from analytics.models import NightlyReport, Run
from analytics.results import nightly_report
from delayboard.alerts import task
from delayboard.alerts.messages import write_message
from delayboard.alerts.task import NO_MAIL, send_due, write_reports
from delayboard.models import AlertMessage, AlertReceiver
from tests.analytics import result_rows
from tests.builders import make_user
from tests.receivers import Mailbox, smtp_server, webhook
from topology.models import Broker, Role
from topology.models.secrets import seal_secret

pytestmark = pytest.mark.both_databases
# Complete, even shortly after midnight.
DAY = datetime.now(UTC).date() - timedelta(days=2)
ADDRESS = "ops@example.org"


@pytest.fixture
def mailbox(settings: Any) -> Iterator[Mailbox]:
    with smtp_server(settings) as box:
        yield box


@pytest.fixture
def computed(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(nightly_report, "print_pdf", lambda html, alive: b"%PDF-1.4 a report")
    result_rows.days([DAY], [{"broker": broker.slug, "topology": "orders"}])
    return Run.objects.create(day=DAY, state="done", finished_at=datetime.now(UTC), lines=7)


def a_receiver(address: str = ADDRESS, channel: str = "email") -> AlertReceiver:
    return AlertReceiver.objects.create(
        channel=channel,
        name=channel,
        encrypted_address=seal_secret(address),
        sends_alerts=False,
        reports_from=timezone.now(),
    )


def deliver() -> None:
    nightly_report.store_due(Event())
    write_reports(timezone.now())
    send_due(timezone.now(), lambda: True)


def test_a_new_report_is_mailed_once_with_its_files(computed: Run, mailbox: Mailbox) -> None:
    one = a_receiver()
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
    assert AlertMessage.objects.get().state == "sent"
    # It wants no alerts, and its report delays none of others.
    assert write_message(one, timezone.now()) is None


def test_a_report_of_a_part_of_a_day_is_sent_when_the_day_is_whole(
    computed: Run, mailbox: Mailbox
) -> None:
    a_receiver()
    Run.objects.update(finished_at=datetime.combine(DAY, time(12), UTC))
    deliver()
    assert NightlyReport.objects.exists()
    assert not AlertMessage.objects.exists()
    Run.objects.update(finished_at=datetime.now(UTC))
    deliver()
    assert len(mailbox.mails) == 1


def test_only_reports_of_the_last_days_and_from_the_next_one_on_are_sent(computed: Run) -> None:
    deliver()
    nightly_report.store_report(DAY - timedelta(days=30))
    a_receiver()
    nightly_report.store_report(DAY - timedelta(days=31))
    write_reports(timezone.now())
    assert not AlertMessage.objects.exists()


def test_a_webhook_gets_the_report_as_json_and_its_redirect_is_no_success(computed: Run) -> None:
    with webhook(302, 200) as hook:
        a_receiver(hook.address, "webhook")
        deliver()
        assert "302" in AlertMessage.objects.get().error
        AlertMessage.objects.update(next_at=timezone.now())
        deliver()
    assert AlertMessage.objects.get().state == "sent"
    post = hook.posts[-1]
    assert (post["type"], post["message"][:20]) == ("info", "Delayboard report of")
    assert json.loads(b64decode(post["attachments"][0]["base64"]))["day"] == DAY.isoformat()


def test_without_a_mail_server_the_message_says_which_setting_is_missing(
    computed: Run, settings: Any
) -> None:
    settings.EMAIL_HOST = ""
    a_receiver()
    deliver()
    assert AlertMessage.objects.get().error == NO_MAIL


def test_a_receiver_can_have_only_the_nightly_report(db: None, client: Client) -> None:
    client.force_login(make_user("ada", Role.ADMIN))
    values = {"channel": "email", "address": ADDRESS, "group_minutes": "5", "kind": "report"}
    page = client.post("/alerts/receiver/", values, follow=True).content.decode()
    made = AlertReceiver.objects.get()
    assert (made.sends_alerts, made.reports_from is not None) == (False, True)
    assert '<td data-label="Problems">Nightly report</td>' in page
    assert "gets nightly reports from now on." in page
    values |= {"channel": "pagerduty", "address": f"pagerduty://{'a' * 32}@{'b' * 20}"}
    refused = client.post("/alerts/receiver/", values, follow=True).content.decode()
    assert "PagerDuty takes no nightly reports." in refused
    page = client.get(f"/alerts/?edit={made.pk}").content.decode()
    assert page.count(" checked>") == 2


def test_a_report_that_cannot_be_made_keeps_back_no_alert(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(now: datetime) -> None:
        raise ValueError("no figures")

    stop, sent = Event(), []
    monkeypatch.setattr(task, "write_reports", refuse)
    monkeypatch.setattr(task, "send_due", lambda now, alive: sent.append(now))
    task.keep_alerting("w", stop=stop, beat=lambda details: stop.set())
    assert len(sent) == 1
    assert "The nightly reports are not sent: no figures" in caplog.text
