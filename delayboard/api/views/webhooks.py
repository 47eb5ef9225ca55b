"""Webhooks and their deliveries."""

from __future__ import annotations

import json
from typing import Any

from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from ninja import Path, Router, Status

from delayboard.alerts import webhooks
from delayboard.alerts.messages import AddressRefused
from delayboard.api import schemas
from delayboard.api.guard import list_page, make_page, needs
from delayboard.api.problem import Problem
from delayboard.models import AlertMessage, AlertReceiver
from topology import access
from topology.database.paging import read_slice
from topology.models import Broker, Role

router = Router()
PAGE = 100
ADMIN = needs(Role.ADMIN, "every broker")


@router.get("/webhooks", response=schemas.Page[schemas.Webhook], **ADMIN)
def list_webhooks(request: HttpRequest) -> Any:
    """The webhooks, without their addresses and secrets."""
    access.require(request.user, None, Role.ADMIN)
    return list_page(map(_show, webhooks.list_webhooks()), None)


@router.post("/webhooks", response={201: schemas.WebhookMade}, **ADMIN)
def create_webhook(request: HttpRequest, body: schemas.WebhookRequest) -> Any:
    """Post events to an address from now on; answers the secret, once."""
    access.require(request.user, None, Role.ADMIN)
    brokers = None
    if body.brokers is not None:
        known = dict(Broker.objects.values_list("slug", "pk"))
        if unknown := [slug for slug in body.brokers if slug not in known]:
            raise AddressRefused(f"There is no broker “{unknown[0]}”.")
        brokers = [known[slug] for slug in body.brokers]
    values = body.model_dump(exclude={"brokers"})
    made, secret = webhooks.create_webhook(request.user, **values, brokers=brokers)
    return Status(201, _show(made) | {"secret": secret})


@router.delete("/webhooks/{webhook}", response=schemas.Done, **ADMIN)
def delete_webhook(request: HttpRequest, webhook: Path[schemas.RowId]) -> Any:
    """Delete the webhook with its deliveries."""
    hook = _open(request, webhook)
    webhooks.delete_webhook(request.user, hook)
    return {"sentence": f"The webhook “{hook.name}” is deleted."}


@router.get("/webhooks/{webhook}/deliveries", response=schemas.Page[schemas.Delivery], **ADMIN)
def list_deliveries(request: HttpRequest, webhook: Path[schemas.RowId], after: str = "") -> Any:
    """The deliveries of a webhook, the newest first."""
    rows = _open(request, webhook).messages.order_by("-pk")

    def show(one: AlertMessage) -> dict[str, Any]:
        columns = ("state", "attempts", "next_at", "status", "error", "created_at", "ended_at")
        named = {"delivery": one.pk, "event": one.title, "payload": json.loads(one.body)}
        return named | {name: getattr(one, name) for name in columns}

    return make_page(read_slice(rows, after, PAGE), show)


@router.post("/webhooks/{webhook}/deliveries/{delivery}/send", response=schemas.Done, **ADMIN)
def send_delivery(
    request: HttpRequest, webhook: Path[schemas.RowId], delivery: Path[schemas.RowId]
) -> Any:
    """Send a delivery again, with the same id."""
    rows = _open(request, webhook).messages.select_related("receiver")
    if not webhooks.send_again(request.user, get_object_or_404(rows, pk=delivery)):
        raise Problem(409, "The worker is sending this delivery. Wait for the answer.")
    return {"sentence": "The worker sends the delivery next."}


def _open(request: HttpRequest, webhook: int) -> AlertReceiver:
    """Raises PermissionDenied and Http404."""
    access.require(request.user, None, Role.ADMIN)
    return get_object_or_404(webhooks.list_webhooks(), pk=webhook)


def _show(hook: AlertReceiver) -> dict[str, Any]:
    slugs = Broker.objects.filter(pk__in=hook.broker_ids or ())
    return {
        "webhook": hook.pk,
        "brokers": None if hook.broker_ids is None else list(slugs.values_list("slug", flat=True)),
        "failed": AlertMessage.failed().filter(receiver=hook).count(),
    } | {name: getattr(hook, name) for name in ("name", "events", "is_enabled", "created_at")}
