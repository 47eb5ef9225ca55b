"""`/livez`, `/readyz` and `/metrics`: for probes and Prometheus, who have no account."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from ipaddress import ip_address

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.utils import timezone
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from delayboard.health import UNAVAILABLE, check_health, summarize
from delayboard.metrics import BoardCollector


class MonitoringMiddleware:
    """Answers before all others: a probe asks by the address of a container, without TLS, a name
    that is allowed or a session."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        answer = {"/livez": livez, "/readyz": readyz, "/metrics": metrics}.get(request.path)
        if answer is None:
            return self.get_response(request)
        if request.method not in ("GET", "HEAD"):
            return HttpResponse(status=405, headers={"Allow": "GET, HEAD"})
        response = answer(request)
        response.headers["Cache-Control"] = "no-store"
        return response


def livez(request: HttpRequest) -> HttpResponse:
    """200 while this process answers at all."""
    return JsonResponse({"status": "ok"})


def readyz(request: HttpRequest) -> HttpResponse:
    """503 while pages cannot be answered; names and reasons for those who may read metrics."""
    status, checks = check_health()
    shown = checks if may_read(request) else summarize(checks)
    code = 503 if status == UNAVAILABLE else 200
    return JsonResponse({"status": status, "checks": shown}, status=code)


def metrics(request: HttpRequest) -> HttpResponse:
    if not may_read(request):
        sentence = (
            "Metrics need the token of METRICS_TOKEN (Authorization: Bearer …), or an address "
            "of METRICS_ALLOW_IPS."
        )
        return HttpResponse(sentence, status=403, content_type="text/plain; charset=utf-8")
    registry = CollectorRegistry()
    registry.register(BoardCollector(timezone.now(), details=settings.METRICS_DETAILS))
    encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    return HttpResponse(encode(registry), content_type=content_type)


def may_read(request: HttpRequest) -> bool:
    """By token or address; nobody while neither is set."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    wanted = settings.METRICS_TOKEN
    if wanted and scheme.lower() == "bearer":
        return secrets.compare_digest(token.strip().encode(), wanted.encode())
    try:
        address = ip_address(request.META.get("REMOTE_ADDR", ""))
    except ValueError:
        return False
    address = getattr(address, "ipv4_mapped", None) or address
    return any(address in network for network in settings.METRICS_ALLOW_IPS)
