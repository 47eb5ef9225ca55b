"""A new topology, and other parameters of one."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render

from topology import access
from topology.broker.errors import BrokerError
from topology.forms.topology import ParametersForm, TopologyForm
from topology.models import Role, Topology
from topology.operations import edit_topology
from topology.operations.ownership import Refusal
from topology.operations.topology_rows import create_topology
from topology.patterns.table import PATTERNS, list_created
from topology.views.topologies.shared import return_to_page, with_topology


def topology_add(request: HttpRequest) -> HttpResponse:
    kind = request.GET.get("kind", "retry_pair")
    if kind not in list_created():
        raise Http404
    if not access.visible_brokers(request.user, Role.OPERATOR).exists():
        raise PermissionDenied("This action needs the role operator on a broker.")
    given = {field.name: request.GET.get(field.name) for field in PATTERNS[kind].FIELDS}
    initial: dict[str, Any] = {name: text for name, text in given.items() if text is not None}
    initial["broker"] = access.choose_brokers(request, Role.OPERATOR).chosen
    form = TopologyForm(request.POST or None, user=request.user, kind=kind, initial=initial)
    first = PATTERNS[kind].FIELDS[0].name
    if request.method == "POST" and form.is_valid():
        broker = form.cleaned_data["broker"]
        access.require(request.user, broker, Role.OPERATOR, request=request)
        params = form.cleaned_data["params"]
        try:
            made = create_topology(request.user, broker, kind, params)
        except Refusal as refusal:
            form.add_error(first, str(refusal))
        else:
            return redirect("topology:topology", slug=made.slug)
    context = {"form": form, "kind": kind, "explanation": PATTERNS[kind].EXPLANATION}
    return render(request, "topology/topology_form.html", context)


@with_topology(Role.OPERATOR)
def topology_edit(request: HttpRequest, topology: Topology) -> HttpResponse:
    """GET with parameters previews the change, POST applies it; a chain of others has none."""
    if not topology.pattern.FIELDS:
        raise Http404
    given = request.POST or request.GET or None
    form = ParametersForm(given, kind=topology.kind, initial=topology.params)
    found = None
    if form.is_valid():
        try:
            if request.method == "POST":
                typed = request.POST.get("typed_name", "").strip()
                done = edit_topology.edit(request.user, topology, form.texts, typed_name=typed)
                messages.success(request, f"Parameters changed. {done.outcome}".strip())
                return return_to_page(request, topology)
            found = edit_topology.preview_edit(topology, form.texts)
        except (Refusal, BrokerError) as error:
            form.add_error(None, str(error))
    context = {"topology": topology, "broker": topology.broker, "form": form, "edit": found}
    return render(request, "topology/topology_edit.html", context)
