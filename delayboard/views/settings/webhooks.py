"""Webhooks: made, switched, tested and deleted, and their deliveries."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST

from delayboard.alerts import webhooks as hooks
from delayboard.alerts.messages import AddressRefused
from delayboard.models import AlertMessage, AlertReceiver
from delayboard.models.background_task import is_missing
from topology import access
from topology.database.paging import read_slice, row_number
from topology.models import Broker, Role
from topology.models.work import ALERTS

PAGE = 50


@require_http_methods(["GET", "HEAD", "POST"])
@access.everywhere(Role.ADMIN)
def webhooks(request: HttpRequest) -> HttpResponse:
    """The webhooks and the deliveries of all, or of `webhook`. A POST makes one."""
    made, secret, problem = None, "", ""
    sent = request.POST
    if request.method == "POST":
        try:
            made, secret = hooks.create_webhook(
                request.user,
                name=sent.get("name", ""),
                url=sent.get("url", ""),
                events=sent.getlist("event"),
                brokers=[row_number(text) or 0 for text in sent.getlist("broker")] or None,
            )
        except AddressRefused as refusal:
            problem = str(refusal)
    rows = hooks.list_webhooks()
    chosen = rows.filter(pk=row_number(request.GET.get("webhook", "")) or 0).first()
    deliveries = AlertMessage.objects.filter(receiver__in=[chosen] if chosen else rows)
    page = read_slice(
        deliveries.select_related("receiver").order_by("-pk"), request.GET.get("after", ""), PAGE
    )
    names = dict(Broker.objects.values_list("pk", "name"))
    context = {
        "rows": [
            (one, [names.get(pk, "deleted broker") for pk in one.broker_ids or ()], _failure(one))
            for one in rows
        ],
        "chosen": chosen,
        "page": page,
        "events": [
            (name, text, not problem or name in sent.getlist("event"))
            for name, text in hooks.EVENTS.items()
        ],
        "brokers": access.visible_brokers(request.user),
        "selected": sent.getlist("broker") if problem else [],
        "typed": sent if problem else {},
        "problem": problem,
        "made": made,
        "secret": secret,
        "worker_is_missing": is_missing(ALERTS),
    }
    status = 400 if problem else 200
    answer = render(request, "delayboard/webhooks.html", context, status=status)
    answer["Cache-Control"] = "no-store"
    return answer


def _failure(hook: AlertReceiver) -> str:
    """Why the last failed delivery failed, "" without one."""
    last = AlertMessage.failed().filter(receiver=hook).order_by("-pk").first()
    return last.error if last else ""


@require_POST
@access.everywhere(Role.ADMIN)
def webhook_change(request: HttpRequest) -> HttpResponse:
    """Test, enable, disable or delete the webhook whose id is posted, or send a delivery again."""
    back = reverse("webhooks")
    if pk := request.POST.get("send", ""):
        rows = AlertMessage.objects.filter(receiver__in=hooks.list_webhooks())
        delivery = get_object_or_404(rows.select_related("receiver"), pk=row_number(pk) or 0)
        if hooks.send_again(request.user, delivery):
            messages.success(request, f"The worker sends {delivery.title} to {delivery.receiver}.")
        else:
            messages.error(request, "The worker is sending this delivery. Wait for the answer.")
        return redirect(f"{back}?webhook={delivery.receiver_id}#deliveries")
    action = next(
        (name for name in ("test", "enable", "disable", "delete") if name in request.POST), ""
    )
    hook = get_object_or_404(
        hooks.list_webhooks(), pk=row_number(request.POST.get(action, "")) or 0
    )
    if action == "delete":
        hooks.delete_webhook(request.user, hook)
        messages.success(request, f"The webhook “{hook.name}” is deleted.")
        return redirect(back)
    if action == "test":
        hooks.send_test(request.user, hook)
        messages.success(request, f"The worker sends a test event to “{hook.name}” next.")
    else:
        hooks.switch_webhook(request.user, hook, is_enabled=action == "enable")
        messages.success(request, f"The webhook “{hook.name}” is {action}d.")
    return redirect(f"{back}?webhook={hook.pk}#deliveries")
