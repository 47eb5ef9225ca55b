"""Brokers: the list, adding, editing, trying the connection."""

from __future__ import annotations

from datetime import timedelta

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from topology import access, audit, snapshots
from topology.broker.errors import BrokerError
from topology.forms.broker import BrokerForm
from topology.models import Broker, Role, State, Topology
from topology.operations import connect
from topology.operations.connect import list_certificates, list_states
from topology.operations.finding_rows import with_reports
from topology.views.brokers.broker_overview import make_overview
from topology.views.brokers.queues import group_lines, queue_page
from topology.views.findings import findings_line

LIST_AGE = timedelta(seconds=10)


@require_safe
def brokers(request: HttpRequest) -> HttpResponse:
    visible = access.visible_brokers(request.user)
    known = snapshots.fresh_all(visible, LIST_AGE)
    pairs = zip(visible, known, strict=True)
    rows = [{"broker": broker, "latest": one} for broker, one in pairs]
    return render(
        request,
        "topology/brokers.html",
        {"rows": rows, "may_add": access.may(request.user, None, Role.ADMIN)},
    )


@access.everywhere(Role.ADMIN)
def broker_add(request: HttpRequest) -> HttpResponse:
    """The first step of a new broker: it is saved when both connections work, or on request."""
    form = BrokerForm(request.POST or None)
    trials: list[connect.Trial] = []
    if request.method == "POST" and form.is_valid():
        broker, password = form.save(commit=False), form.cleaned_data["password"]
        broker.set_password(password)
        if request.POST.get("untested") != "1":
            trials = [one for one in connect.try_connection(broker.address) if one.is_fatal]
        if not trials:
            connect.add_broker(broker, password)
            audit.record(request.user, "broker added", broker=broker, what=broker.name)
            return _try_connection(request, broker, "broker_start")
    return render(request, "topology/broker_form.html", {"form": form, "trials": trials})


@access.with_broker(Role.ADMIN, changes=False)
def broker_edit(request: HttpRequest, broker: Broker) -> HttpResponse:
    form = BrokerForm(request.POST or None, instance=broker)
    if request.method == "POST" and form.is_valid():
        changed = form.save(commit=False)
        if form.cleaned_data["password"]:
            changed.set_password(form.cleaned_data["password"])
        changed.save()
        snapshots.forget(broker.pk)
        what = ", ".join(form.changed_data)
        audit.record(request.user, "broker changed", broker=broker, what=what)
        return _try_connection(request, broker)
    return render(request, "topology/broker_form.html", {"form": form, "broker": broker})


@require_safe
@access.with_broker(Role.VIEWER)
def broker(request: HttpRequest, broker: Broker) -> HttpResponse:
    known = snapshots.fresh(broker)
    search = request.GET.get("q", "").strip()
    number = request.GET.get("page", "1")
    topologies = Topology.objects.filter(broker=broker).exclude(state=State.DELETED)
    page = (
        queue_page(with_reports(broker, known.snapshot), search, number) if known.snapshot else None
    )
    groups = (
        group_lines(page.object_list, topologies, known.snapshot) if page and known.snapshot else []
    )
    return render(
        request,
        "topology/broker.html",
        {
            "broker": broker,
            "latest": known,
            "page": page,
            "groups": groups,
            "search": search,
            "topologies": topologies,
            "address_states": list_states(broker),
            "certificates": list_certificates(broker, timezone.now()),
            "overview": make_overview(broker, known.snapshot) if known.snapshot else None,
            "findings": findings_line(broker, known.snapshot) if known.snapshot else None,
            "may_operate": access.may(request.user, broker, Role.OPERATOR),
            "may_edit": access.may(request.user, broker, Role.ADMIN),
        },
    )


@require_POST
@access.with_broker(Role.OPERATOR, changes=False)
def broker_test(request: HttpRequest, broker: Broker) -> HttpResponse:
    audit.record(request.user, "connection tested", broker=broker, what=broker.name)
    return _try_connection(request, broker)


def _try_connection(
    request: HttpRequest, broker: Broker, page: str = "topology:broker"
) -> HttpResponse:
    try:
        trials = connect.try_connection(broker.address)
    except BrokerError as error:
        messages.error(request, str(error))
        return redirect("topology:broker", broker_slug=broker.slug)
    for trial in trials:
        level = messages.SUCCESS if trial.works else messages.ERROR
        messages.add_message(request, level, f"{trial.name}: {trial.sentence}")
    snapshots.poll(broker)
    return redirect(page, broker_slug=broker.slug)
