from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.views.decorators.http import require_POST

from analytics.models import Annotation
from analytics.results.annotations import AnnotationError, add_annotation, delete_annotation
from topology import access
from topology.database.paging import row_number
from topology.models import Broker, Role, Topology
from topology.views.redirect_back import next_of

FIELDS = ("text", "kind", "at", "until", "version")


@require_POST
def add(request: HttpRequest) -> HttpResponse:
    """Add an annotation of the topology or broker whose slug is posted; of all brokers without
    one.
    """
    seen = access.visible_brokers(request.user)
    topology = broker = None
    if slug := request.POST.get("topology", "").replace("\x00", ""):
        rows = Topology.objects.select_related("broker").filter(broker__in=seen)
        topology = get_object_or_404(rows, slug=slug)
        broker = topology.broker
    elif slug := request.POST.get("broker", "").replace("\x00", ""):
        broker = get_object_or_404(Broker, slug=slug)
    access.require(request.user, broker, Role.OPERATOR)
    values = {name: request.POST.get(name, "") for name in FIELDS}
    try:
        row = add_annotation(request.user, broker=broker, topology=topology, **values)
        messages.success(request, f"The annotation “{row.text}” is saved.")
    except AnnotationError as error:
        messages.error(request, str(error))
    return redirect(next_of(request, reverse("analytics:reports")))


@require_POST
def delete(request: HttpRequest) -> HttpResponse:
    rows = Annotation.objects.select_related("broker")
    row = get_object_or_404(rows, pk=row_number(request.POST.get("annotation", "")) or 0)
    access.require(request.user, row.broker, Role.OPERATOR)
    delete_annotation(request.user, row)
    messages.success(request, f"The annotation “{row.text}” is deleted.")
    return redirect(next_of(request, reverse("analytics:reports")))
