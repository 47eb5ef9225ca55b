from __future__ import annotations

from datetime import UTC, datetime

from django.conf import settings
from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST, require_safe

from analytics.models import Channel, Delivery, Subscriber
from analytics.results.nightly_report.delivery import (
    AddressRefused,
    NotSent,
    send_latest,
    subscribe,
)
from topology import access, audit
from topology.database import paging
from topology.models import Role

SHOWN_DELIVERIES = 50


@require_safe
@access.everywhere(Role.ADMIN)
def report_delivery(request: HttpRequest) -> HttpResponse:
    """Who gets the nightly reports, and what was sent."""
    return _page(request)


def _page(request: HttpRequest, channel: str = Channel.EMAIL, address: str = "") -> HttpResponse:
    """With what was typed for a new subscriber."""
    deliveries = Delivery.objects.select_related("subscriber", "report").defer(
        "report__html", "report__pdf"
    )
    context = {
        "subscribers": Subscriber.objects.all(),
        "channels": Channel.choices,
        "channel": channel,
        "address": address,
        "deliveries": deliveries[:SHOWN_DELIVERIES],
        "has_mail_server": bool(settings.EMAIL_HOST),
    }
    return render(request, "analytics/report_delivery.html", context)


@require_POST
@access.everywhere(Role.ADMIN)
def report_subscriber(request: HttpRequest) -> HttpResponse:
    """Add a subscriber, or delete the one whose id is posted as `delete`."""
    if pk := request.POST.get("delete", ""):
        subscriber = get_object_or_404(Subscriber, pk=paging.row_number(pk))
        with audit.recorded(request.user, "report subscriber deleted", what=subscriber.name):
            subscriber.delete()
        messages.success(request, f"{subscriber.name} gets no more reports.")
        return redirect("analytics:report_delivery")
    channel, address = (request.POST.get(name, "") for name in ("channel", "address"))
    try:
        added = subscribe(channel, address)
    except AddressRefused as refusal:
        messages.error(request, f"Nothing was changed. {refusal}")
        return _page(request, channel, address)
    audit.record(request.user, "report subscriber added", what=added.name)
    messages.success(request, f"{added.name} gets the reports from the next one on.")
    return redirect("analytics:report_delivery")


@require_POST
@access.everywhere(Role.ADMIN)
def report_send_latest(request: HttpRequest, pk: int) -> HttpResponse:
    """Send the latest report to a subscriber now, as to try its address."""
    subscriber = get_object_or_404(Subscriber, pk=pk)
    try:
        with transaction.atomic():
            delivery = send_latest(subscriber)
            audit.record(request.user, "report delivery requested", what=str(delivery))
    except NotSent as problem:
        messages.error(request, str(problem))
    else:
        messages.success(request, f"The worker sends the {delivery.report} to {subscriber} next.")
    return redirect("analytics:report_delivery")


@require_POST
@access.everywhere(Role.ADMIN)
def report_send(request: HttpRequest, pk: int) -> HttpResponse:
    """Send a report now that was not sent yet."""
    delivery = get_object_or_404(Delivery.objects.defer("report__html"), pk=pk, sent_at=None)
    with audit.recorded(request.user, "report sent again", what=str(delivery)):
        now = datetime.now(UTC)
        Delivery.objects.filter(pk=pk, sent_at=None).update(next_at=now, attempts=0)
    messages.success(request, f"The worker sends the report to {delivery.subscriber} next.")
    return redirect("analytics:report_delivery")
