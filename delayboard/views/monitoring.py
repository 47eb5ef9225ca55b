"""`/livez`, `/readyz` and `/metrics`: for probes and Prometheus, who have no account."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from ipaddress import ip_address
from typing import TypeAlias

from django.conf import settings
from django.db import Error, connection
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.utils import timezone
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from analytics.disk import read_disk_space
from delayboard.metrics import BoardCollector
from delayboard.models import BackgroundTask
from delayboard.now.system import has_no_worker
from delayboard.run_command import MIGRATE_FIRST, is_migration_missing
from topology import snapshots
from topology.database.clock import describe_skew, measure_skew
from topology.database.errors import explain
from topology.models import Broker

OK, DEGRADED, UNAVAILABLE = "ok", "degraded", "unavailable"
# Check -> "ok" or a sentence; by task and broker where there may be several.
Checks: TypeAlias = dict[str, "str | dict[str, str]"]
# Databases whose migrations were found applied: they stay so.
_migrated: set[str] = set()


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
    """Whether the token or the address may read; nobody may while neither is set."""
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


def check_health() -> tuple[str, Checks]:
    """The status of this process, and what is wrong.

    "unavailable" while it can answer no page; "degraded" while pages work and something else does
    not, which a restart of the site would not change.
    """
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        database = str(connection.settings_dict["NAME"])
        if database not in _migrated and not is_migration_missing():
            _migrated.add(database)
    except Error as error:
        # Never the driver's own text, which may name a host or an account.
        return UNAVAILABLE, {"database": str(explain(error) or "The database does not answer.")}
    if database not in _migrated:
        return UNAVAILABLE, {"database": OK, "migrations": MIGRATE_FIRST}
    checks: Checks = {"database": OK, "migrations": OK}
    checks["clock"] = describe_skew("this host", measure_skew()) or OK
    tasks = list(BackgroundTask.objects.all())
    checks["worker"] = "The worker is not running." if has_no_worker(tasks) else OK
    checks["tasks"] = {
        task.key: task.last_error or ("No heartbeat." if task.is_late else OK) for task in tasks
    }
    disk = read_disk_space(settings.EVENT_LOG)
    checks["event_log"] = "The disk of the event log is full." if disk and disk.is_full else OK
    brokers = list(Broker.objects.all())
    silent = {broker.pk for broker in snapshots.silent(brokers)}
    checks["brokers"] = {
        broker.slug: _why(broker) if broker.pk in silent else OK for broker in brokers
    }
    is_ok = all(one == OK for one in summarize(checks).values())
    return OK if is_ok else DEGRADED, checks


def summarize(checks: Checks) -> dict[str, str]:
    """Each check as "ok" or "failing": what anybody may know."""
    return {
        name: OK
        if set(found.values() if isinstance(found, dict) else [found]) <= {OK}
        else "failing"
        for name, found in checks.items()
    }


def _why(broker: Broker) -> str:
    latest = snapshots.latest(broker.pk)
    return (latest.error if latest else "") or "The broker does not answer."
