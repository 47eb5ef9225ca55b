"""The background task of alerts and nightly reports: one worker at a time, by the lease of one row.

What waits is claimed in a row before it is sent, so that a kill repeats a message at most once.
"""

from __future__ import annotations

import json
import logging
import smtplib
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from functools import cache, partial
from itertools import zip_longest
from threading import Event
from time import monotonic

import apprise
from apprise.attachment.memory import AttachMemory
from django.conf import settings
from django.core.mail import EmailMessage, get_connection
from django.db import transaction
from django.db.models import Q

from analytics.models import NightlyReport
from analytics.results.contents import contents
from analytics.results.nightly_report import as_json, as_text, report_of
from delayboard.alerts import webhooks
from delayboard.alerts.heartbeat import call_due
from delayboard.alerts.messages import (
    ALL_CLEAR,
    ASSET,
    end_acknowledgements,
    hide_address,
    make_url,
    note_problems,
    write_message,
)
from delayboard.alerts.webhooks import NotAnswered, NotSent
from delayboard.models.alert import AlertChannel, AlertMessage, AlertReceiver, AlertState
from delayboard.models.background_task import Beat
from delayboard.now.board import overview
from topology import work
from topology.broker.errors import BrokerError
from topology.models import Broker, Work
from topology.models.work import ALERTS
from topology.work import Lease

TIMEOUT_SECONDS = 10
# Pause before each next attempt; after the last one a user must request the next.
PAUSES = tuple(timedelta(minutes=minutes) for minutes in (1, 5, 15, 60, 240))
# Time after which a worker that sends was killed; the result of its attempt is not known.
CLAIM = timedelta(minutes=2)
REPEATED = "Delayboard may have sent this message before: an attempt ended without an answer."
# Signs of broker text that would make links or mentions in a chat, and their replacements.
HARMLESS = str.maketrans({"<": "‹", ">": "›", "[": "(", "]": ")", "`": "'"})
NO_MAIL = "EMAIL_HOST is not set. Set it in the environment of the worker."
NO_ANSWER = "The service did not answer within {} s."
LEVELS = ("WARNING", "ERROR", "CRITICAL")
CHATS = (AlertChannel.SLACK, AlertChannel.TEAMS)
logger = logging.getLogger(__name__)
CHECK_EVERY = timedelta(seconds=10)
# Time between two checks without a receiver, when only the beginning of each problem is written.
IDLE_CHECK_EVERY = timedelta(minutes=1)
BROKER_AGE, IDLE_BROKER_AGE = timedelta(seconds=10), timedelta(seconds=40)
IDLE_SECONDS = 2.0
# Most deliveries to a webhook, and seconds for all of them, between two checks for alerts.
AT_ONCE = 100
SIGNED_SECONDS = 5.0
# Answers about the service, and not about one event; None is no answer.
DOWN = (None, 408, 429)

# Characters that the column of a title holds.
TITLE_LENGTH = 200


def keep_alerting(owner: str, *, stop: Event, beat: Beat) -> None:
    """Write and send alerts until `stop` is set, while this worker holds the lease."""
    checked_at = datetime.min.replace(tzinfo=UTC)
    current: Work | None = None
    while not stop.is_set():
        if current is None or not work.lease_of(current).renew(0, 0):
            row, _ = Work.objects.get_or_create(kind=ALERTS, subject=0)
            current = work.claim_this(row, owner)
        if current is not None:
            lease, now = work.lease_of(current), datetime.now(UTC)
            every = CHECK_EVERY if AlertReceiver.objects.exists() else IDLE_CHECK_EVERY
            if now - checked_at >= every:
                write_alerts(lease, now)
                checked_at = now
                try:
                    write_reports(now)
                except Exception as error:
                    # What keeps a report from being made must not keep back an alert.
                    logger.error("The nightly reports are not sent: %s", error)
            send_due(now, partial(_is_alive, lease, beat))
            call_due(now)
        beat({})
        stop.wait(IDLE_SECONDS)
    if current is not None:
        work.lease_of(current).give_back("", after=timedelta(0))


def write_alerts(lease: Lease, now: datetime) -> list[AlertMessage]:
    """Read the problems and write the messages about them; none when the lease is another's.

    Problems are read without a receiver too: one that is added later gets the time they began.
    """
    has_receivers = AlertReceiver.objects.exists()
    age = BROKER_AGE if has_receivers else IDLE_BROKER_AGE
    board = overview(list(Broker.objects.all()), now, age, named=None)
    with transaction.atomic():
        if not lease.renew(0, 0):
            return []
        acknowledged = [one for one, _ in board.acknowledged]
        note_problems((*board.open_problems, *acknowledged), now, board.undecided)
        end_acknowledgements(now)
        written = [write_message(one, now) for one in AlertReceiver.objects.all()]
    try:
        with transaction.atomic():
            webhooks.write_deliveries(now)
    except Exception as error:
        # What keeps an event from being written must not keep back an alert.
        logger.error("The events of webhooks are not written: %s", error)
    return [one for one in written if one is not None]


def _is_alive(lease: Lease, beat: Beat) -> bool:
    beat({})
    return lease.renew(0, 0)


def send_due(now: datetime, alive: Callable[[], bool]) -> None:
    """Send what is due once. `alive` is False when another worker took over."""
    unfinished = (AlertState.WAITING, AlertState.SENDING)
    if not AlertMessage.objects.filter(state__in=unfinished).exists():
        return
    give_up_killed(now)
    due = Q(next_at=None) | Q(next_at__lte=now)
    waiting = AlertMessage.objects.filter(due, state=AlertState.WAITING, receiver__is_enabled=True)
    waiting = waiting.select_related("receiver", "report").order_by("created_at", "pk")
    # People first; programs may get thousands of events.
    for message in waiting.exclude(receiver__channel=AlertChannel.SIGNED):
        if not alive():
            return
        if message.is_test or not message.receiver.is_quiet(now):
            send(message, datetime.now(now.tzinfo))
    until, failed = monotonic() + SIGNED_SECONDS, set[int]()
    hooks = webhooks.list_webhooks().filter(is_enabled=True)
    # In turn: of a slow one each turn has one delivery.
    for turn in zip_longest(*(waiting.filter(receiver=hook)[:AT_ONCE] for hook in hooks)):
        if monotonic() > until:
            return
        for message in turn:
            if message is None or message.receiver_id in failed:
                continue
            if not alive():
                return
            if not send(message, datetime.now(now.tzinfo)) and is_down(message.status):
                # It must not hold up the others with a time-out for each event.
                failed.add(message.receiver_id)
                own = AlertMessage.objects.filter(due, receiver=message.receiver_id)
                own.filter(state=AlertState.WAITING).update(next_at=now + PAUSES[0])


def is_down(status: int | None) -> bool:
    return status in DOWN or (status is not None and status >= 500)


def give_up_killed(now: datetime) -> None:
    """What was being sent by a killed worker is sent again once, then reported as failed. What has
    an id by which a program knows a repeat is sent again.
    """
    killed = AlertMessage.objects.filter(state=AlertState.SENDING, next_at__lte=now)
    unsigned = killed.exclude(receiver__channel=AlertChannel.SIGNED)
    unsigned.filter(may_be_repeat=True).update(
        state=AlertState.FAILED,
        ended_at=now,
        next_at=None,
        error="The worker was killed while it repeated this message. It may have arrived.",
    )
    killed.update(state=AlertState.WAITING, may_be_repeat=True)


def send(message: AlertMessage, now: datetime) -> bool:
    """Try once and store the result; False where it failed or another worker has it."""
    claimed = AlertMessage.objects.filter(
        pk=message.pk, state=AlertState.WAITING, attempts=message.attempts
    )
    attempts = message.attempts + 1
    if not claimed.update(state=AlertState.SENDING, attempts=attempts, next_at=now + CLAIM):
        return False
    row = AlertMessage.objects.filter(pk=message.pk, state=AlertState.SENDING, attempts=attempts)
    try:
        status = notify(message)
    except (NotSent, BrokerError, ValueError) as error:
        is_last = attempts > len(PAUSES)
        message.status = getattr(error, "status", None)
        row.update(
            state=AlertState.FAILED if is_last else AlertState.WAITING,
            next_at=None if is_last else now + PAUSES[attempts - 1],
            ended_at=now if is_last else None,
            error=str(error)[:1000],
            status=message.status,
            may_be_repeat=message.may_be_repeat or isinstance(error, NotAnswered),
        )
        logger.error("The message for %s was not sent: %s", message.receiver.name, error)
        return False
    row.update(state=AlertState.SENT, ended_at=now, next_at=None, error="", status=status)
    return True


def notify(message: AlertMessage) -> int | None:
    """Hand the message to the service; the status of an answer to a signed webhook.

    Raises NotSent, and DecryptionError or ValueError.
    """
    receiver = message.receiver
    if receiver.channel == AlertChannel.SIGNED:
        return webhooks.deliver(message, datetime.now(UTC))
    address = receiver.address
    title, body = message.title, message.body
    if message.may_be_repeat:
        body = f"{REPEATED}\n\n{body}"
    if receiver.channel in CHATS:
        title, body = title.translate(HARMLESS), body.translate(HARMLESS)
    if receiver.channel == AlertChannel.EMAIL:
        _mail(address, title, body, list_files(message.report) if message.report else [])
        return None
    incident = f"delayboard-{receiver.pk}{'-test' if message.is_test else ''}"
    url = make_url(receiver.channel, address, incident)
    file = None
    if message.report and receiver.channel == AlertChannel.WEBHOOK:
        file = AttachMemory(  # type: ignore[no-untyped-call]
            write_json(message.report), "report.json", "application/json"
        )
    if said := _post(url, title, body, _type_of(message), file):
        raise NotSent(hide_address(said, receiver.channel, address))
    return None


def _type_of(message: AlertMessage) -> apprise.NotifyType:
    if message.title == ALL_CLEAR:
        return apprise.NotifyType.SUCCESS
    if message.is_test or message.report_id:
        return apprise.NotifyType.INFO
    if not message.has_new and message.receiver.channel != AlertChannel.PAGERDUTY:
        return apprise.NotifyType.SUCCESS
    # PagerDuty would end the incident, or acknowledge it, while problems remain.
    return apprise.NotifyType.FAILURE if message.has_new else apprise.NotifyType.WARNING


def _mail(address: str, title: str, body: str, files: list[tuple[str, bytes, str]]) -> None:
    """Raises NotSent. Only a server that took the message answers."""
    if not settings.EMAIL_HOST:
        raise NotSent(NO_MAIL)
    connection = get_connection(timeout=TIMEOUT_SECONDS)
    try:
        EmailMessage(title, body, to=[address], connection=connection, attachments=files).send()
    except smtplib.SMTPResponseException as error:
        raise NotSent(f"The mail server answered with {error.smtp_code}.") from error
    except smtplib.SMTPServerDisconnected as error:
        raise NotAnswered(NO_ANSWER.format(TIMEOUT_SECONDS)) from error
    except (smtplib.SMTPException, OSError) as error:
        raise NotSent(f"The mail server did not accept the message: {error}.") from error


def _post(
    url: str, title: str, body: str, kind: apprise.NotifyType, file: AttachMemory | None
) -> str:
    """Send it by Apprise; "" or why the service did not accept it. Raises NotSent."""
    service = apprise.Apprise.instantiate(url, asset=ASSET, suppress_exceptions=True)
    if service is None:
        raise NotSent("The address is not valid. Delete this receiver and add it again.")
    door = apprise.Apprise(asset=ASSET)
    door.add(service)
    result = door.notify(
        body=body,
        title=title,
        notify_type=kind,
        body_format=apprise.NotifyFormat.TEXT,
        timeout=TIMEOUT_SECONDS,
        attach=file,
    )
    if result.status == apprise.AppriseResultStatus.TIMEOUT:
        raise NotAnswered(NO_ANSWER.format(TIMEOUT_SECONDS))
    if result:
        return ""
    said = " ".join(entry.message for entry in result.logs() if entry.level in LEVELS)
    return " ".join(said.split()) or "The service did not accept the message."


def write_reports(now: datetime) -> None:
    """Write a message about each report of a whole day, once, from the next report on."""
    # Each report once, however many receive it.
    texts = cache(_make_texts)
    for receiver in AlertReceiver.objects.exclude(reports_from=None):
        known = set(receiver.messages.exclude(report=None).values_list("report", flat=True))
        for report in webhooks.find_reports(now, receiver.reports_from or now):
            if report.pk not in known:
                title, body = texts(report.day)
                message = AlertMessage(
                    receiver=receiver, title=title, body=body, report=report, created_at=now
                )
                # Another worker may write it at the same time.
                AlertMessage.objects.bulk_create([message], ignore_conflicts=True)


def _make_texts(day: date) -> tuple[str, str]:
    """The title and the body."""
    found = report_of(day)
    sentences = contents(found)["sentences"]
    grave = f": {sentences[0].headline.rstrip('.')}" if sentences and not found.is_empty else ""
    return f"Delayboard report {day}{grave}"[:TITLE_LENGTH], as_text(found)


def list_files(report: NightlyReport) -> list[tuple[str, bytes, str]]:
    """The files of a mail: name, content and type."""
    name = f"delayboard-report-{report.day}"
    files = [(f"{name}.html", report.html.encode(), "text/html")]
    if report.pdf is not None:
        files.append((f"{name}.pdf", bytes(report.pdf), "application/pdf"))
    return files


def write_json(report: NightlyReport) -> bytes:
    """What `manage.py report --json` prints."""
    return json.dumps(as_json(report_of(report.day))).encode()
