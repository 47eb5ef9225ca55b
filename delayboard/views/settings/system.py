"""What Delayboard itself needs: the worker's tasks, and the pages that set it up."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from delayboard.demo.removal import demo_broker
from delayboard.now.system import TaskLine, background_tasks_of, list_hosts, make_tasks_version
from topology import access
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
