"""Sends each new nightly report to its subscribers, and repeats what failed."""

from __future__ import annotations

import json
import logging
import smtplib
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from http.client import HTTPException
from threading import Event
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.mail import EmailMessage
from django.core.validators import URLValidator, validate_email

from analytics.models import Channel, Delivery, NightlyReport, Subscriber
from analytics.results.contents import contents
from analytics.results.nightly_report.document import as_json, as_text, report_of
from analytics.results.nightly_report.store import days_to_store, store_report
from topology.broker.errors import BrokerError
from topology.models.secrets import seal_secret

TIMEOUT_SECONDS = 8.0
# The pause before each next attempt; after the last one a user must request the next.
PAUSES = tuple(timedelta(minutes=minutes) for minutes in (1, 5, 15, 60, 240, 720))
# A worker that was killed while it sent is followed by another attempt.
CLAIM = timedelta(minutes=5)
# The path of a webhook from this length on is shown by its last characters: these distinguish the
# addresses of one host, and reveal no token.
LONG_PATH, SHOWN_OF_PATH = 20, 4
NO_MAIL = "EMAIL_HOST is not set. Set it in the environment of the worker."
logger = logging.getLogger(__name__)


class AddressRefused(Exception):
    """Not an address of this kind; the message is a sentence."""


class NotSent(Exception):
    """No report can be sent; the message is a sentence."""


def subscribe(channel: str, address: str) -> Subscriber:
    """Add who gets the reports from the next one on. Raises AddressRefused."""
    address = address.strip()
    is_mail = channel == Channel.EMAIL
    check: Callable[[str], None] = validate_email if is_mail else URLValidator(["http", "https"])
    try:
        check(address)
    except ValidationError as error:
        kind = "a mail address" if is_mail else "an HTTP address"
        raise AddressRefused(f"“{address[:60]}” is not {kind}.") from error
    channel = Channel.EMAIL if is_mail else Channel.WEBHOOK
    name = address if is_mail else _name_webhook(address)
    if any(one.address == address for one in Subscriber.objects.filter(channel=channel)):
        raise AddressRefused(f"{name} is a subscriber already.")
    return Subscriber.objects.create(
        channel=channel, name=name[:254], encrypted_address=seal_secret(address)
    )


def send_latest(subscriber: Subscriber) -> Delivery:
    """Let the worker send the latest report next, also one that was sent. Raises NotSent."""
    if subscriber.channel == Channel.EMAIL and not settings.EMAIL_HOST:
        raise NotSent(f"Nothing is sent. {NO_MAIL}")
    report = NightlyReport.objects.defer("html", "pdf").first()
    if report is None:
        raise NotSent("Nothing is sent, because no report is stored yet.")
    delivery, _ = Delivery.objects.update_or_create(
        report=report,
        subscriber=subscriber,
        defaults={"next_at": datetime.now(UTC), "sent_at": None, "attempts": 0, "error": ""},
    )
    return delivery


def _name_webhook(address: str) -> str:
    parts = urlsplit(address)
    path = f"{parts.path}?{parts.query}" if parts.query else parts.path
    end = f" …{path[-SHOWN_OF_PATH:]}" if len(path) >= LONG_PATH else ""
    return f"{parts.hostname}{end}"


def deliver_due(stop: Event, *, alive: Callable[[], None] = lambda: None) -> None:
    """Store the reports of new days, then send what is due once."""
    for day in days_to_store(datetime.now(UTC)):
        if stop.is_set():
            return
        store_report(day, alive=alive)
    due = Delivery.objects.filter(next_at__lte=datetime.now(UTC), sent_at=None)
    for delivery in due.select_related("report", "subscriber"):
        if stop.is_set():
            return
        alive()
        send(delivery)


def send(delivery: Delivery) -> bool:
    """Try once, and note how it ended; False where another worker is at it or it failed."""
    claimed = Delivery.objects.filter(pk=delivery.pk, next_at=delivery.next_at, sent_at=None)
    attempts = delivery.attempts + 1
    if not claimed.update(next_at=datetime.now(UTC) + CLAIM, attempts=attempts):
        return False
    row = Delivery.objects.filter(pk=delivery.pk)
    try:
        _send(delivery)
    except (smtplib.SMTPException, HTTPException, OSError, ValueError, BrokerError) as error:
        sentence = str(error) or type(error).__name__
        pause = PAUSES[attempts - 1] if attempts <= len(PAUSES) else None
        next_at = datetime.now(UTC) + pause if pause else None
        row.update(error=sentence[:1000], next_at=next_at)
        report, name = delivery.report, delivery.subscriber.name
        logger.error("The %s for %s was not sent: %s", report, name, sentence)
        return False
    row.update(sent_at=datetime.now(UTC), next_at=None, error="")
    return True


def _send(delivery: Delivery) -> None:
    if delivery.subscriber.channel != Channel.EMAIL:
        found = report_of(delivery.report.day)
        # `text` is what chat systems show.
        _post(delivery.subscriber.address, {"text": as_text(found), "report": as_json(found)})
        return
    if not settings.EMAIL_HOST:
        raise ValueError(NO_MAIL)
    _mail_of(delivery).send()


def _mail_of(delivery: Delivery) -> EmailMessage:
    """The report as text, with its files."""
    report, found = delivery.report, report_of(delivery.report.day)
    sentences = contents(found)["sentences"]
    grave = f": {sentences[0].headline.rstrip('.')}" if sentences and not found.is_empty else ""
    message = EmailMessage(
        subject=f"Delayboard report {report.day}{grave}",
        body=as_text(found),
        to=[delivery.subscriber.address],
    )
    name = f"delayboard-report-{report.day}"
    message.attach(f"{name}.html", report.html, "text/html")
    if report.pdf is not None:
        message.attach(f"{name}.pdf", bytes(report.pdf), "application/pdf")
    return message


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """The report goes to the address that an administrator entered, and nowhere else."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def _post(address: str, content: dict[str, Any]) -> None:
    request = urllib.request.Request(
        address,
        data=json.dumps(content).encode(),
        headers={"Content-Type": "application/json", "User-Agent": "Delayboard"},
        method="POST",
    )
    opener = urllib.request.build_opener(_NoRedirect)
    try:
        with opener.open(request, timeout=TIMEOUT_SECONDS) as answer:
            answer.read(1024)
    except HTTPError as error:
        why = ", and Delayboard follows no redirect" if 300 <= error.code < 400 else ""
        raise ValueError(f"The webhook answered with status {error.code}{why}.") from error
    except TimeoutError as error:
        raise OSError(f"The webhook did not answer within {TIMEOUT_SECONDS:.0f} s.") from error
    except URLError as error:
        raise OSError(f"The webhook was not reached: {error.reason}.") from error
