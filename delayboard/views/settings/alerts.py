"""Pages of alerts: receivers, what they get and when, and the log of what was sent."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, time
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from delayboard.alerts.heartbeat import call, check_web_address
from delayboard.alerts.messages import (
    EXAMPLES,
    LOG_ROWS,
    AddressRefused,
    check_address,
    make_log_version,
    read_host,
    write_test,
)
from delayboard.models import (
    AlertChannel,
    AlertMessage,
    AlertProblem,
    AlertReceiver,
    AlertState,
    Heartbeat,
)
from delayboard.models.background_task import is_missing
from delayboard.now.problems import CONDITION, ProblemKind
from topology import access, audit
from topology.database.paging import row_number
from topology.models import Role
from topology.models.secrets import DecryptionError, seal_secret
from topology.models.work import ALERTS

LONGEST_GROUP_MINUTES = 1440
# What a receiver gets, by the column that says so.
_GETS = {"sends_alerts": "alerts", "reports_from": "nightly reports"}
CONDITIONS = {ProblemKind.DEAD_LETTERS: CONDITION}


@require_safe
@access.everywhere(Role.ADMIN)
def alerts(request: HttpRequest) -> HttpResponse:
    """The receivers, the number of open problems, and the log; `edit` fills the form.

    With `report` the form is for a receiver of the nightly report alone.
    """
    edited = _receivers().filter(pk=row_number(request.GET.get("edit", "")) or 0).first()
    excluded = edited.excluded_kinds if edited else []
    for_report = edited is None and "report" in request.GET
    sends_alerts = edited.sends_alerts if edited else not for_report
    log = AlertMessage.objects.filter(receiver__in=_receivers())
    context = {
        "edited": edited,
        "for_report": for_report,
        "receivers": [(one, _host_of(one), _kinds_of(one)) for one in _receivers()],
        # E-mail without a server reaches nobody; a receiver that has it keeps it.
        "channels": [
            (one.value, one.label, EXAMPLES[one])
            for one in EXAMPLES
            if one != AlertChannel.EMAIL
            or settings.EMAIL_HOST
            or (edited and edited.channel == AlertChannel.EMAIL)
        ],
        "heartbeat": Heartbeat.objects.first(),
        "kinds": [
            (one.value, one.label, CONDITIONS.get(one, ""), sends_alerts and one not in excluded)
            for one in ProblemKind
        ],
        "log_version": make_log_version(),
        "log": log.select_related("receiver")[:LOG_ROWS],
        "older": max(log.count() - LOG_ROWS, 0),
        "open": AlertProblem.objects.filter(resolved_at=None).count(),
        "worker_is_missing": is_missing(ALERTS),
        "has_mail_server": bool(settings.EMAIL_HOST),
        "time_zone": settings.TIME_ZONE,
    }
    return render(request, "delayboard/alerts.html", context)


@require_POST
@access.everywhere(Role.ADMIN)
def alert_receiver(request: HttpRequest) -> HttpResponse:
    """Add a receiver, or change, delete or test the one whose id is posted."""
    for action in ("delete", "test"):
        if pk := request.POST.get(action, ""):
            receiver = get_object_or_404(_receivers(), pk=row_number(pk))
            return _delete(request, receiver) if action == "delete" else _test(request, receiver)
    edited = None
    if pk := request.POST.get("receiver", ""):
        edited = get_object_or_404(_receivers(), pk=row_number(pk))
    try:
        values = _read_receiver(request.POST, request.POST.getlist("kind"), edited)
    except AddressRefused as refusal:
        messages.error(request, f"Nothing was changed. {refusal}")
        return redirect(f"{reverse('alerts')}?edit={edited.pk}" if edited else "alerts")
    if edited:
        with audit.recorded(request.user, "alert receiver changed", what=values["name"]):
            AlertReceiver.objects.filter(pk=edited.pk).update(**values)
        messages.success(request, f"{values['name']} is changed.")
        return redirect("alerts")
    with audit.recorded(request.user, "alert receiver added", what=values["name"]):
        AlertReceiver.objects.create(**values)
    gets = [words for column, words in _GETS.items() if values[column]]
    messages.success(request, f"{values['name']} gets {' and '.join(gets)} from now on.")
    return redirect("alerts")


@require_POST
@access.everywhere(Role.ADMIN)
def heartbeat(request: HttpRequest) -> HttpResponse:
    """Set the address that the worker calls, after one call of it, or remove it."""
    if "delete" in request.POST:
        with audit.recorded(request.user, "heartbeat address removed"):
            Heartbeat.objects.all().delete()
        messages.success(request, "The worker calls no address.")
        return redirect("alerts")
    seconds = request.POST.get("every_seconds", "")
    try:
        address, host = check_web_address(request.POST.get("address", ""))
        if not (seconds.isascii() and seconds.isdigit() and 10 <= int(seconds[:6]) <= 86400):
            raise AddressRefused("Enter 10 to 86400 seconds between calls.")
        if error := call(address)[1]:
            raise AddressRefused(f"{error} The address was called once.")
    except AddressRefused as refusal:
        messages.error(request, f"Nothing was changed. {refusal}")
        return redirect("alerts")
    with audit.recorded(request.user, "heartbeat address set", what=host), transaction.atomic():
        Heartbeat.objects.all().delete()
        values = {"name": host, "encrypted_address": seal_secret(address)}
        Heartbeat.objects.create(**values, every_seconds=int(seconds))
    messages.success(request, f"{host} answered. The worker calls it every {seconds} s.")
    return redirect("alerts")


@require_POST
@access.everywhere(Role.ADMIN)
def alert_send(request: HttpRequest, pk: int) -> HttpResponse:
    """Send an alert again that was not sent."""
    unsent = AlertMessage.objects.filter(
        receiver__in=_receivers(), state__in=(AlertState.WAITING, AlertState.FAILED)
    )
    message = get_object_or_404(unsent.select_related("receiver"), pk=pk)
    with audit.recorded(request.user, "alert sent again", what=str(message)):
        waiting = {"state": AlertState.WAITING, "attempts": 0, "next_at": None, "ended_at": None}
        unsent.filter(pk=pk).update(**waiting)
    messages.success(request, f"The worker sends the alert to {message.receiver} next.")
    return redirect("alerts")


def _receivers() -> QuerySet[AlertReceiver]:
    """The receivers that are for people."""
    return AlertReceiver.objects.exclude(channel=AlertChannel.SIGNED)


def _delete(request: HttpRequest, receiver: AlertReceiver) -> HttpResponse:
    with audit.recorded(request.user, "alert receiver deleted", what=receiver.name):
        receiver.delete()
    messages.success(request, f"{receiver.name} gets no more alerts.")
    return redirect("alerts")


def _test(request: HttpRequest, receiver: AlertReceiver) -> HttpResponse:
    with audit.recorded(request.user, "test alert sent", what=receiver.name):
        write_test(receiver, datetime.now(UTC))
    messages.success(request, f"The worker sends a test alert to {receiver.name} next.")
    return redirect("alerts")


def _read_receiver(
    posted: Mapping[str, str], kinds: list[str], edited: AlertReceiver | None
) -> dict[str, Any]:
    """The columns of a receiver; an edited one without a new address keeps its own.

    Raises AddressRefused.
    """
    channel, typed = posted.get("channel", ""), posted.get("address", "")
    if edited and channel == edited.channel and not typed.strip():
        sealed, name = edited.encrypted_address, edited.name
    else:
        channel, address, name = check_address(channel, typed)
        sealed = seal_secret(address)
    name = posted.get("name", "").strip() or name
    others = AlertReceiver.objects.exclude(pk=edited.pk if edited else 0)
    if others.filter(channel=channel, name=name).exists():
        raise AddressRefused(f"A receiver with the name {name} exists. Enter another name.")
    minutes = posted.get("group_minutes", "")
    is_number = minutes.isascii() and minutes.isdigit() and len(minutes) <= 4
    if not is_number or not 1 <= int(minutes) <= LONGEST_GROUP_MINUTES:
        raise AddressRefused(f"Enter 1 to {LONGEST_GROUP_MINUTES} minutes between alerts.")
    quiet = [_clock(posted.get(name, "")) for name in ("quiet_from", "quiet_until")]
    if (quiet[0] is None) != (quiet[1] is None):
        raise AddressRefused("Enter both ends of the quiet hours, or none.")
    sends_alerts, sends_reports = bool(set(kinds) & set(ProblemKind.values)), "report" in kinds
    if not sends_alerts and not sends_reports:
        raise AddressRefused("Select at least one kind of problem, or the nightly report.")
    if sends_reports and channel == AlertChannel.PAGERDUTY:
        raise AddressRefused("PagerDuty takes no nightly reports. Clear “Nightly report”.")
    begun_at = (edited.reports_from if edited else None) or datetime.now(UTC)
    return {
        "channel": channel,
        "name": name[:254],
        "encrypted_address": sealed,
        "excluded_kinds": [one for one in ProblemKind.values if one not in kinds],
        "group_minutes": int(minutes),
        "quiet_from": quiet[0],
        "quiet_until": quiet[1],
        "sends_alerts": sends_alerts,
        "reports_from": begun_at if sends_reports else None,
        "sends_all_clear": posted.get("all_clear") == "1",
    }


def _clock(text: str) -> time | None:
    """A time of day; None of nothing. Raises AddressRefused."""
    if not text:
        return None
    try:
        return time.fromisoformat(text).replace(tzinfo=None)
    except ValueError as error:
        raise AddressRefused("Enter quiet hours such as 22:00 to 06:30.") from error


def _host_of(receiver: AlertReceiver) -> str:
    try:
        return read_host(receiver.channel, receiver.address)
    except DecryptionError:
        return "unknown host: no key decrypts the address"


def _kinds_of(receiver: AlertReceiver) -> str:
    labels = [kind.label for kind in ProblemKind if kind not in receiver.excluded_kinds]
    if not receiver.sends_alerts:
        return "Nightly report"
    words = "All problems" if len(labels) == len(ProblemKind) else ", ".join(labels)
    return f"{words}, nightly report" if receiver.reports_from else words
