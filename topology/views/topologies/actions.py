"""What is done to a topology: apply, record, verify, replace, delete."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST

from topology.broker.errors import BrokerError
from topology.models import Role, Topology
from topology.operations import provision, replace_queue, replace_tap
from topology.operations.ownership import Refusal
from topology.operations.topology_rows import keep_bodies
from topology.views.topologies.shared import (
    return_to_page,
    show_failure,
    topology_action,
    with_topology,
)


@topology_action("Topology not applied.")
def topology_apply(request: HttpRequest, topology: Topology) -> str:
    return provision.apply(request.user, topology).sentence


@topology_action("Queues not replaced.")
def topology_replace(request: HttpRequest, topology: Topology) -> str:
    typed = request.POST.get("name", "").strip()
    queues = replace_queue.request(request.user, topology, typed_name=typed)
    return replace_queue.describe_request(queues)


@topology_action("Recording not enabled.")
def topology_record(request: HttpRequest, topology: Topology) -> str:
    provision.start_recording(request.user, topology)
    return "Recording enabled. The list does not include messages that were already waiting."


@topology_action("Tap not replaced.")
def topology_replace_tap(request: HttpRequest, topology: Topology) -> str:
    return replace_tap.replace_tap(request.user, topology)


@require_POST
@with_topology(Role.VIEWER)
def topology_verify(request: HttpRequest, topology: Topology) -> HttpResponse:
    try:
        verdict = provision.check(request.user, topology)
    except BrokerError as error:
        return show_failure(request, topology, f"Topology not verified. {error}")
    context = {"topology": topology, "broker": topology.broker, "verdict": verdict}
    return render(request, "topology/verdict.html", context)


@require_POST
@with_topology(Role.OPERATOR, changes=False)
def topology_bodies(request: HttpRequest, topology: Topology) -> HttpResponse:
    is_wanted = request.POST.get("keep") == "yes"
    try:
        keep_bodies(request.user, topology, is_wanted=is_wanted)
    except Refusal as refusal:
        messages.error(request, f"Body storage not changed. {refusal}")
    else:
        change = (
            "Body storage enabled."
            if is_wanted
            else "Body storage disabled. Delayboard keeps stored bodies until their retention ends."
        )
        messages.success(request, change)
    return redirect("topology:topology_settings", slug=topology.slug)


@require_POST
@with_topology(Role.OPERATOR)
def topology_teardown(request: HttpRequest, topology: Topology) -> HttpResponse:
    typed = request.POST.get("name", "").strip()
    try:
        done = provision.remove(request.user, topology, typed_name=typed)
    except Refusal as refusal:
        messages.error(request, f"Topology not deleted. {refusal}")
        return return_to_page(request, topology)
    except BrokerError as error:
        return show_failure(request, topology, f"Topology not deleted. {error}")
    kept = f", {len(done.keeps)} external objects kept" if done.keeps else ""
    messages.success(request, f"{topology.name}: {len(done.deletes)} objects deleted{kept}.")
    return redirect("topology:topologies")
