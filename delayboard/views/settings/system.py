"""What Delayboard itself needs: the tasks of the worker, and what is kept for how long."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.views.decorators.http import require_safe

from analytics.disk import read_disk_space
from delayboard.demo.removal import demo_broker
from delayboard.models.background_task import CLEANING, BackgroundTask
from delayboard.now.system import TaskLine, background_tasks_of, list_hosts, make_tasks_version
from delayboard.retention.parked_rows import SIZE
from delayboard.retention.table import RULES
from topology import access
from topology.access import may
from topology.models import Role


@require_safe
def system(request: HttpRequest) -> HttpResponse:
    brokers = list(access.visible_brokers(request.user))
    tasks = background_tasks_of(brokers)
    lines = [TaskLine(task) for task in tasks]
    hosts = list_hosts(tasks)
    context = {
        "lines": lines,
        "hosts": hosts,
        "at": timezone.now(),
        "live": ",".join(str(broker.pk) for broker in brokers),
        "live_version": make_tasks_version(lines, hosts),
        "has_demo": demo_broker() in brokers,
        "may_alert": access.may(request.user, None, Role.ADMIN),
        "redacting": access.visible_brokers(request.user, Role.ADMIN),
    }
    return render(request, "delayboard/system.html", context)


@require_safe
def look(request: HttpRequest) -> HttpResponse:
    """Every component of the pages in every state, which docs/look.md explains."""
    return render(request, "delayboard/look.html")


@require_safe
def retention(request: HttpRequest) -> HttpResponse:
    background_task = BackgroundTask.objects.filter(key=CLEANING).first()
    details: Mapping[str, Any] = background_task.details if background_task else {}
    removed = details.get("removed") or {}
    now, size = datetime.now(UTC), _number(details, "parked_messages_bytes")
    holdings = [(rule.holding(now), removed.get(rule.what, 0)) for rule in RULES if rule.what]
    context = {
        "holdings": [one for one in holdings if one[0].rule is not SIZE],
        "all_messages": next(one for one in holdings if one[0].rule is SIZE),
        "size": size,
        "is_too_large": SIZE.is_exceeded(size),
        "background_task": background_task,
        "cleaned_at": _moment(details, "cleaned_at"),
        "removed_at": _moment(details, "removed_at"),
        "disk": read_disk_space(settings.EVENT_LOG),
        "log": settings.EVENT_LOG if may(request.user, None, Role.VIEWER) else "",
    }
    return render(request, "delayboard/retention.html", context)


def _number(details: Mapping[str, Any], name: str) -> int | None:
    number = details.get(name)
    return number if isinstance(number, int) else None


def _moment(details: Mapping[str, Any], name: str) -> datetime | None:
    text = details.get(name)
    return parse_datetime(text) if isinstance(text, str) else None
